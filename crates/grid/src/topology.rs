//! The topology of a cache: the owners of its segments, now and after a rebalance. The coordinator makes it and every
//! member installs it.

use std::sync::Arc;

use consort_group::Address;
use consort_hotrod::hash;

use crate::history::{LINEAGES_MAX, Lineage};
use crate::merge::{PartitionSide, SPLIT_POINTS_MAX, SplitPoint};
use crate::{Ballot, CacheMember, ConsistentHash, Segment, Version};

/// Number of topology ids reserved for a lineage: a partition uses a handful before it is merged. Partitions that use
/// more may overlap with each other's ids. That matters only to a third partition that has split from one of them
/// meanwhile.
const LINEAGE_IDS: u32 = 16;

/// Number of places in which a lineage may begin. With more places fewer lineages share one, and ids grow faster: by
/// half as many times [`LINEAGE_IDS`] where a coordinator is lost. With one coordinator lost every hour the ids last for
/// two years, and then as many again as are left without a place.
const LINEAGE_PLACES: u32 = 64;

/// The phase of a change of owners.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// No rebalance is in progress: the current owners are read and written.
    Stable,
    /// Entries are being transferred: the current owners are read, current and pending ones are written.
    ReadOldWriteAll,
    /// All entries are transferred: the pending owners are read, current and pending ones are written.
    ReadNewWriteAll,
    /// The members have restarted with the data of their stores. Nothing is read or written before the first owner of
    /// each segment has the newest data of all its owners.
    Restoring,
}

/// The availability of a cache.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Availability {
    /// All operations are allowed.
    Available,
    /// Too many members were lost at once: the cache's partition handling for a minority applies. These owners are
    /// unreachable.
    Degraded {
        /// Owners that are not in the view.
        away: Arc<[Address]>,
    },
}

/// A member, and the topology since which it has been one without interruption.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Membership {
    /// The member.
    pub member: CacheMember,
    /// The id of the topology with which it became a member. If a member finds a later id here than the last topology
    /// that it has installed, it was removed meanwhile and begins anew.
    pub since: u32,
    /// The events that it gets, if it has listeners.
    pub listening: Option<Listening>,
    /// Its address before the restart, while a cache restarts. The member may be lost before its store has its new
    /// address.
    pub formerly: Option<Address>,
}

/// The events that a member with listeners gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Listening {
    /// The id of the topology since which it has got events without interruption.
    pub since: u32,
    /// The id of the topology since which it has got events of this interest.
    pub changed: u32,
    /// The contents of the events.
    pub interest: Interest,
}

/// The contents of the events that a member wants for each change.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Interest {
    /// No events.
    #[default]
    Nothing,
    /// The key and the kind of change.
    Keys,
    /// These and the value.
    Entries,
    /// These and the previous value.
    Previous,
}

/// The owners of a cache's segments. The coordinator makes a new topology for every change; a higher id replaces a
/// lower one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Topology {
    /// The id. It grows with every change.
    pub id: u32,
    /// The phase.
    pub phase: Phase,
    /// All members that have the cache open, owners or not, in the order in which they joined.
    pub members: Arc<[Membership]>,
    /// The current owners.
    pub current: ConsistentHash,
    /// The owners after the rebalance, while the phase is not [`Phase::Stable`].
    pub pending: Option<ConsistentHash>,
    /// The rebalance in progress, or the last one: the id of the topology that began it.
    pub rebalance: u32,
    /// Per segment the id of the topology with which its write owners, or the members with listeners, last changed.
    pub epochs: Arc<[u32]>,
    /// The primary term. Per segment the id of the topology with which its primary last changed.
    pub primary_terms: Arc<[u32]>,
    /// The members of the last stable topology: more than half of them must be present.
    pub quorum: Arc<[Address]>,
    /// The next quorum, once all members have this topology: more than half of these must be present as well.
    pub quorum_to_be: Option<Arc<[Address]>>,
    /// Members that are announced for removal: the next topology is without them. They count as lost for a
    /// coordinator that goes on from this topology.
    pub forgone: Arc<[Address]>,
    /// The ballot under which this history last went on with enough members. Of two topologies made in different
    /// partitions, the one with the higher ballot has all acknowledged writes.
    pub ballot: Ballot,
    /// The availability.
    pub availability: Availability,
    /// The id of the last topology of this history that was available.
    pub available: u32,
    /// The member that created the cache. It stays the same for as long as the cache's data exists, through all
    /// restarts: data with another origin belongs to another cache.
    pub origin: Address,
    /// The beginnings of this history's lineages, in order. Only the last ones of many are kept.
    pub lineages: Arc<[Lineage]>,
    /// The split points of this history: the first topology, and each topology that continued without members that may
    /// also have continued. Only the last ones of many are kept.
    pub split_points: Arc<[SplitPoint]>,
    /// The last split points of partitions that have been merged into this one.
    pub merged: Arc<[SplitPoint]>,
    /// Partitions whose entries are being merged into this one.
    pub merging: Arc<[PartitionSide]>,
}

impl Membership {
    /// Creates the membership of a new member.
    pub(crate) fn new(member: CacheMember, since: u32) -> Self {
        Self { member, since, listening: None, formerly: None }
    }
}

impl Topology {
    /// Creates the first topology of a cache.
    pub fn first(id: u32, member: CacheMember, owner_count: u16, segment_count: u16) -> Self {
        let quorum = Arc::from([member.address.clone()]);
        let membership = Membership::new(member.clone(), id);
        let lineage = Lineage { id, by: member.address.clone() };
        let root = SplitPoint { id, by: member.address.clone() };
        Self {
            origin: member.address.clone(),
            id,
            phase: Phase::Stable,
            members: Arc::from([membership]),
            current: ConsistentHash::new(vec![member.clone()], owner_count, segment_count),
            pending: None,
            rebalance: 0,
            epochs: vec![id; segment_count.into()].into(),
            primary_terms: vec![id; segment_count.into()].into(),
            quorum,
            quorum_to_be: None,
            forgone: Arc::from([]),
            ballot: Ballot { number: 0, by: member.address },
            availability: Availability::Available,
            available: id,
            lineages: Arc::from([lineage]),
            split_points: Arc::from([root]),
            merged: Arc::from([]),
            merging: Arc::from([]),
        }
    }

    /// Records that this history goes on without members that may have gone on without it.
    pub(crate) fn part(&mut self, by: &Address) {
        let split_point = SplitPoint { id: self.id, by: by.clone() };
        self.split_points = last_of(self.split_points.iter().cloned().chain([split_point]), SPLIT_POINTS_MAX);
    }

    /// Begins a lineage, because another coordinator may go on from the previous topology: later writes are
    /// distinguished from those by their lineage.
    pub(crate) fn begin_lineage(&mut self, by: &Address) {
        let lineage = Lineage { id: self.id, by: by.clone() };
        if self.lineages.last() == Some(&lineage) {
            return;
        }
        self.lineages = last_of(self.lineages.iter().cloned().chain([lineage]), LINEAGES_MAX);
    }

    /// Returns the id for the first topology of a lineage that `by` begins with this topology: greater than `last`, and
    /// different from the id that another member would use that goes on from here as well.
    pub(crate) fn first_id_of_lineage(&self, last: u32, by: &Address) -> u32 {
        let next = last.saturating_add(1);
        let lineage = self.lineages.last().filter(|_| next < Version::TOPOLOGY_MAX / 2);
        let Some(lineage) = lineage else { return next };
        let bytes = |address: &Address| {
            let uuid = address.uuid().unwrap_or_default();
            [uuid.most.to_be_bytes(), uuid.least.to_be_bytes()].concat()
        };
        // Members of one topology that go on from it have different places, which change from lineage to lineage.
        let nth = self.addresses().position(|member| member == by);
        let nth = nth.map_or_else(|| hash::hash(&bytes(by)) as u32, |nth| nth as u32);
        let turn = hash::hash(&[bytes(&lineage.by), lineage.id.to_be_bytes().to_vec()].concat()) as u32;
        next + LINEAGE_IDS * (1 + nth.wrapping_add(turn) % LINEAGE_PLACES)
    }

    /// Adds the members of a partition whose entries are to be merged.
    pub(crate) fn take_in(&mut self, side: PartitionSide, members: Vec<CacheMember>) {
        let since = side.since;
        let others = members.into_iter().map(|member| Membership::new(member, since));
        self.members = self.members.iter().cloned().chain(others).collect();
        self.merged =
            last_of(self.merged.iter().cloned().chain(side.split_points.last().cloned()), SPLIT_POINTS_MAX);
        self.merging = self.merging.iter().cloned().chain([side]).collect();
    }

    /// Whether this topology is older than the other, and of its history or of one that was merged into it.
    pub(crate) fn is_behind(&self, other: &Self) -> bool {
        let Some(last) = self.split_points.last() else { return false };
        if other.split_points.last() == Some(last) {
            return self.id < other.id;
        }
        other.split_points.contains(last) || other.merged.contains(last) && self.ballot < other.ballot
    }

    /// Returns a successor with another id, after `change` has modified it. The epochs, the primary terms and the id
    /// of the last available topology are updated.
    #[must_use]
    pub fn succeeded(&self, id: u32, change: impl FnOnce(&mut Self)) -> Self {
        let mut next = Self { id, ..self.clone() };
        change(&mut next);
        if next.availability == Availability::Available {
            next.available = id;
            // Changes that unreachable members missed, and changes made in their partition, are unknown. Merged
            // changes were not delivered as events.
            let is_merged = !self.merging.is_empty() && next.merging.is_empty();
            if self.availability != Availability::Available || is_merged {
                next.renew_listening();
            }
        }
        let (old, new) = (self.write_owners(), next.write_owners());
        let changed = |since: &Arc<[u32]>, is_same: &dyn Fn(Segment) -> bool| {
            new.segments()
                .map(|segment| if is_same(segment) { since[usize::from(segment.0)] } else { id })
                .collect()
        };
        next.primary_terms =
            changed(&self.primary_terms, &|segment| old.primary(segment) == new.primary(segment));
        let is_told_alike = self.listening().eq(next.listening());
        next.epochs = changed(&self.epochs, &|segment| {
            is_told_alike
                && old.primary(segment) == new.primary(segment)
                && old.owners(segment).len() == new.owners(segment).len()
                && old.owners(segment).all(|owner| new.owners(segment).any(|other| other == owner))
        });
        next
    }

    /// Returns the read owners; the first is the primary.
    pub fn read_owners(&self) -> &ConsistentHash {
        match (&self.pending, self.phase) {
            (Some(pending), Phase::ReadNewWriteAll) => pending,
            _ => &self.current,
        }
    }

    /// Returns the write owners; the first is the primary.
    pub fn write_owners(&self) -> ConsistentHash {
        match (&self.pending, self.phase) {
            (Some(pending), Phase::ReadNewWriteAll) => pending.union(&self.current),
            (Some(pending), _) => self.current.union(pending),
            (None, _) => self.current.clone(),
        }
    }

    /// Whether a segment was to move, and all its current owners are lost permanently.
    pub(crate) fn is_orphaned(&self, segment: Segment) -> bool {
        self.phase == Phase::ReadOldWriteAll && self.current.owners(segment).len() == 0
    }

    /// Returns the owners that provide a segment's state to its pending owners.
    pub(crate) fn givers(&self, segment: Segment) -> impl Iterator<Item = &Address> {
        let heirs = self.pending.as_ref().filter(|_| self.is_orphaned(segment));
        heirs.unwrap_or(&self.current).owners(segment)
    }

    /// Whether the topology has this member.
    pub fn contains(&self, member: &Address) -> bool {
        self.membership(member).is_some()
    }

    /// Returns a member's membership.
    pub fn membership(&self, member: &Address) -> Option<&Membership> {
        self.members.iter().find(|other| other.member.address == *member)
    }

    /// Returns the members' addresses.
    pub fn addresses(&self) -> impl Iterator<Item = &Address> {
        self.members.iter().map(|membership| &membership.member.address)
    }

    /// Returns the reachable members that have listeners.
    pub fn listening(&self) -> impl Iterator<Item = (&Address, Listening)> {
        let of = |one: &Membership| one.listening;
        let listening = self.members.iter().filter_map(move |one| Some((&one.member.address, of(one)?)));
        listening.filter(|(member, _)| !self.away().contains(member))
    }

    /// Returns the interest of a member in events.
    pub fn interest(&self, member: &Address) -> Interest {
        let listening = self.membership(member).and_then(|membership| membership.listening);
        listening.map_or(Interest::Nothing, |listening| listening.interest)
    }

    /// Sets the interest of a member in events from now on.
    pub(crate) fn listen(&mut self, member: &Address, interest: Interest) {
        let id = self.id;
        self.change_members(|one| {
            if one.member.address == *member {
                let since = one.listening.map_or(id, |before| before.since);
                let is_told = interest != Interest::Nothing;
                one.listening = is_told.then_some(Listening { since, changed: id, interest });
            }
        });
    }

    /// Forgets the members' former addresses, because the cache's restart is complete.
    pub(crate) fn forget_former(&mut self) {
        self.change_members(|one| one.formerly = None);
    }

    pub(crate) fn renew_listening(&mut self) {
        let id = self.id;
        self.change_members(|one| {
            one.listening = one.listening.map(|before| Listening { since: id, changed: id, ..before });
        });
    }

    fn change_members(&mut self, change: impl Fn(&mut Membership)) {
        let changed = |one: &Membership| {
            let mut one = one.clone();
            change(&mut one);
            one
        };
        self.members = self.members.iter().map(changed).collect();
    }

    /// Returns the id of the topology with which a segment's write owners last changed.
    pub fn epoch(&self, segment: Segment) -> u32 {
        self.epochs[usize::from(segment.0)]
    }

    /// Returns the primary term: the id of the topology with which a segment's primary last changed.
    pub fn primary_term(&self, segment: Segment) -> u32 {
        self.primary_terms[usize::from(segment.0)]
    }

    /// Removes the members announced for removal, in any phase.
    pub(crate) fn leave_out(&mut self) {
        let forgone = std::mem::take(&mut self.forgone);
        let is_gone = |member: &Address| forgone.contains(member);
        let members = self.members.iter().filter(|one| !is_gone(&one.member.address));
        self.members = members.cloned().collect();
        self.current = self.current.without(is_gone);
        // A segment whose pending owners are all removed keeps its current owners.
        let current = &self.current;
        self.pending = self.pending.as_ref().map(|pending| pending.without(is_gone).or(current));
        self.availability = Availability::Available;
    }

    /// Returns the sets of members of each of which more than half must be present.
    pub(crate) fn quorums(&self) -> impl Iterator<Item = &Arc<[Address]>> {
        std::iter::once(&self.quorum).chain(&self.quorum_to_be)
    }

    /// Returns the members that are unreachable or announced for removal.
    pub(crate) fn absent(&self) -> impl Iterator<Item = &Address> {
        self.away().iter().chain(self.forgone.iter())
    }

    /// Whether all members but this one are unreachable, and each segment of which this one is a read owner has one
    /// of them as another read owner.
    pub(crate) fn is_kept_without(&self, member: &Address) -> bool {
        let readers = self.read_owners();
        let is_kept = |segment| readers.owners(segment).any(|owner| self.away().contains(owner));
        self.addresses().all(|one| one == member || self.away().contains(one))
            && readers.segments_of(member).all(is_kept)
    }

    /// Returns the unreachable owners, if the cache is degraded.
    pub fn away(&self) -> &[Address] {
        match &self.availability {
            Availability::Available => &[],
            Availability::Degraded { away } => away,
        }
    }
}

/// Returns the last ones of many.
fn last_of<T: Clone>(all: impl Iterator<Item = T>, count_max: usize) -> Arc<[T]> {
    let all: Vec<T> = all.collect();
    all[all.len().saturating_sub(count_max)..].into()
}

#[cfg(test)]
mod tests {
    use consort_group::Uuid;

    use super::*;

    fn member(n: u64) -> CacheMember {
        Address::Uuid(Uuid { most: 1, least: n }).into()
    }

    #[test]
    fn epochs_change_where_owners_do_and_nowhere_else() {
        let alone = Topology::first(1, member(1), 2, 16);
        let target = alone.current.rebalanced(vec![member(1), member(2), member(3)]);
        let copying = alone.succeeded(2, |next| {
            next.phase = Phase::ReadOldWriteAll;
            next.pending = Some(target.clone());
        });
        let switching = copying.succeeded(3, |next| next.phase = Phase::ReadNewWriteAll);
        let stable = switching.succeeded(4, |next| {
            next.phase = Phase::Stable;
            next.current = target.clone();
            next.pending = None;
        });
        for segment in target.segments() {
            assert_eq!(copying.epoch(segment), 2, "everybody gets a second owner");
            assert_eq!(copying.primary_term(segment), 1, "the member that is read stays primary");
            let has_moved = target.primary(segment) != alone.current.primary(segment);
            assert_eq!(switching.primary_term(segment), if has_moved { 3 } else { 1 });
            assert_eq!(switching.epoch(segment), if has_moved { 3 } else { 2 });
            let is_left = !target.owners(segment).any(|owner| *owner == member(1).address);
            assert_eq!(stable.epoch(segment), if is_left { 4 } else { switching.epoch(segment) });
            assert_eq!(stable.primary_term(segment), switching.primary_term(segment));
        }
    }
}
