//! The value of a counter and its changes (facts section 2.14; bounds as in Infinispan).
//!
//! A change beyond a bound stops there; the bound counts as reached until the value leaves it. Without bounds, or with bounds of
//! 64 bits, a counter stops at the ends of its numbers.

use bytes::{Buf, BufMut, Bytes};
use consort_hotrod::ops::counter::{CounterConfig, CounterKind};
use consort_hotrod::ops::event::CounterState;

pub(crate) type Value = (i64, CounterState);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Counter {
    pub(crate) config: CounterConfig,
    pub(crate) now: Value,
    /// The value before the last change, for listeners.
    pub(crate) before: Value,
    /// As in Infinispan, a removed counter has its initial value and stays defined until its name is needed.
    pub(crate) is_removed: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OutOfBounds;

pub(crate) type Changed = (Option<Counter>, Result<i64, OutOfBounds>);

impl Counter {
    pub(crate) fn new(config: CounterConfig) -> Option<Self> {
        let initial = (config.initial, CounterState::Valid);
        let counter = Self { config, now: initial, before: initial, is_removed: false };
        let (lower, upper) = counter.bounds();
        let is_weak_enough = !matches!(config.kind, CounterKind::Weak { concurrency: 0 });
        ((lower..=upper).contains(&config.initial) && is_weak_enough).then_some(counter)
    }

    pub(crate) const fn is_strong(&self) -> bool {
        !matches!(self.config.kind, CounterKind::Weak { .. })
    }

    const fn bounds(&self) -> (i64, i64) {
        match self.config.kind {
            CounterKind::Bounded { lower, upper } => (lower, upper),
            CounterKind::Strong | CounterKind::Weak { .. } => (i64::MIN, i64::MAX),
        }
    }

    fn with(self, now: Value) -> Option<Self> {
        (now != self.now || self.is_removed).then_some(Self {
            now,
            before: self.now,
            is_removed: false,
            ..self
        })
    }

    /// Returns the new value; that of a weak counter has no meaning.
    pub(crate) fn added(self, delta: i64) -> Changed {
        let (lower, upper) = self.bounds();
        let sum = self.now.0.saturating_add(delta);
        let exact = self.now.0.checked_add(delta);
        let now = match exact {
            _ if delta == 0 => self.now,
            Some(sum) if (lower..=upper).contains(&sum) => (sum, CounterState::Valid),
            _ if !matches!(self.config.kind, CounterKind::Bounded { .. }) => (sum, CounterState::Valid),
            _ if delta > 0 => (upper, CounterState::UpperBound),
            _ => (lower, CounterState::LowerBound),
        };
        let answer = match now.1 {
            CounterState::Valid if self.is_strong() => Ok(now.0),
            CounterState::Valid => Ok(0),
            CounterState::LowerBound | CounterState::UpperBound => Err(OutOfBounds),
        };
        (self.with(now), answer)
    }

    /// Returns the previous value.
    pub(crate) fn swapped(self, expected: i64, update: i64) -> Changed {
        if self.now.0 == expected { self.set(update) } else { (None, Ok(self.now.0)) }
    }

    pub(crate) fn set(self, value: i64) -> Changed {
        let (lower, upper) = self.bounds();
        if !(lower..=upper).contains(&value) {
            return (None, Err(OutOfBounds));
        }
        (self.with((value, CounterState::Valid)), Ok(self.now.0))
    }

    pub(crate) fn reset(self) -> Changed {
        (self.with((self.config.initial, CounterState::Valid)), Ok(self.config.initial))
    }

    pub(crate) fn removed(self) -> Changed {
        let now = (self.config.initial, CounterState::Valid);
        let removed = Self { now, before: self.now, is_removed: true, ..self };
        ((!self.is_removed).then_some(removed), Ok(self.config.initial))
    }

    pub(crate) fn to_bytes(self) -> Bytes {
        let mut bytes = Vec::with_capacity(SIZE);
        let (kind, first, second) = match self.config.kind {
            CounterKind::Strong => (STRONG, 0, 0),
            CounterKind::Bounded { lower, upper } => (BOUNDED, lower, upper),
            CounterKind::Weak { concurrency } => (WEAK, concurrency.into(), 0),
        };
        let is_removed = if self.is_removed { REMOVED } else { 0 };
        bytes.extend_from_slice(&[LAYOUT, kind, u8::from(self.config.is_persistent) | is_removed]);
        for number in [first, second, self.config.initial] {
            bytes.put_i64(number);
        }
        for (number, state) in [self.now, self.before] {
            bytes.put_i64(number);
            bytes.put_u8(state as u8);
        }
        bytes.into()
    }

    /// `None` if another version of this program has written it.
    pub(crate) fn from_bytes(mut bytes: &[u8]) -> Option<Self> {
        if bytes.len() != SIZE || bytes.get_u8() != LAYOUT {
            return None;
        }
        let (kind, flags) = (bytes.get_u8(), bytes.get_u8());
        let (is_persistent, is_removed) = (flags & PERSISTENT != 0, flags & REMOVED != 0);
        let (first, second) = (bytes.get_i64(), bytes.get_i64());
        let kind = match kind {
            STRONG => CounterKind::Strong,
            BOUNDED => CounterKind::Bounded { lower: first, upper: second },
            WEAK => CounterKind::Weak { concurrency: u32::try_from(first).ok()? },
            _ => return None,
        };
        let config = CounterConfig { kind, is_persistent, initial: bytes.get_i64() };
        let mut value = || {
            let number = bytes.get_i64();
            Some(match bytes.get_u8() {
                0 => (number, CounterState::Valid),
                1 => (number, CounterState::LowerBound),
                2 => (number, CounterState::UpperBound),
                _ => return None,
            })
        };
        Some(Self { config, now: value()?, before: value()?, is_removed })
    }
}

/// The first byte, so that other layouts can follow.
const LAYOUT: u8 = 1;
/// The bits of the third byte. Earlier servers read each of them as persistent.
const PERSISTENT: u8 = 1;
const REMOVED: u8 = 2;
const STRONG: u8 = 0;
const BOUNDED: u8 = 1;
const WEAK: u8 = 2;
const SIZE: usize = 3 + 3 * 8 + 2 * 9;

#[cfg(test)]
mod tests {
    use super::*;

    fn counter(kind: CounterKind, initial: i64) -> Counter {
        Counter::new(CounterConfig { kind, is_persistent: false, initial }).unwrap()
    }

    #[test]
    fn addition_beyond_a_bound_stops_at_the_bound() {
        let bounded = counter(CounterKind::Bounded { lower: -2, upper: 10 }, 8);
        let (at_bound, answer) = bounded.added(2);
        assert_eq!((at_bound.unwrap().now, answer), ((10, CounterState::Valid), Ok(10)));
        let (reached, answer) = at_bound.unwrap().added(1);
        let reached = reached.unwrap();
        assert_eq!((reached.now, answer), ((10, CounterState::UpperBound), Err(OutOfBounds)));
        assert_eq!(reached.before, (10, CounterState::Valid));
        assert_eq!(reached.added(5), (None, Err(OutOfBounds)));
        let (back, answer) = reached.added(-1);
        assert_eq!((back.unwrap().now, answer), ((9, CounterState::Valid), Ok(9)));
        let (low, answer) = back.unwrap().added(i64::MIN);
        assert_eq!((low.unwrap().now, answer), ((-2, CounterState::LowerBound), Err(OutOfBounds)));
        assert_eq!(low.unwrap().reset().0.unwrap().now, (8, CounterState::Valid));
    }

    #[test]
    fn value_outside_the_bounds_is_not_set() {
        let bounded = counter(CounterKind::Bounded { lower: 0, upper: 10 }, 5);
        assert_eq!(bounded.set(11), (None, Err(OutOfBounds)));
        assert_eq!(bounded.swapped(5, -1), (None, Err(OutOfBounds)));
        assert_eq!(bounded.swapped(4, -1), (None, Ok(5)), "another value comes first");
        let (swapped, answer) = bounded.swapped(5, 10);
        assert_eq!((swapped.unwrap().now.0, answer), (10, Ok(5)));
        assert_eq!(bounded.set(5), (None, Ok(5)), "nothing has changed");
        let config = CounterConfig { initial: 11, ..bounded.config };
        assert_eq!(Counter::new(config), None);
    }

    #[test]
    fn removed_counter_has_its_initial_value_until_a_change() {
        let removed = counter(CounterKind::Strong, 5).added(2).0.unwrap().removed().0.unwrap();
        assert_eq!((removed.now.0, removed.is_removed), (5, true));
        assert_eq!(removed.removed().0, None, "it is removed");
        let changed = removed.added(1).0.unwrap();
        assert_eq!((changed.now.0, changed.is_removed), (6, false));
        let same = removed.set(5).0.unwrap();
        assert_eq!((same.now.0, same.is_removed), (5, false), "a client uses it again");
    }

    #[test]
    fn counter_without_bounds_stops_at_the_ends_of_its_numbers() {
        let strong = counter(CounterKind::Strong, i64::MAX - 1);
        let (most, answer) = strong.added(5);
        assert_eq!((most.unwrap().now, answer), ((i64::MAX, CounterState::Valid), Ok(i64::MAX)));
        assert_eq!(most.unwrap().added(5), (None, Ok(i64::MAX)));
        let weak = counter(CounterKind::Weak { concurrency: 16 }, 3);
        let (added, answer) = weak.added(4);
        assert_eq!((added.unwrap().now.0, answer), (7, Ok(0)));
    }

    #[test]
    fn stored_counter_is_read_back() {
        for kind in [
            CounterKind::Strong,
            CounterKind::Bounded { lower: i64::MIN, upper: -3 },
            CounterKind::Weak { concurrency: u32::MAX },
        ] {
            let config = CounterConfig { kind, is_persistent: true, initial: -5 };
            let changed = Counter::new(config).unwrap().added(i64::MAX).0.unwrap();
            let removed = changed.removed().0.unwrap();
            for counter in [changed, removed] {
                assert_eq!(Counter::from_bytes(&counter.to_bytes()), Some(counter));
            }
        }
        assert_eq!(Counter::from_bytes(&[LAYOUT; 4]), None);
    }
}
