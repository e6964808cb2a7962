//! Requests of iterations whose function is applied outside the node, until their steps begin.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use consort_group::Address;

use crate::command::Fetch;
use crate::config::CacheId;
use crate::operation::OperationError;
use crate::{Entry, Segment};

/// The limit of requests that wait for their function. One more is refused: its reader receives the error that this member is
/// busy.
const WAITING_MAX: usize = 16_384;

/// The identity of a request: a reader that has waited for long repeats the same request.
pub(crate) type Key = (CacheId, Address, u64, u32);

/// Entries that were loaded for a request.
type LoadedEntries = BTreeMap<(Segment, Bytes), Entry>;

/// Requests that wait for their function, in the order of their arrival.
#[derive(Default)]
pub(crate) struct Computations {
    order: VecDeque<Key>,
    waiting: BTreeMap<Key, (Fetch, LoadedEntries)>,
    running: BTreeSet<Key>,
}

impl Computations {
    /// Returns whether a request waits.
    pub(crate) fn has_any(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Queues a request, unless it waits already or is under way. Returns the request with the error if there are too many.
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

    /// Returns the next request, whose step begins.
    pub(crate) fn take(&mut self) -> Option<(Key, Fetch, LoadedEntries)> {
        while let Some(key) = self.order.pop_front() {
            if let Some((fetch, loaded)) = self.waiting.remove(&key) {
                self.running.insert(key.clone());
                return Some((key, fetch, loaded));
            }
        }
        None
    }

    /// Notes that the step of a request is over.
    pub(crate) fn end(&mut self, key: &Key) {
        self.running.remove(key);
    }

    /// Drops the requests of members that are gone.
    pub(crate) fn keep(&mut self, is_kept: impl Fn(&Address) -> bool) {
        self.waiting.retain(|(_, from, ..), _| is_kept(from));
        let waiting = &self.waiting;
        self.order.retain(|key| waiting.contains_key(key));
    }
}
