//! Partitions that have all continued, and their merge into one topology (`docs/design/2026-11-grid.md`,
//! Partitions). A topology in another one's history is only older. If neither is in the other's history, they
//! belong to two partitions.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use consort_group::{Address, View};

use crate::CacheMember;
use crate::command::CacheStatus;
use crate::merge::{PartitionSide, SplitPoint, parted_from};
use crate::topology::Topology;

/// The newest topology of the preferred partition, which has the most members from before the split. Among
/// equal ones, the partition with the view's first member is preferred.
pub(super) fn preferred<'a>(found: &'a [(Address, CacheStatus)], view: &View) -> Option<&'a CacheStatus> {
    let statuses = || found.iter().filter_map(|(_, status)| Some((status, status.topology.as_ref()?)));
    let newest: Vec<(&CacheStatus, &Topology)> =
        statuses().filter(|(_, topology)| !statuses().any(|(_, other)| topology.is_behind(other))).collect();
    let split_points = newest.iter().flat_map(|(_, one)| {
        newest.iter().filter_map(|(_, other)| parted_from(&one.split_points, &other.split_points))
    });
    let parted = split_points.min().unwrap_or(u32::MAX);
    // Two caches that began independently have no common earlier members.
    let is_never =
        |topology: &Topology| topology.split_points.first().is_some_and(|first| first.id >= parted);
    let rank = |topology: &Topology| {
        let of_it = || statuses().map(|(status, _)| status).filter(|status| is_member_of(topology, status));
        let is_old = |status: &&CacheStatus| {
            let membership = topology.membership(&status.member.address);
            is_never(topology) || membership.is_some_and(|one| one.since < parted)
        };
        let place =
            |status: &CacheStatus| view.members().iter().position(|member| *member == status.member.address);
        (of_it().filter(is_old).count(), Reverse(of_it().filter_map(place).min()), topology.id)
    };
    newest.iter().max_by_key(|(_, topology)| rank(topology)).map(|(status, _)| *status)
}

/// Whether a member with its data belongs to a topology, which it may not have received yet.
pub(super) fn is_member_of(topology: &Topology, status: &CacheStatus) -> bool {
    let (Some(membership), Some(own)) =
        (topology.membership(&status.member.address), status.topology.as_ref())
    else {
        return false;
    };
    let is_known = own.membership(&status.member.address).is_some_and(|own| own.since == membership.since);
    // A topology has added a member that continued under a later ballot than the topology's. The member has not received that
    // topology, and has more data than it reported.
    let is_taken_in = |side: &PartitionSide| {
        side.since == membership.since
            && side.split_points.last() == own.split_points.last()
            && own.ballot < topology.ballot
    };
    is_known && (own == topology || own.is_behind(topology)) || topology.merging.iter().any(is_taken_in)
}

/// `since` is the topology that adds these members with data of their own.
pub(super) fn partitions_to_merge(
    topology: &Topology,
    found: &[(Address, CacheStatus)],
    since: u32,
) -> Vec<(PartitionSide, Vec<CacheMember>)> {
    type Members<'a> = Vec<(&'a Topology, &'a CacheStatus)>;
    let mut sides: BTreeMap<Option<(u32, &Address)>, Members<'_>> = BTreeMap::new();
    for (_, status) in found.iter().filter(|(_, status)| !is_member_of(topology, status)) {
        let Some(own) = status.frozen.as_ref().or(status.topology.as_ref()) else { continue };
        let last = own.split_points.last().map(|SplitPoint { id, by }| (*id, by));
        sides.entry(last).or_default().push((own, status));
    }
    let side = |(nth, members): (u32, Members<'_>)| {
        let newest = members.iter().map(|(own, _)| *own).max_by_key(|own| own.id)?;
        let is_gone = |owner: &Address| !members.iter().any(|(_, status)| status.member.address == *owner);
        // If no read owner remains, the write owners have received the writes.
        let owners = newest.read_owners().without(is_gone).or(&newest.write_owners().without(is_gone));
        let side = PartitionSide { since, nth, owners, split_points: newest.split_points.clone() };
        Some((side, members.iter().map(|(_, status)| status.member.clone()).collect()))
    };
    (0..).zip(sides.into_values()).filter_map(side).collect()
}
