use std::sync::Arc;

use consort_group::Address;
use consort_hotrod::hash;

use crate::history::{LINEAGES_MAX, Lineage};
use crate::merge::{PartitionSide, SPLIT_POINTS_MAX, SplitPoint};
use crate::{Ballot, CacheMember, ConsistentHash, Segment, Version};

/// A partition uses a handful of ids before its merge. Beyond these reserved ones partitions' ids may
/// overlap, which matters only to a third partition that has split from one meanwhile.
const LINEAGE_IDS: u32 = 16;

/// The places in which a lineage may begin. With more of them fewer lineages share one, and ids grow faster:
/// by half as many times [`LINEAGE_IDS`] where a coordinator is lost. With one coordinator lost every hour
/// the ids last for two years, and then as many again as are left without a place.
const LINEAGE_PLACES: u32 = 64;

/// The phase of a change of owners.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// The current owners are read and written.
    Stable,
    /// Current owners are read; current and pending ones are written while entries move.
    ReadOldWriteAll,
    /// Pending owners are read, current and pending ones written, after entries have moved.
    ReadNewWriteAll,
    /// The members have restarted with stores. Nothing is served before each segment's first owner has the
    /// newest data of all owners.
    Restoring,
}

/// A cache's availability.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Availability {
    /// All operations are allowed.
    Available,
    /// Too many members were lost at once: the minority's partition handling applies.
    Degraded {
        /// The owners outside the view.
        away: Arc<[Address]>,
    },
}

/// A member of a cache.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Membership {
    /// The member.
    pub member: CacheMember,
    /// The topology since which it is a member. If its own last topology is older, it was removed and begins
    /// anew.
    pub since: u32,
    /// The events that it gets.
    pub listening: Option<Listening>,
    /// The address before a restart in progress: the store may not have the new one when the member is lost.
    pub formerly: Option<Address>,
}

/// The events that a listening member gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Listening {
    /// The topology since which no event was lost.
    pub since: u32,
    /// The topology since which this interest applies.
    pub changed: u32,
    /// The wanted contents.
    pub interest: Interest,
}

/// The wanted contents of events.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Interest {
    /// No events.
    #[default]
    Nothing,
    /// The key and the kind.
    Keys,
    /// Also the value.
    Entries,
    /// Also the previous value.
    Previous,
}

/// The owners of a cache's segments. Every change makes a new topology with a higher id.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Topology {
    /// The growing id.
    pub id: u32,
    /// The phase.
    pub phase: Phase,
    /// All members, in joining order.
    pub members: Arc<[Membership]>,
    /// The current owners.
    pub current: ConsistentHash,
    /// The owners after the rebalance, unless [`Phase::Stable`].
    pub pending: Option<ConsistentHash>,
    /// The topology that began the present or last rebalance.
    pub rebalance: u32,
    /// Per segment, the topology that last changed its write owners or the listening members.
    pub epochs: Arc<[u32]>,
    /// Per segment, the topology that last changed its primary.
    pub primary_terms: Arc<[u32]>,
    /// The last stable topology's members: more than half must be present.
    pub quorum: Arc<[Address]>,
    /// The next quorum, once all members have this topology; more than half must be present, too.
    pub quorum_to_be: Option<Arc<[Address]>>,
    /// The members that the next topology removes; to a coordinator that goes on from here they are lost.
    pub forgone: Arc<[Address]>,
    /// The ballot under which this history last had enough members. Of two partitions, the one with the
    /// higher ballot has all acknowledged writes.
    pub ballot: Ballot,
    /// The availability.
    pub availability: Availability,
    /// The history's last available topology.
    pub available: u32,
    /// The cache's creator, through all restarts: other data belongs to another cache.
    pub origin: Address,
    /// The beginnings of the last lineages, in order.
    pub lineages: Arc<[Lineage]>,
    /// The last split points: the first topology, and each that continued without members that may have
    /// continued.
    pub split_points: Arc<[SplitPoint]>,
    /// The last split points of merged partitions.
    pub merged: Arc<[SplitPoint]>,
    /// Partitions being merged.
    pub merging: Arc<[PartitionSide]>,
}

impl Membership {
    pub(crate) fn new(member: CacheMember, since: u32) -> Self {
        Self { member, since, listening: None, formerly: None }
    }
}

impl Topology {
    /// Creates a cache's first topology.
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

    /// Members of this history may have gone on without this side, too.
    pub(crate) fn part(&mut self, by: &Address) {
        let split_point = SplitPoint { id: self.id, by: by.clone() };
        self.split_points = last_of(self.split_points.iter().cloned().chain([split_point]), SPLIT_POINTS_MAX);
    }

    /// Another coordinator may go on from the previous topology, so a lineage distinguishes later writes.
    pub(crate) fn begin_lineage(&mut self, by: &Address) {
        let lineage = Lineage { id: self.id, by: by.clone() };
        if self.lineages.last() == Some(&lineage) {
            return;
        }
        self.lineages = last_of(self.lineages.iter().cloned().chain([lineage]), LINEAGES_MAX);
    }

    /// The id is greater than `last`, and differs from the id of another member that goes on from here.
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

    pub(crate) fn take_in(&mut self, side: PartitionSide, members: Vec<CacheMember>) {
        let since = side.since;
        let others = members.into_iter().map(|member| Membership::new(member, since));
        self.members = self.members.iter().cloned().chain(others).collect();
        self.merged =
            last_of(self.merged.iter().cloned().chain(side.split_points.last().cloned()), SPLIT_POINTS_MAX);
        self.merging = self.merging.iter().cloned().chain([side]).collect();
    }

    /// Whether the other topology, or one merged into it, has this older one in its history.
    pub(crate) fn is_behind(&self, other: &Self) -> bool {
        let Some(last) = self.split_points.last() else { return false };
        if other.split_points.last() == Some(last) {
            return self.id < other.id;
        }
        other.split_points.contains(last) || other.merged.contains(last) && self.ballot < other.ballot
    }

    /// Returns a successor with this id, changed by `change`, with updated epochs, primary terms and last
    /// available id.
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

    /// Returns the read owners, the primary first.
    pub fn read_owners(&self) -> &ConsistentHash {
        match (&self.pending, self.phase) {
            (Some(pending), Phase::ReadNewWriteAll) => pending,
            _ => &self.current,
        }
    }

    /// Returns the write owners, the primary first.
    pub fn write_owners(&self) -> ConsistentHash {
        match (&self.pending, self.phase) {
            (Some(pending), Phase::ReadNewWriteAll) => pending.union(&self.current),
            (Some(pending), _) => self.current.union(pending),
            (None, _) => self.current.clone(),
        }
    }

    /// Whether a segment was to move and all current owners are lost permanently.
    pub(crate) fn is_orphaned(&self, segment: Segment) -> bool {
        self.phase == Phase::ReadOldWriteAll && self.current.owners(segment).len() == 0
    }

    pub(crate) fn givers(&self, segment: Segment) -> impl Iterator<Item = &Address> {
        let heirs = self.pending.as_ref().filter(|_| self.is_orphaned(segment));
        heirs.unwrap_or(&self.current).owners(segment)
    }

    /// Returns whether this is a member.
    pub fn contains(&self, member: &Address) -> bool {
        self.membership(member).is_some()
    }

    /// Returns a membership.
    pub fn membership(&self, member: &Address) -> Option<&Membership> {
        self.members.iter().find(|other| other.member.address == *member)
    }

    /// Returns the members' addresses.
    pub fn addresses(&self) -> impl Iterator<Item = &Address> {
        self.members.iter().map(|membership| &membership.member.address)
    }

    /// Returns the reachable listening members.
    pub fn listening(&self) -> impl Iterator<Item = (&Address, Listening)> {
        let of = |one: &Membership| one.listening;
        let listening = self.members.iter().filter_map(move |one| Some((&one.member.address, of(one)?)));
        listening.filter(|(member, _)| !self.away().contains(member))
    }

    /// Returns a member's interest.
    pub fn interest(&self, member: &Address) -> Interest {
        let listening = self.membership(member).and_then(|membership| membership.listening);
        listening.map_or(Interest::Nothing, |listening| listening.interest)
    }

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

    /// Former addresses count until the cache's restart is complete.
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

    /// Returns the topology that last changed a segment's write owners.
    pub fn epoch(&self, segment: Segment) -> u32 {
        self.epochs[usize::from(segment.0)]
    }

    /// Returns the topology that last changed a segment's primary.
    pub fn primary_term(&self, segment: Segment) -> u32 {
        self.primary_terms[usize::from(segment.0)]
    }

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

    pub(crate) fn quorums(&self) -> impl Iterator<Item = &Arc<[Address]>> {
        std::iter::once(&self.quorum).chain(&self.quorum_to_be)
    }

    pub(crate) fn absent(&self) -> impl Iterator<Item = &Address> {
        self.away().iter().chain(self.forgone.iter())
    }

    /// Whether all other members are unreachable, and one of them is another read owner of each segment read
    /// here.
    pub(crate) fn is_kept_without(&self, member: &Address) -> bool {
        let readers = self.read_owners();
        let is_kept = |segment| readers.owners(segment).any(|owner| self.away().contains(owner));
        self.addresses().all(|one| one == member || self.away().contains(one))
            && readers.segments_of(member).all(is_kept)
    }

    /// Returns a degraded cache's unreachable owners.
    pub fn away(&self) -> &[Address] {
        match &self.availability {
            Availability::Available => &[],
            Availability::Degraded { away } => away,
        }
    }
}

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
