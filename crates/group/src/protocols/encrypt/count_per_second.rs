use std::time::Duration;

use crate::Time;

/// The number of events in a second.
#[derive(Default)]
pub(in crate::protocols) struct CountPerSecond {
    since: Time,
    count: u32,
}

impl CountPerSecond {
    pub(in crate::protocols) fn is_below(&mut self, now: Time, most: u32) -> bool {
        if now.since(self.since) >= Duration::from_secs(1) {
            *self = Self { since: now, count: 0 };
        }
        self.count < most
    }

    pub(in crate::protocols) const fn add(&mut self) {
        self.count = self.count.saturating_add(1);
    }
}
