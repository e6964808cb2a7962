//! A stack's timers, as (deadline, layer, key): equal deadlines fire in that order.

use std::collections::{BTreeMap, BTreeSet};

use crate::Time;

/// A timer's key within its layer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TimerKey(pub u64);

/// All armed timers.
#[derive(Default, Debug)]
pub struct Timers {
    by_time: BTreeSet<(Time, u16, TimerKey)>,
    by_key: BTreeMap<(u16, TimerKey), Time>,
}

impl Timers {
    /// Arms or rearms a timer.
    pub fn arm(&mut self, layer: u16, key: TimerKey, at: Time) {
        if let Some(old) = self.by_key.insert((layer, key), at) {
            self.by_time.remove(&(old, layer, key));
        }
        self.by_time.insert((at, layer, key));
    }

    /// Disarms a timer.
    pub fn disarm(&mut self, layer: u16, key: TimerKey) {
        if let Some(old) = self.by_key.remove(&(layer, key)) {
            self.by_time.remove(&(old, layer, key));
        }
    }

    /// Disarms all timers.
    pub fn clear(&mut self) {
        self.by_time.clear();
        self.by_key.clear();
    }

    /// Returns whether a timer is armed.
    pub fn is_armed(&self, layer: u16, key: TimerKey) -> bool {
        self.by_key.contains_key(&(layer, key))
    }

    /// Returns the earliest deadline.
    pub fn next(&self) -> Option<Time> {
        self.by_time.first().map(|&(at, _, _)| at)
    }

    /// Returns the number of due timers.
    pub fn due(&self, now: Time) -> usize {
        self.by_time.range(..=(now, u16::MAX, TimerKey(u64::MAX))).count()
    }

    /// Takes the first due timer.
    pub fn pop_due(&mut self, now: Time) -> Option<(u16, TimerKey)> {
        let &(at, layer, key) = self.by_time.first()?;
        if at > now {
            return None;
        }
        self.by_time.pop_first();
        self.by_key.remove(&(layer, key));
        Some((layer, key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_deadlines_fire_in_layer_then_key_order() {
        let mut timers = Timers::default();
        timers.arm(2, TimerKey(0), Time(5));
        timers.arm(1, TimerKey(9), Time(5));
        timers.arm(1, TimerKey(3), Time(5));
        let mut fired = Vec::new();
        while let Some(timer) = timers.pop_due(Time(5)) {
            fired.push(timer);
        }
        assert_eq!(fired, [(1, TimerKey(3)), (1, TimerKey(9)), (2, TimerKey(0))]);
    }

    #[test]
    fn arming_again_replaces_the_deadline() {
        let mut timers = Timers::default();
        timers.arm(0, TimerKey(1), Time(5));
        timers.arm(0, TimerKey(1), Time(50));
        assert_eq!(timers.pop_due(Time(10)), None);
        assert_eq!(timers.next(), Some(Time(50)));
        timers.disarm(0, TimerKey(1));
        assert_eq!(timers.next(), None);
    }
}
