//! One listener: its waiting events, and how present entries and changes become one sequence in the order of
//! each key's versions.
//!
//! An entry that is read after its key has changed is dropped unless it is newer (`changed`). An entry read
//! before its change arrives is delivered as existing, and the change is dropped (`ahead`).

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use consort_group::Time;

use crate::catch_panic::{Panicked, catch_panic};
use crate::cx::waiting_events::{Part, TakenEvents};
use crate::event::{EVENT_BYTES_MAX, EntryEvent, Event, EventKind, ListenOptions, Scope};
use crate::publication::{IterationId, TransformFn};
use crate::{Entry, Interest, Version};

/// The limit of keys that change while the present entries are read. Beyond it they are read again, which is reported as a gap.
const CHANGED_MAX: usize = 65_536;

/// The limit of keys read before their change has arrived: as many as there are writes under way. Beyond it a
/// key may be delivered as existing and, with the same version, as changed.
const AHEAD_MAX: usize = 65_536;

pub(crate) struct Listener {
    pub(crate) options: ListenOptions,
    function: Option<(Arc<TransformFn>, Bytes)>,
    queue: VecDeque<Event>,
    queued_bytes: usize,
    part: Part,
    pub(crate) walk: Walk,
    changed: BTreeMap<Bytes, Version>,
    ahead: BTreeMap<Bytes, Version>,
    /// The bytes of the keys in `changed` and `ahead`, with the size of their places there.
    noted_bytes: usize,
    pub(crate) is_ready: bool,
    pub(crate) is_interrupted: bool,
    pub(crate) is_awaited: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Walk {
    Wanted,
    Under(IterationId),
    Over,
}

impl Listener {
    pub(crate) fn new(options: ListenOptions, function: Option<Arc<TransformFn>>, part: Part) -> Self {
        let arguments = options.transform.as_ref().map(|transform| transform.arguments.clone());
        Self {
            walk: if options.with_state { Walk::Wanted } else { Walk::Over },
            function: function.zip(arguments),
            options,
            queue: VecDeque::new(),
            queued_bytes: 0,
            part,
            changed: BTreeMap::new(),
            ahead: BTreeMap::new(),
            noted_bytes: 0,
            is_ready: false,
            is_interrupted: false,
            is_awaited: false,
        }
    }

    pub(crate) fn is_clustered(&self) -> bool {
        self.options.scope == Scope::Cluster
    }

    pub(crate) fn interest(&self) -> Interest {
        match self.wants_values() {
            _ if self.wants_previous() => Interest::Previous,
            true => Interest::Entries,
            false => Interest::Keys,
        }
    }

    fn wants_values(&self) -> bool {
        self.options.with_values || self.function.is_some()
    }

    fn wants_previous(&self) -> bool {
        self.options.with_previous && self.function.is_none()
    }

    /// Returns the iteration to cancel, if the limits were exceeded.
    pub(crate) fn offer(&mut self, now: Time, told: &EntryEvent) -> Option<IterationId> {
        if let Some(ahead) = self.ahead.get(&told.key).copied() {
            if ahead <= told.version && self.ahead.remove(&told.key).is_some() {
                self.noted_bytes -= noted_bytes(&told.key);
            }
            if told.version <= ahead {
                return None;
            }
        }
        if self.walk != Walk::Over {
            if self.changed.insert(told.key.clone(), told.version).is_none() {
                self.noted_bytes += noted_bytes(&told.key);
            }
            if self.changed.len() > CHANGED_MAX {
                return self.interrupt();
            }
        }
        let value = match &self.function {
            Some((function, arguments)) => {
                let entry = Entry::new(told.value.clone().unwrap_or_default(), told.version, now);
                match catch_panic(|| function(&told.key, &entry, arguments)) {
                    Ok(Some(value)) => Some(value),
                    Ok(None) => return None,
                    Err(Panicked) => return self.interrupt(),
                }
            }
            None => told.value.clone().filter(|_| self.options.with_values),
        };
        let previous = told.previous.clone().filter(|_| self.wants_previous());
        self.push(EntryEvent { value, previous, ..told.clone() });
        let is_full = self.queue.len() > self.options.events_max.max(1)
            || self.queued_bytes > EVENT_BYTES_MAX && self.queue.len() > 1
            || self.part.is_too_large();
        if !is_full {
            return None;
        }
        self.queue.clear();
        self.queued_bytes = 0;
        self.interrupt()
    }

    fn count(&mut self) {
        self.part.set((self.queued_bytes + self.queue.len() * size_of::<Event>() + self.noted_bytes) as u64);
    }

    /// `told` is the newest version of its segment that was delivered here.
    pub(crate) fn offer_existing(&mut self, key: Bytes, value: Bytes, version: Version, told: Version) {
        if self.changed.get(&key).is_some_and(|changed| *changed >= version) {
            return;
        }
        if version > told && self.is_clustered() {
            if self.ahead.len() >= AHEAD_MAX {
                self.noted_bytes -= self.ahead.keys().map(noted_bytes).sum::<usize>();
                self.ahead.clear();
            }
            if self.ahead.insert(key.clone(), version).is_none() {
                self.noted_bytes += noted_bytes(&key);
            }
        }
        let value = self.wants_values().then_some(value);
        self.push(EntryEvent { kind: EventKind::Existing, key, value, previous: None, version });
    }

    fn push(&mut self, event: EntryEvent) {
        let previous = event.previous.as_ref().map_or(0, |previous| previous.value.len());
        self.queued_bytes += event.key.len() + event.value.as_ref().map_or(0, Bytes::len) + previous;
        self.queue.push_back(Event::Entry(event));
        self.count();
    }

    pub(crate) fn complete(&mut self) {
        self.walk = Walk::Over;
        self.noted_bytes -= self.changed.keys().map(noted_bytes).sum::<usize>();
        self.changed.clear();
        self.queue.push_back(Event::Complete);
        self.count();
    }

    /// Earlier events may be missing. Returns the iteration to cancel.
    pub(crate) fn interrupt(&mut self) -> Option<IterationId> {
        if self.queue.back() != Some(&Event::Gap) {
            self.queue.push_back(Event::Gap);
        }
        self.changed.clear();
        self.ahead.clear();
        self.noted_bytes = 0;
        self.count();
        let walk = if self.options.with_state { Walk::Wanted } else { Walk::Over };
        match std::mem::replace(&mut self.walk, walk) {
            Walk::Under(id) => Some(id),
            Walk::Wanted | Walk::Over => None,
        }
    }

    pub(crate) fn has_events(&self) -> bool {
        !self.queue.is_empty()
    }

    pub(crate) fn drain(&mut self) -> TakenEvents {
        let noted_bytes = self.noted_bytes as u64;
        self.part.set((self.queued_bytes + self.queue.len() * size_of::<Event>()) as u64);
        self.queued_bytes = 0;
        let taken = TakenEvents::new(std::mem::take(&mut self.queue).into(), self.part.take());
        self.part.set(noted_bytes);
        taken
    }
}

/// Without other references to the same bytes.
fn noted_bytes(key: &Bytes) -> usize {
    key.len() + size_of::<(Bytes, Version)>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cx::waiting_events::{LISTENERS_BYTES_MAX, WaitingEvents};

    fn written(number: u64) -> EntryEvent {
        EntryEvent {
            kind: EventKind::Modified,
            key: Bytes::from(number.to_string()),
            value: Some(Bytes::from(vec![7; 1 << 20])),
            previous: None,
            version: Version::new(1, number),
        }
    }

    #[test]
    fn many_slow_readers_hold_a_bounded_sum_and_a_fast_one_is_told_of_everything() {
        let all = WaitingEvents::default();
        let options = ListenOptions { with_values: true, ..ListenOptions::default() };
        let listener = || Listener::new(options.clone(), None, all.part());
        let (mut slow, mut fast): (Vec<_>, _) = ((0..40).map(|_| listener()).collect(), listener());
        for number in 1..=30 {
            let event = written(number);
            for one in slow.iter_mut().chain([&mut fast]) {
                assert_eq!(one.offer(Time::ZERO, &event), None);
                assert!(all.bytes() <= 2 * LISTENERS_BYTES_MAX + (2 << 20), "{} bytes", all.bytes());
            }
            let told: Vec<Event> = fast.drain().collect();
            assert_eq!(told, [Event::Entry(event)]);
        }
        let has_gap = |one: &mut Listener| one.drain().any(|event| event == Event::Gap);
        assert!(slow.iter_mut().any(has_gap), "40 readers would have held 15 MiB each");
        drop((slow, fast));
        assert_eq!(all.bytes(), 0);
    }
}
