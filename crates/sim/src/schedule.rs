//! Future events in the order of virtual time.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use consort_group::Time;

struct Entry<T> {
    at: Time,
    nth: u64,
    what: T,
}

impl<T> PartialEq for Entry<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<T> Eq for Entry<T> {}

impl<T> PartialOrd for Entry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Entry<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.nth).cmp(&(other.at, other.nth))
    }
}

/// Events at their times. Events of one time keep the order of their addition, so that a run is repeatable.
pub struct Schedule<T> {
    heap: BinaryHeap<Reverse<Entry<T>>>,
    added: u64,
}

impl<T> Default for Schedule<T> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), added: 0 }
    }
}

impl<T> Schedule<T> {
    /// Adds an event at this time.
    pub fn add(&mut self, at: Time, what: T) {
        self.added += 1;
        self.heap.push(Reverse(Entry { at, nth: self.added, what }));
    }

    /// Takes the next event, unless it is after `until`.
    pub fn take(&mut self, until: Time) -> Option<(Time, T)> {
        self.heap.peek().filter(|Reverse(entry)| entry.at <= until)?;
        self.heap.pop().map(|Reverse(entry)| (entry.at, entry.what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn things_happen_in_order_of_time_and_then_of_addition() {
        let mut schedule = Schedule::default();
        for (at, what) in [(5, 'c'), (1, 'a'), (5, 'd'), (1, 'b'), (9, 'e')] {
            schedule.add(Time(at), what);
        }
        let until_5: String = std::iter::from_fn(|| schedule.take(Time(5))).map(|(_, what)| what).collect();
        assert_eq!(until_5, "abcd");
        assert_eq!(schedule.take(Time(9)), Some((Time(9), 'e')));
        assert_eq!(schedule.take(Time(9)), None);
    }
}
