//! When entries of a segment may have expired.
//!
//! One deadline per entry that has a lifetime, in order: the next one is at hand, and one that is no longer wanted is
//! taken out, so that writing a key over and over leaves nothing behind. A read does not move the deadline of an entry
//! with a `max_idle`; when it comes, the entry says how much longer it lives and is put back.

use std::collections::BTreeSet;

use consort_group::Time;

/// Deadlines by time, then slot.
pub(super) struct Timers {
    deadlines: BTreeSet<(Time, u32)>,
}

impl Timers {
    pub(super) const fn new() -> Self {
        Self { deadlines: BTreeSet::new() }
    }

    pub(super) fn set(&mut self, slot: u32, deadline: Time) {
        self.deadlines.insert((deadline, slot));
    }

    pub(super) fn cancel(&mut self, slot: u32, deadline: Time) {
        let was_set = self.deadlines.remove(&(deadline, slot));
        debug_assert!(was_set, "an entry with a lifetime has its deadline");
    }

    pub(super) fn next(&self) -> Option<Time> {
        self.deadlines.first().map(|&(deadline, _)| deadline)
    }

    /// Takes the first deadline if it has come.
    pub(super) fn take_due(&mut self, now: Time) -> Option<u32> {
        (self.next()? <= now).then(|| self.deadlines.pop_first())?.map(|(_, slot)| slot)
    }
}
