//! Requests that wait for a function outside the node.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use consort_group::Address;

use crate::command::Fetch;
use crate::config::CacheId;
use crate::operation::OperationError;
use crate::{Entry, Segment};

/// The reader of a further request receives the error that this member is busy.
const WAITING_MAX: usize = 16_384;

/// A reader repeats the request unchanged.
pub(crate) type Key = (CacheId, Address, u64, u32);

type LoadedEntries = BTreeMap<(Segment, Bytes), Entry>;

#[derive(Default)]
pub(crate) struct Computations {
    order: VecDeque<Key>,
    waiting: BTreeMap<Key, (Fetch, LoadedEntries)>,
    running: BTreeSet<Key>,
}

impl Computations {
    pub(crate) fn has_any(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The request returns with the error if there are too many.
    pub(crate) fn queue(
        &mut self,
        key: Key,
        fetch: Fetch,
        loaded: LoadedEntries,
    ) -> Option<(Fetch, OperationError)> {
        if self.running.contains(&key) || self.waiting.contains_key(&key) {
            return None;
        }
        if self.waiting.len() >= WAITING_MAX {
            return Some((fetch, OperationError::TooManyInFlight(WAITING_MAX as u64)));
        }
        self.order.push_back(key.clone());
        self.waiting.insert(key, (fetch, loaded));
        None
    }

    pub(crate) fn take(&mut self) -> Option<(Key, Fetch, LoadedEntries)> {
        while let Some(key) = self.order.pop_front() {
            if let Some((fetch, loaded)) = self.waiting.remove(&key) {
                self.running.insert(key.clone());
                return Some((key, fetch, loaded));
            }
        }
        None
    }

    pub(crate) fn end(&mut self, key: &Key) {
        self.running.remove(key);
    }

    pub(crate) fn keep(&mut self, is_kept: impl Fn(&Address) -> bool) {
        self.waiting.retain(|(_, from, ..), _| is_kept(from));
        let waiting = &self.waiting;
        self.order.retain(|key| waiting.contains_key(key));
    }
}
