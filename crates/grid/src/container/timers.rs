//! The deadlines at which entries may have expired: one per entry with a lifetime. A deadline that is no
//! longer needed is removed, so that repeated writes of a key leave none behind. A read does not move the
//! deadline of an entry with a `max_idle`; the new one is computed at the deadline.

use std::collections::BTreeSet;

use consort_group::Time;

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

    pub(super) fn take_due(&mut self, now: Time) -> Option<u32> {
        (self.next()? <= now).then(|| self.deadlines.pop_first())?.map(|(_, slot)| slot)
    }
}
