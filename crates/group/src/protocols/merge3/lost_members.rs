//! Members that the view lost without a leave. The coordinator sends them announcements, so that partitions meet soon after
//! their network works again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::{Address, AddressBook, PhysAddr, Time, View};

/// Further ones meet at the pace of all members' announcements.
const LOST_MAX: usize = 1_000;

/// One that has been away longer hardly returns.
const LOST_FOR: Duration = Duration::from_hours(24);

/// An announcement to each of them would be a burst in a large cluster, and one that arrives is enough.
const ANNOUNCED_AT_ONCE: usize = 16;

/// The interval is this part of the time that the last member has been away, so that partitions of minutes meet within
/// seconds, and members that do not return cost less and less.
const PART_OF_ABSENCE: u32 = 300;

/// The longest interval, in terms of the shortest one.
const LONGEST: u32 = 10;

struct Lost {
    phys: PhysAddr,
    since: Time,
}

#[derive(Default)]
pub(super) struct LostMembers {
    members: BTreeMap<Address, Lost>,
    /// Members of the view whose crash is proven: they do not return.
    crashed: BTreeSet<Address>,
    /// The last that was announced to.
    last: Option<Address>,
    /// Members of earlier views, with the times of the views without them. Only the member that makes a view knows which of
    /// them were lost.
    former: BTreeMap<Address, Time>,
    view: Option<View>,
}

impl LostMembers {
    pub(super) fn note_crashed(&mut self, members: &[Address]) {
        self.crashed.extend(members.iter().cloned());
    }

    pub(super) fn note_lost(&mut self, now: Time, members: &[Address], book: &AddressBook) {
        for member in members {
            let phys = book.phys(member);
            if let Some(phys) = phys
                && !self.crashed.remove(member)
                && self.members.len() < LOST_MAX
            {
                self.members.insert(member.clone(), Lost { phys, since: now });
            }
        }
    }

    /// A member answered although its crash was taken for proven.
    pub(super) fn note_alive(&mut self, members: &[Address]) {
        self.crashed.retain(|member| !members.contains(member));
    }

    /// Whether this member shared a view with the other one, and may meet it again.
    pub(super) fn knows(&self, member: &Address) -> bool {
        self.members.contains_key(member) || self.former.contains_key(member)
    }

    /// Forgets members that have returned, and those at whose place another process is a member now.
    pub(super) fn follow(&mut self, now: Time, view: &View, book: &AddressBook) {
        self.former.retain(|member, since| !view.contains(member) && now.since(*since) < LOST_FOR);
        let before = self.view.replace(view.clone());
        for member in before.iter().flat_map(View::members).filter(|member| !view.contains(member)) {
            if self.former.len() < LOST_MAX {
                self.former.insert(member.clone(), now);
            }
        }
        let places: BTreeSet<PhysAddr> =
            view.members().iter().filter_map(|member| book.phys(member)).collect();
        self.members.retain(|member, lost| !view.contains(member) && !places.contains(&lost.phys));
        self.crashed.retain(|member| view.contains(member));
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(super) fn phys(&self, member: &Address) -> Option<PhysAddr> {
        self.members.get(member).map(|lost| lost.phys)
    }

    /// Returns the time to the next announcements, if there are lost members.
    pub(super) fn interval(&self, now: Time, shortest: Duration) -> Option<Duration> {
        let last = self.members.values().map(|lost| lost.since).max()?;
        Some((now.since(last) / PART_OF_ABSENCE).clamp(shortest, shortest.saturating_mul(LONGEST)))
    }

    /// Returns the addresses to announce to now, in turn.
    pub(super) fn take_turn(&mut self, now: Time) -> Vec<PhysAddr> {
        self.members.retain(|_, lost| now.since(lost.since) < LOST_FOR);
        let last = self.last.take();
        let is_later = |member: &Address| last.as_ref().is_some_and(|last| member > last);
        let later = self.members.iter().filter(|(member, _)| is_later(member));
        let earlier = self.members.iter().filter(|(member, _)| !is_later(member));
        let turn: Vec<(&Address, PhysAddr)> =
            later.chain(earlier).take(ANNOUNCED_AT_ONCE).map(|(member, lost)| (member, lost.phys)).collect();
        self.last = turn.last().map(|(member, _)| (*member).clone());
        turn.into_iter().map(|(_, phys)| phys).collect()
    }

    pub(super) fn len(&self) -> usize {
        self.members.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::{member, phys, view};

    const SHORTEST: Duration = Duration::from_secs(1);

    fn book(members: impl Iterator<Item = u64>) -> AddressBook {
        let mut book = AddressBook::default();
        for n in members {
            book.learn(&member(n), None, Some(phys(n as u16)));
        }
        book
    }

    #[test]
    fn crashed_and_returned_members_and_those_that_another_one_replaced_are_not_lost() {
        let mut lost = LostMembers::default();
        let mut book = book(1..=5);
        lost.note_crashed(&[member(2)]);
        lost.note_lost(Time::ZERO, &[member(2), member(3), member(4), member(5)], &book);
        assert_eq!(lost.take_turn(Time::ZERO), [phys(3), phys(4), phys(5)]);
        book.learn(&member(9), None, Some(phys(4)));
        lost.follow(Time::ZERO, &view(7, &[1, 3, 9]), &book);
        assert_eq!(lost.take_turn(Time::ZERO), [phys(5)]);
        assert_eq!(lost.phys(&member(5)), Some(phys(5)));
    }

    #[test]
    fn members_of_earlier_views_are_known_for_a_day() {
        let mut lost = LostMembers::default();
        lost.follow(Time::ZERO, &view(1, &[1, 2, 3]), &AddressBook::default());
        lost.follow(Time::ZERO, &view(2, &[1, 3]), &AddressBook::default());
        assert!(lost.knows(&member(2)) && !lost.knows(&member(3)) && !lost.knows(&member(9)));
        lost.follow(Time::ZERO + LOST_FOR, &view(3, &[1]), &AddressBook::default());
        assert!(!lost.knows(&member(2)) && lost.knows(&member(3)));
        lost.follow(Time::ZERO + LOST_FOR, &view(4, &[1, 3]), &AddressBook::default());
        assert!(!lost.knows(&member(3)), "it has returned");
    }

    #[test]
    fn members_are_lost_for_a_day_and_cost_less_and_less() {
        let mut lost = LostMembers::default();
        assert_eq!(lost.interval(Time::ZERO, SHORTEST), None);
        lost.note_lost(Time::ZERO, &[member(2)], &book(1..=2));
        let after = |minutes| lost.interval(Time::ZERO + Duration::from_mins(minutes), SHORTEST);
        assert_eq!(after(1), Some(SHORTEST));
        assert_eq!(after(10), Some(Duration::from_secs(2)));
        assert_eq!(after(600), Some(Duration::from_secs(10)));
        assert_eq!(lost.take_turn(Time::ZERO + LOST_FOR), []);
        assert_eq!(lost.len(), 0);
    }

    #[test]
    fn many_lost_members_are_announced_to_in_turn() {
        let mut lost = LostMembers::default();
        let all: Vec<Address> = (1..=40).map(member).collect();
        lost.note_lost(Time::ZERO, &all, &book(1..=40));
        let mut reached = BTreeSet::new();
        for _ in 0..3 {
            let turn = lost.take_turn(Time::ZERO);
            assert_eq!(turn.len(), ANNOUNCED_AT_ONCE);
            reached.extend(turn);
        }
        assert_eq!(reached.len(), 40);
        lost.note_lost(Time::ZERO, &(100..5_000).map(member).collect::<Vec<_>>(), &book(100..5_000));
        assert_eq!(lost.len(), LOST_MAX);
    }
}
