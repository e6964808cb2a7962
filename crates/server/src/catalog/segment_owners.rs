//! The owners of a cache's segments, counted for operators: in one pass over the owners, because a replicated cache can have
//! hundreds of each segment.

use std::collections::{BTreeMap, BTreeSet};

use consort_cache::{Address, Availability, CapacityFactor, Phase, Segment, Topology};
use serde_json::{Value, json};

/// Infinispan's names; it has none for a cold start.
pub(crate) const fn phase_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Stable => "NO_REBALANCE",
        Phase::ReadOldWriteAll => "READ_OLD_WRITE_ALL",
        Phase::ReadNewWriteAll => "READ_NEW_WRITE_ALL",
        Phase::Restoring => "RESTORING",
    }
}

/// Infinispan's names.
pub(crate) fn availability_name(topology: &Topology) -> &'static str {
    match topology.availability {
        Availability::Available => "AVAILABLE",
        Availability::Degraded { .. } => "DEGRADED_MODE",
    }
}

/// Entries that only these owners had are lost when the cache becomes available.
pub(crate) fn segments_without_owner(topology: &Topology) -> usize {
    segments_with_fewer(topology, 1)
}

/// Segments with fewer reachable owners than the members could have.
fn segments_with_fewer_owners(topology: &Topology) -> usize {
    let can_own = topology.members.iter().filter(|one| one.member.capacity != CapacityFactor::ZERO).count();
    segments_with_fewer(topology, can_own.min(usize::from(topology.read_owners().owner_count())))
}

fn segments_with_fewer(topology: &Topology, wanted: usize) -> usize {
    let (owners, away) = (topology.read_owners(), away(topology));
    let present = |segment| owners.owners(segment).filter(|owner| !away.contains(owner)).take(wanted).count();
    owners.segments().filter(|segment| present(*segment) < wanted).count()
}

fn away(topology: &Topology) -> BTreeSet<&Address> {
    topology.away().iter().collect()
}

/// Segments whose owners differ after the rebalance in progress.
pub(crate) fn segments_to_move(topology: &Topology) -> usize {
    let Some(pending) = &topology.pending else { return 0 };
    let has_moved = |segment: &Segment| {
        let current: BTreeSet<&Address> = topology.current.owners(*segment).collect();
        let next: BTreeSet<&Address> = pending.owners(*segment).collect();
        current != next
    };
    pending.segments().filter(has_moved).count()
}

/// The numbers of segments of which a member is the primary, and a backup.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct OwnedSegments {
    primary: usize,
    backup: usize,
}

fn owned_segments(topology: &Topology) -> BTreeMap<&Address, OwnedSegments> {
    let owners = topology.read_owners();
    let mut all: BTreeMap<&Address, OwnedSegments> = BTreeMap::new();
    for segment in owners.segments() {
        for (at, owner) in owners.owners(segment).enumerate() {
            let owned = all.entry(owner).or_default();
            *(if at == 0 { &mut owned.primary } else { &mut owned.backup }) += 1;
        }
    }
    all
}

pub(crate) fn to_json(topology: &Topology, name_of: impl Fn(&Address) -> String) -> Value {
    let owners = topology.read_owners();
    let (owned, away) = (owned_segments(topology), away(topology));
    let member = |address: &Address| {
        let OwnedSegments { primary, backup } = owned.get(address).copied().unwrap_or_default();
        let (name, is_reachable) = (name_of(address), !away.contains(address));
        json!({"name": name, "primary": primary, "backup": backup, "reachable": is_reachable})
    };
    json!({
        "segments": owners.segment_count(),
        "owners": owners.owner_count(),
        "topology": topology.id,
        "phase": phase_name(topology.phase),
        "availability": availability_name(topology),
        "without_owner": segments_without_owner(topology),
        "with_fewer_owners": segments_with_fewer_owners(topology),
        "members": topology.addresses().map(member).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use consort_group::Uuid;

    use super::*;

    fn member(n: u64) -> Address {
        Address::Uuid(Uuid { most: 1, least: n })
    }

    /// A cache with two owners, the second of which joins.
    fn joined() -> Topology {
        let first = Topology::first(1, member(1).into(), 2, 12);
        let target = first.current.rebalanced(vec![member(1).into(), member(2).into()]);
        first.succeeded(2, |next| {
            let mut second = next.members[0].clone();
            second.member = member(2).into();
            next.members = next.members.iter().cloned().chain([second]).collect();
            next.phase = Phase::ReadOldWriteAll;
            next.pending = Some(target);
        })
    }

    #[test]
    fn owners_are_counted_per_member() {
        let moving = joined();
        let shown = to_json(&moving, |address| format!("{}", address == &member(1)));
        assert_eq!(
            shown["members"][0],
            json!({"name": "true", "primary": 12, "backup": 0, "reachable": true})
        );
        assert_eq!(shown["members"][1]["primary"], 0);
        assert_eq!((&shown["with_fewer_owners"], &shown["without_owner"]), (&12.into(), &0.into()));
        assert_eq!((&shown["phase"], segments_to_move(&moving)), (&"READ_OLD_WRITE_ALL".into(), 12));
        let moved = moving.succeeded(3, |next| {
            next.phase = Phase::Stable;
            next.current = next.pending.take().unwrap();
        });
        let shown = to_json(&moved, |_| String::new());
        let primaries: Vec<&Value> = (0..2).map(|at| &shown["members"][at]["primary"]).collect();
        assert_eq!(primaries, [6, 6]);
        assert_eq!((&shown["members"][0]["backup"], &shown["with_fewer_owners"]), (&6.into(), &0.into()));
        assert_eq!(segments_to_move(&moved), 0);
    }

    #[test]
    fn segments_of_unreachable_owners_are_counted() {
        let alone = Topology::first(1, member(1).into(), 2, 12);
        let away = [member(1)];
        let degraded =
            alone.succeeded(2, |next| next.availability = Availability::Degraded { away: away.into() });
        let shown = to_json(&degraded, |_| String::new());
        assert_eq!((&shown["without_owner"], &shown["with_fewer_owners"]), (&12.into(), &12.into()));
        assert_eq!(shown["availability"], "DEGRADED_MODE");
        assert_eq!(shown["members"][0]["reachable"], false);
    }

    #[test]
    fn owners_of_a_large_replicated_cache_are_counted() {
        const MEMBERS: u64 = 300;
        let one = Topology::first(1, member(1).into(), u16::MAX, 256);
        let target = one.current.rebalanced((1..=MEMBERS).map(|n| member(n).into()).collect());
        let all = one.succeeded(2, |next| {
            let joined = |n| {
                let mut joined = next.members[0].clone();
                joined.member = member(n).into();
                joined
            };
            next.members = (1..=MEMBERS).map(joined).collect();
            next.pending = Some(target.clone());
        });
        assert_eq!((segments_to_move(&all), segments_with_fewer_owners(&all)), (256, 256));
        let moved = all.succeeded(3, |next| {
            next.current = target;
            next.pending = None;
            next.availability = Availability::Degraded { away: (2..=MEMBERS).map(member).collect() };
        });
        let owned = owned_segments(&moved);
        assert_eq!(owned.values().map(|owned| owned.primary).sum::<usize>(), 256);
        assert!(owned.values().all(|owned| owned.primary + owned.backup == 256));
        assert_eq!((segments_without_owner(&moved), segments_with_fewer_owners(&moved)), (0, 256));
        assert_eq!(to_json(&moved, |_| String::new())["members"].as_array().map(Vec::len), Some(300));
    }
}
