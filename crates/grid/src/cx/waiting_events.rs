//! Bytes of events that wait for slow readers of listeners, of all caches together.
//!
//! Each listener has its own limit; beyond the limit of their sum, a listener with more than an equal share
//! loses its events and receives a gap event, so that fast readers lose none. Beyond twice the limit any
//! listener does. Present entries count and are not refused: each listener has one batch of an iteration at a
//! time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::event::Event;

/// The limit of event bytes that wait for all listeners of a member. Each event counts its size, key and
/// values, even if listeners share them.
pub const LISTENERS_BYTES_MAX: u64 = 64 * 1024 * 1024;

#[derive(Clone, Debug, Default)]
pub(crate) struct WaitingEvents(Arc<Sum>);

#[derive(Debug, Default)]
struct Sum {
    bytes: AtomicU64,
    /// Listeners with waiting events.
    parts: AtomicU64,
}

impl WaitingEvents {
    pub(crate) fn bytes(&self) -> u64 {
        self.0.bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn part(&self) -> Part {
        Part { of: self.clone(), bytes: 0 }
    }
}

#[derive(Debug)]
pub(crate) struct Part {
    of: WaitingEvents,
    bytes: u64,
}

impl Part {
    pub(crate) fn set(&mut self, bytes: u64) {
        let Sum { bytes: sum, parts } = &*self.of.0;
        sum.fetch_add(bytes, Ordering::Relaxed);
        sum.fetch_sub(self.bytes, Ordering::Relaxed);
        match (self.bytes, bytes) {
            (0, 1..) => drop(parts.fetch_add(1, Ordering::Relaxed)),
            (1.., 0) => drop(parts.fetch_sub(1, Ordering::Relaxed)),
            _ => {}
        }
        self.bytes = bytes;
    }

    /// Whether all listeners exceed the limit and this one must drop its events.
    pub(crate) fn is_too_large(&self) -> bool {
        let sum = self.of.bytes();
        let parts = self.of.0.parts.load(Ordering::Relaxed).max(1);
        sum > LISTENERS_BYTES_MAX && self.bytes > LISTENERS_BYTES_MAX / parts || sum > 2 * LISTENERS_BYTES_MAX
    }

    pub(crate) fn take(&mut self) -> Self {
        let empty = self.of.part();
        std::mem::replace(self, empty)
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// Events that a reader has taken. Their bytes count as waiting until the last is returned or this is
/// dropped.
#[derive(Debug)]
pub struct TakenEvents {
    events: std::vec::IntoIter<Event>,
    part: Option<Part>,
}

impl TakenEvents {
    pub(crate) fn new(events: Vec<Event>, part: Part) -> Self {
        Self { events: events.into_iter(), part: Some(part) }
    }

    /// Returns an empty batch.
    pub fn empty() -> Self {
        Self { events: Vec::new().into_iter(), part: None }
    }

    /// Whether no events remain.
    pub fn is_empty(&self) -> bool {
        self.events.as_slice().is_empty()
    }

    /// Returns the remaining events.
    pub fn as_slice(&self) -> &[Event] {
        self.events.as_slice()
    }
}

impl Iterator for TakenEvents {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        let event = self.events.next();
        if event.is_none() {
            self.part = None;
        }
        event
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_too_large_if_it_has_more_than_its_share_of_a_sum_that_is_exceeded() {
        let all = WaitingEvents::default();
        let (mut slow, mut fast) = (all.part(), all.part());
        slow.set(LISTENERS_BYTES_MAX);
        assert!(!slow.is_too_large());
        fast.set(1_000);
        assert!(slow.is_too_large() && !fast.is_too_large());
        slow.set(2 * LISTENERS_BYTES_MAX);
        assert!(fast.is_too_large(), "beyond twice the sum nothing more waits");
        let taken = TakenEvents::new(Vec::new(), slow.take());
        assert_eq!(all.bytes(), 2 * LISTENERS_BYTES_MAX + 1_000, "what was taken counts");
        drop(taken);
        slow.set(10);
        assert_eq!(all.bytes(), 1_010);
        drop((slow, fast));
        assert_eq!((all.bytes(), all.0.parts.load(Ordering::Relaxed)), (0, 0));
    }
}
