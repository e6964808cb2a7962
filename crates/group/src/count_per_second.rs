use std::time::Duration;

use crate::Time;

/// The number of events in a second, for limits of costly work. A second begins with the first check after the previous one has
/// ended.
#[derive(Clone, Copy, Default, Debug)]
pub struct CountPerSecond {
    since: Time,
    count: u32,
}

impl CountPerSecond {
    /// Counts an event if the second has fewer than this limit, and returns whether it did.
    pub fn try_add(&mut self, now: Time, limit: u32) -> bool {
        let is_added = self.has_fewer(now, limit);
        if is_added {
            self.add();
        }
        is_added
    }

    /// Returns whether the second has fewer events than this limit. Only failures of the work are counted then.
    pub fn has_fewer(&mut self, now: Time, limit: u32) -> bool {
        if now.since(self.since) >= Duration::from_secs(1) {
            *self = Self { since: now, count: 0 };
        }
        self.count < limit
    }

    /// Counts an event.
    pub const fn add(&mut self) {
        self.count = self.count.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_counted_anew_each_second() {
        let (mut count, begin) = (CountPerSecond::default(), Time::ZERO + Duration::from_secs(9));
        for _ in 0..2 {
            assert!(count.try_add(begin, 2));
        }
        assert!(!count.try_add(begin + Duration::from_millis(999), 2));
        assert!(!count.has_fewer(begin + Duration::from_millis(999), 2));
        let next = begin + Duration::from_secs(1);
        assert!(count.has_fewer(next, 1) && count.try_add(next, 1) && !count.has_fewer(next, 1));
    }
}
