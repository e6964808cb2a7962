//! Who owns what at a moment, and who will: a value that the coordinator makes and everybody installs.

use std::sync::Arc;

use consort_group::Address;

use crate::merge::{PARTINGS_MAX, Parting, Side};
use crate::past::{LINES_MAX, Line};
use crate::{Ballot, CacheMember, ConsistentHash, Segment};

/// How far a change of owners is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Nothing moves: the current owners are read and written.
    Stable,
    /// Entries move: the current owners are read, current and pending ones are written.
    ReadOldWriteAll,
    /// All entries have moved: the pending owners are read, current and pending ones are written.
    ReadNewWriteAll,
    /// The members have begun a new life with what their stores have kept. Nothing is read or written before the first
    /// owner of each segment has the newest of what its owners have.
    Restoring,
}

/// What of a cache may be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Availability {
    /// Everything.
    Available,
    /// Too much was lost at once: what the cache's partition handling allows in a minority. These owners are away.
    Degraded {
        /// Owners that are not in the view.
        away: Arc<[Address]>,
    },
}

/// A member, and since when it has been one without interruption.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Membership {
    /// The member.
    pub member: CacheMember,
    /// The id of the topology with which it became a member. Whoever finds a later one than the last that it has
    /// installed was left out meanwhile, and begins anew.
    pub since: u32,
    /// What it is told of all changes, if it has listeners.
    pub listening: Option<Listening>,
    /// While a cache begins again: who it was before. It may be lost before its store knows who it is now.
    pub formerly: Option<Address>,
}

/// What a member with listeners is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Listening {
    /// The id of the topology since which it is told without interruption.
    pub since: u32,
    /// The id of the topology since which it is told as much as now.
    pub changed: u32,
    /// What.
    pub interest: Interest,
}

/// What a member wants to be told of each change.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Interest {
    /// Nothing.
    #[default]
    Nothing,
    /// What has happened to which key.
    Keys,
    /// That and the value.
    Entries,
    /// That and the value before.
    Previous,
}

/// The owners of a cache's segments. Made by the coordinator, a new one for every change; a higher id replaces a lower.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Topology {
    /// Grows with every change.
    pub id: u32,
    /// The phase.
    pub phase: Phase,
    /// Everybody who has the cache open, owners or not, in the order of their coming.
    pub members: Arc<[Membership]>,
    /// The owners now.
    pub current: ConsistentHash,
    /// The owners to be, while the phase is not [`Phase::Stable`].
    pub pending: Option<ConsistentHash>,
    /// Which rebalance this is or was: the id of the topology that began it.
    pub rebalance: u32,
    /// Per segment the id with which its write owners, or the members with listeners, last changed.
    pub epochs: Arc<[u32]>,
    /// Per segment the id with which its primary last changed.
    pub reigns: Arc<[u32]>,
    /// The members of the last stable topology: of them more than half must be there.
    pub quorum: Arc<[Address]>,
    /// The quorum that follows, once all have this topology: of these more than half must be there as well.
    pub quorum_to_be: Option<Arc<[Address]>>,
    /// Members that the next topology is without. They count as lost for whoever goes on from this one.
    pub forgone: Arc<[Address]>,
    /// Under which ballot this history went on last with enough members. Of two that were made apart, the one with the
    /// higher ballot has all that was acknowledged.
    pub ballot: Ballot,
    /// What may be used.
    pub availability: Availability,
    /// The id of the last topology of this history that was available.
    pub available: u32,
    /// The member that has begun the cache. It stays the same for as long as there is something of it, through all
    /// lives: what another beginner has made is another cache.
    pub origin: Address,
    /// Where the lines of this history begin, in their order. The last ones of many.
    pub lines: Arc<[Line]>,
    /// Which history this is: the first topology, and those that went on without members that may have gone on, too.
    /// The last ones of many.
    pub partings: Arc<[Parting]>,
    /// The last partings of sides that have been merged into this one.
    pub merged: Arc<[Parting]>,
    /// Sides whose entries are being merged into this one.
    pub merging: Arc<[Side]>,
}

impl Membership {
    /// A new member.
    pub(crate) fn new(member: CacheMember, since: u32) -> Self {
        Self { member, since, listening: None, formerly: None }
    }
}

impl Topology {
    /// The first topology of a cache.
    pub fn first(id: u32, member: CacheMember, owner_count: u16, segment_count: u16) -> Self {
        let quorum = Arc::from([member.address.clone()]);
        let membership = Membership::new(member.clone(), id);
        let line = Line { id, by: member.address.clone() };
        let root = Parting { id, by: member.address.clone() };
        Self {
            origin: member.address.clone(),
            id,
            phase: Phase::Stable,
            members: Arc::from([membership]),
            current: ConsistentHash::new(vec![member.clone()], owner_count, segment_count),
            pending: None,
            rebalance: 0,
            epochs: vec![id; segment_count.into()].into(),
            reigns: vec![id; segment_count.into()].into(),
            quorum,
            quorum_to_be: None,
            forgone: Arc::from([]),
            ballot: Ballot { number: 0, by: member.address },
            availability: Availability::Available,
            available: id,
            lines: Arc::from([line]),
            partings: Arc::from([root]),
            merged: Arc::from([]),
            merging: Arc::from([]),
        }
    }

    /// It goes on without members that may have gone on without it.
    pub(crate) fn part(&mut self, by: &Address) {
        let parting = Parting { id: self.id, by: by.clone() };
        self.partings = last_of(self.partings.iter().cloned().chain([parting]), PARTINGS_MAX);
    }

    /// Somebody may go on with what was before: what is written from now on is told apart from that.
    pub(crate) fn begin_line(&mut self, by: &Address) {
        let line = Line { id: self.id, by: by.clone() };
        if self.lines.last() == Some(&line) {
            return;
        }
        self.lines = last_of(self.lines.iter().cloned().chain([line]), LINES_MAX);
    }

    /// Takes in the members of a side, whose entries are to be merged.
    pub(crate) fn take_in(&mut self, side: Side, members: Vec<CacheMember>) {
        let since = side.since;
        let others = members.into_iter().map(|member| Membership::new(member, since));
        self.members = self.members.iter().cloned().chain(others).collect();
        self.merged = last_of(self.merged.iter().cloned().chain(side.partings.last().cloned()), PARTINGS_MAX);
        self.merging = self.merging.iter().cloned().chain([side]).collect();
    }

    /// Whether this is of the same history as the other or of one that was merged into it, and older.
    pub(crate) fn is_behind(&self, other: &Self) -> bool {
        let Some(last) = self.partings.last() else { return false };
        if other.partings.last() == Some(last) {
            return self.id < other.id;
        }
        other.partings.contains(last) || other.merged.contains(last) && self.ballot < other.ballot
    }

    /// A successor under another id, in which `change` has changed what it likes; the epochs, the reigns and what was
    /// available last follow.
    #[must_use]
    pub fn succeeded(&self, id: u32, change: impl FnOnce(&mut Self)) -> Self {
        let mut next = Self { id, ..self.clone() };
        change(&mut next);
        if next.availability == Availability::Available {
            next.available = id;
            // What those who were away have missed nobody knows, nor what others have done there; and what a merge has
            // brought was not told.
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
        next.reigns = changed(&self.reigns, &|segment| old.primary(segment) == new.primary(segment));
        let is_told_alike = self.listening().eq(next.listening());
        next.epochs = changed(&self.epochs, &|segment| {
            is_told_alike
                && old.primary(segment) == new.primary(segment)
                && old.owners(segment).len() == new.owners(segment).len()
                && old.owners(segment).all(|owner| new.owners(segment).any(|other| other == owner))
        });
        next
    }

    /// Who is read; the first is the primary.
    pub fn read_owners(&self) -> &ConsistentHash {
        match (&self.pending, self.phase) {
            (Some(pending), Phase::ReadNewWriteAll) => pending,
            _ => &self.current,
        }
    }

    /// Who is written; the first is the primary.
    pub fn write_owners(&self) -> ConsistentHash {
        match (&self.pending, self.phase) {
            (Some(pending), Phase::ReadNewWriteAll) => pending.union(&self.current),
            (Some(pending), _) => self.current.union(pending),
            (None, _) => self.current.clone(),
        }
    }

    /// Whether a segment was to move, and all are gone for good who had it.
    pub(crate) fn is_orphaned(&self, segment: Segment) -> bool {
        self.phase == Phase::ReadOldWriteAll && self.current.owners(segment).len() == 0
    }

    /// Who gives a segment to those who are to own it.
    pub(crate) fn givers(&self, segment: Segment) -> impl Iterator<Item = &Address> {
        let heirs = self.pending.as_ref().filter(|_| self.is_orphaned(segment));
        heirs.unwrap_or(&self.current).owners(segment)
    }

    /// Whether it is a member.
    pub fn contains(&self, member: &Address) -> bool {
        self.membership(member).is_some()
    }

    /// A member's membership.
    pub fn membership(&self, member: &Address) -> Option<&Membership> {
        self.members.iter().find(|other| other.member.address == *member)
    }

    /// The members' addresses.
    pub fn addresses(&self) -> impl Iterator<Item = &Address> {
        self.members.iter().map(|membership| &membership.member.address)
    }

    /// The members that are here and have listeners.
    pub fn listening(&self) -> impl Iterator<Item = (&Address, Listening)> {
        let of = |one: &Membership| one.listening;
        let listening = self.members.iter().filter_map(move |one| Some((&one.member.address, of(one)?)));
        listening.filter(|(member, _)| !self.away().contains(member))
    }

    /// What a member is told.
    pub fn interest(&self, member: &Address) -> Interest {
        let listening = self.membership(member).and_then(|membership| membership.listening);
        listening.map_or(Interest::Nothing, |listening| listening.interest)
    }

    /// Has a member be told something else from now on.
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

    /// The cache has begun again: who its members were is of no use any more.
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

    /// With which topology a segment's write owners last changed.
    pub fn epoch(&self, segment: Segment) -> u32 {
        self.epochs[usize::from(segment.0)]
    }

    /// With which topology a segment's primary last changed.
    pub fn reign(&self, segment: Segment) -> u32 {
        self.reigns[usize::from(segment.0)]
    }

    /// Takes the members out that are being left out, in whatever phase.
    pub(crate) fn leave_out(&mut self) {
        let forgone = std::mem::take(&mut self.forgone);
        let is_gone = |member: &Address| forgone.contains(member);
        let members = self.members.iter().filter(|one| !is_gone(&one.member.address));
        self.members = members.cloned().collect();
        self.current = self.current.without(is_gone);
        // What only those who are gone were to have stays where it is.
        let current = &self.current;
        self.pending = self.pending.as_ref().map(|pending| pending.without(is_gone).or(current));
        self.availability = Availability::Available;
    }

    /// The sets of members of each of which more than half must be there.
    pub(crate) fn quorums(&self) -> impl Iterator<Item = &Arc<[Address]>> {
        std::iter::once(&self.quorum).chain(&self.quorum_to_be)
    }

    /// Members that are away or are being left out.
    pub(crate) fn absent(&self) -> impl Iterator<Item = &Address> {
        self.away().iter().chain(self.forgone.iter())
    }

    /// Whether all members but this one are away, and of each segment that it is read of one of them is read as well.
    pub(crate) fn is_kept_without(&self, member: &Address) -> bool {
        let readers = self.read_owners();
        let is_kept = |segment| readers.owners(segment).any(|owner| self.away().contains(owner));
        self.addresses().all(|one| one == member || self.away().contains(one))
            && readers.segments_of(member).all(is_kept)
    }

    /// Owners that are away, if it is degraded.
    pub fn away(&self) -> &[Address] {
        match &self.availability {
            Availability::Available => &[],
            Availability::Degraded { away } => away,
        }
    }
}

/// The last ones of many.
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
            assert_eq!(copying.reign(segment), 1, "who is read stays primary");
            let has_moved = target.primary(segment) != alone.current.primary(segment);
            assert_eq!(switching.reign(segment), if has_moved { 3 } else { 1 });
            assert_eq!(switching.epoch(segment), if has_moved { 3 } else { 2 });
            let is_left = !target.owners(segment).any(|owner| *owner == member(1).address);
            assert_eq!(stable.epoch(segment), if is_left { 4 } else { switching.epoch(segment) });
            assert_eq!(stable.reign(segment), switching.reign(segment));
        }
    }
}
