use std::time::Duration;

use crate::Time;

/// The number of events in a second, for limits of costly work. A second begins with the first event after the last one's end.
#[derive(Clone, Copy, Default, Debug)]
pub struct CountPerSecond {
    since: Time,
    count: u32,
}

impl CountPerSecond {
    /// Returns whether the second has fewer events than this limit.
    pub fn is_below(&mut self, now: Time, limit: u32) -> bool {
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
            assert!(count.is_below(begin, 2));
            count.add();
        }
        assert!(!count.is_below(begin + Duration::from_millis(999), 2));
        assert!(count.is_below(begin + Duration::from_secs(1), 2));
    }
}
