//! Runs of changes of different keys, separated by operations on many keys.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use super::callbacks::Callbacks;
use super::{Done, Task, WriterConfig};
use crate::entry::{Change, Entry, Segment};
use crate::error::StoreError;
use crate::store::Store;

#[derive(Default)]
pub(crate) struct Queue {
    items: VecDeque<Item>,
    last: HashMap<(Segment, Bytes), usize>,
    storing: HashMap<(Segment, Bytes), Change>,
    changes: usize,
    bytes: usize,
    pub(crate) is_closed: bool,
    pub(crate) is_scheduled: bool,
    pub(crate) waiting_for_room: Vec<Box<dyn FnOnce() + Send>>,
}

enum Item {
    Changes(Run),
    Order(Order),
}

#[derive(Default)]
struct Run {
    taken: usize,
    changes: VecDeque<(Change, Vec<Done>)>,
}

pub(crate) enum Order {
    RemoveSegment(Segment, Done),
    Clear(Done),
    Flush(Done),
    Run(Task),
}

pub(crate) struct Batch {
    pub(crate) changes: Vec<Change>,
    pub(crate) done: Vec<Vec<Done>>,
    pub(crate) bytes: usize,
}

pub(crate) enum Work {
    Batch(Batch),
    Order(Order),
    Idle,
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue")
            .field("changes", &self.changes)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

/// Keys for which an empty queue keeps memory after a burst of writes.
const KEYS_KEPT_MAX: usize = 256;

impl Queue {
    pub(crate) fn closed() -> Self {
        Self { is_closed: true, is_scheduled: true, ..Self::default() }
    }

    pub(crate) fn changes(&self) -> usize {
        self.changes
    }

    pub(crate) fn has_room(&self, change: &Change, config: &WriterConfig) -> bool {
        let is_replaced = self.last.contains_key(&key_of(change));
        let fits = self.bytes + change.bytes_len() <= config.queue_bytes_max;
        self.changes == 0 || (fits && (is_replaced || self.changes < config.queue_changes_max))
    }

    pub(crate) fn is_half_free(&self, config: &WriterConfig) -> bool {
        self.changes <= config.queue_changes_max / 2 && self.bytes <= config.queue_bytes_max / 2
    }

    /// Replaces a queued change of the same key, if no order is in between.
    pub(crate) fn push(&mut self, change: Change, done: Option<Done>) {
        self.bytes += change.bytes_len();
        if !matches!(self.items.back(), Some(Item::Changes(_))) {
            self.last.clear();
            self.items.push_back(Item::Changes(Run::default()));
        }
        let Some(Item::Changes(run)) = self.items.back_mut() else { return };
        let waiting = self.last.get(&key_of(&change)).and_then(|at| run.changes.get_mut(at - run.taken));
        match waiting {
            Some((before, dones)) => {
                self.bytes -= before.bytes_len();
                *before = change;
                dones.extend(done);
            }
            None => {
                self.last.insert(key_of(&change), run.taken + run.changes.len());
                run.changes.push_back((change, done.into_iter().collect()));
                self.changes += 1;
            }
        }
    }

    pub(crate) fn push_order(&mut self, order: Order) {
        self.last.clear();
        self.items.push_back(Item::Order(order));
    }

    pub(crate) fn take(&mut self, config: &WriterConfig) -> Option<Work> {
        if let Some(Item::Order(_)) = self.items.front() {
            let Some(Item::Order(order)) = self.items.pop_front() else { return None };
            return Some(Work::Order(order));
        }
        let is_last = self.items.len() == 1;
        let Some(Item::Changes(run)) = self.items.front_mut() else { return None };
        let mut batch = Batch { changes: Vec::new(), done: Vec::new(), bytes: 0 };
        while let Some((change, _)) = run.changes.front() {
            let bytes = change.bytes_len();
            let is_full = batch.changes.len() >= config.batch_changes_max
                || batch.bytes + bytes > config.batch_bytes_max;
            if is_full && !batch.changes.is_empty() {
                break;
            }
            let Some((change, dones)) = run.changes.pop_front() else { break };
            run.taken += 1;
            if is_last {
                self.last.remove(&key_of(&change));
            }
            self.storing.insert(key_of(&change), change.clone());
            batch.bytes += bytes;
            batch.changes.push(change);
            batch.done.push(dones);
        }
        if run.changes.is_empty() {
            self.items.pop_front();
        }
        self.changes -= batch.changes.len();
        self.bytes -= batch.bytes;
        Some(Work::Batch(batch))
    }

    pub(crate) fn shrink(&mut self) {
        if self.last.capacity() > KEYS_KEPT_MAX {
            self.last = HashMap::new();
        }
        if self.storing.capacity() > KEYS_KEPT_MAX {
            self.storing = HashMap::new();
        }
    }

    pub(crate) fn stored(&mut self) {
        self.storing.clear();
    }

    pub(crate) fn put_back(&mut self, changes: Vec<Change>) {
        self.storing.clear();
        if changes.is_empty() {
            return;
        }
        // Changes up to the next order are retried with them, removals first, because they may free space. A
        // newer change of the same key replaces the older one.
        let mut behind = VecDeque::new();
        if let Some(Item::Changes(run)) = self.items.front_mut() {
            behind = std::mem::take(&mut run.changes);
            self.items.pop_front();
        }
        let newer: HashSet<(Segment, Bytes)> = behind.iter().map(|(change, _)| key_of(change)).collect();
        let changes = changes.into_iter().filter(|change| !newer.contains(&key_of(change)));
        let again: Vec<(Change, Vec<Done>)> = changes.map(|change| (change, Vec::new())).collect();
        self.changes += again.len();
        self.bytes += again.iter().map(|(change, _)| change.bytes_len()).sum::<usize>();
        let (removals, others): (VecDeque<_>, VecDeque<_>) =
            again.into_iter().chain(behind).partition(|(change, _)| matches!(change, Change::Remove { .. }));
        let changes: VecDeque<_> = removals.into_iter().chain(others).collect();
        if self.items.is_empty() {
            // New changes are added to this run.
            self.last = changes.iter().enumerate().map(|(at, (change, _))| (key_of(change), at)).collect();
        }
        self.items.push_front(Item::Changes(Run { taken: 0, changes }));
    }

    pub(crate) fn pending(&self, segment: Segment, key: &[u8]) -> Option<Option<Entry>> {
        let is_meant = |change: &Change| change.segment() == segment && change.key() == key;
        let becomes = |change: &Change| match change {
            Change::Put(entry) => Some(entry.clone()),
            Change::Remove { .. } => None,
        };
        let mut items = self.items.iter().rev();
        if let Some(Item::Changes(run)) = self.items.back() {
            // The last run is the longest, and its keys are indexed.
            items.next();
            let at = self.last.get(&(segment, Bytes::copy_from_slice(key)));
            if let Some((change, _)) = at.and_then(|at| run.changes.get(at - run.taken)) {
                return Some(becomes(change));
            }
        }
        for item in items {
            match item {
                Item::Changes(run) => {
                    if let Some((change, _)) = run.changes.iter().rev().find(|(change, _)| is_meant(change)) {
                        return Some(becomes(change));
                    }
                }
                Item::Order(Order::Clear(_)) => return Some(None),
                Item::Order(Order::RemoveSegment(removed, _)) if *removed == segment => return Some(None),
                Item::Order(_) => {}
            }
        }
        self.storing.get(&(segment, Bytes::copy_from_slice(key))).map(becomes)
    }

    pub(crate) fn fail(self, error: &Arc<StoreError>) {
        let mut callbacks = Callbacks::default();
        for item in self.items {
            match item {
                Item::Order(order) => drop(callbacks.call(|| order.fail(error))),
                Item::Changes(run) => {
                    let dones = run.changes.into_iter().flat_map(|(_, dones)| dones);
                    callbacks.call_all(dones.map(|done| || done(Err(Arc::clone(error)))));
                }
            }
        }
        callbacks.call_all(self.waiting_for_room);
        // The panic hook has printed the panic; there is no writer to close.
    }
}

impl Order {
    pub(crate) fn carry_out(self, store: &dyn Store) {
        let mut callbacks = Callbacks::default();
        let (result, done) = match self {
            Self::RemoveSegment(segment, done) => (callbacks.call(|| store.remove_segment(segment)), done),
            Self::Clear(done) => (callbacks.call(|| store.clear()), done),
            Self::Flush(done) => (callbacks.call(|| store.flush()), done),
            Self::Run(task) => return task(store),
        };
        let result = result.unwrap_or(Err(StoreError::Closed));
        callbacks.call(|| done(result.map_err(Arc::new)));
        callbacks.end();
    }

    pub(crate) fn fail(self, error: &Arc<StoreError>) {
        match self {
            Self::RemoveSegment(_, done) | Self::Clear(done) | Self::Flush(done) => {
                done(Err(Arc::clone(error)));
            }
            Self::Run(_) => {}
        }
    }
}

fn key_of(change: &Change) -> (Segment, Bytes) {
    (change.segment(), change.key().clone())
}
