//! The owner's side of iterations: responses with entries of the requested segments, up to a limit, straight from the container.
//! An owner keeps no state between two requests, because the position is in the request. So a reader that vanishes leaves no
//! state behind.

use std::sync::Arc;

use bytes::Bytes;
use consort_group::Address;

use super::NodeEvent;
use super::activation::{Found, LOAD_KEYS, Waiting};
use super::answer::{Answer, Value};
use super::cache::Cache;
use super::cx::Cx;
use super::persistence::Place;
use super::records::{Did, Record};
use crate::command::{Applied, Body, Fetch, Fetched, Part, PartEnd};
use crate::container::{ChunkLimits, Cursor, ENTRY_OVERHEAD};
use crate::guarded::{Panicked, guarded};
use crate::injected_bugs::InjectedBug;
use crate::operation::OperationError;
use crate::publication::{FETCH_BYTES, ReduceFn, Transform, TransformFn, What};
use crate::{Segment, SegmentState as ContainerState, Version};

/// The bytes of an item besides its key and its value: two lengths and a version.
const ITEM_OVERHEAD: u64 = 16;

/// The bytes reserved for a key and its version. Most are shorter, and the buffer grows for longer ones.
const KEY_ROOM: u64 = 32;

/// Entries that are visited for one response, whatever the filter accepts, so that other requests do not wait behind a long
/// iteration.
pub(super) const LOOKS_MAX: usize = 16_384;

/// Bytes of values that functions process for one response, whatever their results; one value may exceed it. Functions that take
/// longer than reading the values are applied outside the node: see [`super::computations`].
const LOOKED_BYTES_MAX: usize = 16 * 1024 * 1024;

/// The function to apply to entries, with its arguments.
pub(super) enum Function {
    Nothing,
    Transform(Arc<TransformFn>, Bytes),
    Reduction(Arc<ReduceFn>, Bytes),
}

impl Cache {
    pub(super) fn handle_fetch(&mut self, cx: &mut Cx, from: &Address, fetch: Fetch) {
        self.publish(cx, from, fetch, Found::new());
    }

    /// Responds to a request, with the values that were loaded for it.
    pub(super) fn publish(&mut self, cx: &mut Cx, from: &Address, fetch: Fetch, loaded: Found) {
        if self.is_costly(&fetch) {
            return self.queue_computation(cx, from, fetch, loaded);
        }
        // The request is copied only if there are passive entries.
        let again = (self.container.passive_len() > 0).then(|| fetch.clone());
        let begun = fetch.cursor.or(Some(Cursor::START.into()));
        let mut missing = Vec::new();
        let is_only = fetch.is_only;
        let mut answer = if *from == cx.local {
            Answer::here(self.items_at_most(&fetch), false)
        } else {
            Answer::elsewhere(self, self.room(&fetch))
        };
        let fetched = self.fetch(cx, fetch, &loaded, &mut missing, &mut answer);
        match again {
            // If the iteration has advanced, its items so far are sent first.
            Some(fetch) if !missing.is_empty() && fetched.parts.len() == 1 && fetched.cursor == begun => {
                self.load(cx, missing, Waiting::Fetch { from: from.clone(), fetch });
            }
            _ => {
                answer.send(cx, self, from, fetched);
                if is_only && *from != cx.local {
                    cx.events.push_back(NodeEvent::Expecting);
                }
            }
        }
    }

    /// Returns the maximum number of items of a response.
    pub(super) fn items_at_most(&self, fetch: &Fetch) -> usize {
        let here = usize::try_from(self.container.len()).unwrap_or(LOOKS_MAX);
        if fetch.what == What::Count { 0 } else { (fetch.items_max as usize).min(here).min(LOOKS_MAX) }
    }

    /// Returns the estimated bytes of a response's items.
    fn room(&self, fetch: &Fetch) -> usize {
        let each = match fetch.what {
            What::Count => return 0,
            What::Keys | What::Removable | What::Reduced => KEY_ROOM,
            What::Entries => {
                let all = self.container.bytes() / self.container.len().max(1);
                all.saturating_sub(ENTRY_OVERHEAD) + ITEM_OVERHEAD
            }
        };
        FETCH_BYTES.min(usize::try_from(each * u64::from(fetch.items_max)).unwrap_or(FETCH_BYTES))
    }

    /// Fails a request, because the store has failed.
    pub(super) fn fail_fetch(&self, cx: &mut Cx, from: &Address, fetch: Fetch, error: OperationError) {
        let Fetch { iteration, nth, .. } = fetch;
        let fetched = Fetched { failed: Some(error), ..Fetched::nothing(iteration, nth) };
        self.send(cx, from, Body::Fetched(fetched));
    }

    /// Returns the function that a request applies to entries; `None` if it is not registered here.
    pub(super) fn function(&self, what: What, transform: Option<Transform>) -> Option<Function> {
        match (what, transform) {
            (What::Reduced, None) => None,
            (What::Reduced, Some(Transform { name, arguments })) => {
                self.reductions.get(&name).map(|function| Function::Reduction(function.clone(), arguments))
            }
            (_, None) => Some(Function::Nothing),
            (_, Some(Transform { name, arguments })) => {
                self.transforms.get(&name).map(|function| Function::Transform(function.clone(), arguments))
            }
        }
    }

    /// Returns whether this member responds to iterations with entries of a segment.
    pub(super) fn is_published(&self, cx: &Cx, segment: Segment) -> bool {
        let is_read = self.topology().is_some_and(|topology| {
            usize::from(segment.0) < topology.epochs.len()
                && topology.read_owners().owners(segment).any(|owner| *owner == cx.local)
        });
        is_read && self.container.state(segment) == ContainerState::Owned
    }

    /// Returns the removals that an owner may not have received.
    fn removals_under_way<'c>(&'c self, cx: &'c Cx, segment: Segment) -> impl Iterator<Item = &'c Record> {
        let records = &self.segments[usize::from(segment.0)].records;
        records.unfinished(cx).filter(|record| matches!(record.did, Did::Remove | Did::CopiedRemoval))
    }

    /// Collects the response to a request, up to the first `missing` value. The items go into the answer.
    pub(super) fn fetch(
        &self,
        cx: &Cx,
        fetch: Fetch,
        loaded: &Found,
        missing: &mut Vec<(Place, Version)>,
        answer: &mut Answer,
    ) -> Fetched {
        let Fetch { iteration, nth, segments, cursor, items_max, what, transform, is_only: _ } = fetch;
        let mut fetched = Fetched::nothing(iteration, nth);
        let Some(function) = self.function(what, transform) else {
            fetched.applied = Applied::Unknown;
            return fetched;
        };
        let mut cursor = cursor.map(Cursor::from);
        let (mut bytes, mut looks, mut looked_bytes) = (0, 0, 0);
        let is_applied = !matches!(function, Function::Nothing);
        let needs_value = what == What::Entries || !matches!(function, Function::Nothing);
        let may_miss = self.container.passive_len() > 0 && needs_value;
        let (mut stops_at, mut applied) = (None, Applied::Done);
        for segment in segments {
            if !self.is_published(cx, segment) {
                let is_lost = cx.has(InjectedBug::RefusalIsEmpty);
                let end = if is_lost { PartEnd::Complete } else { PartEnd::Refused };
                fetched.parts.push(Part { segment, count: 0, end });
                cursor = None;
                continue;
            }
            let mut at = cursor.take().unwrap_or(Cursor::START);
            let before = answer.mark();
            let mut count = 0;
            let mut reduced = Vec::new();
            let end = loop {
                let room = (items_max as usize).saturating_sub(answer.len());
                let is_long = looks >= LOOKS_MAX || looked_bytes >= LOOKED_BYTES_MAX;
                if room == 0 || bytes + reduced.len() >= FETCH_BYTES || is_long {
                    fetched.cursor = Some(at.into());
                    break PartEnd::More;
                }
                // If values may be missing, entries are visited one at a time, so that the iteration stops before the missing
                // one.
                let entries_max = if may_miss { 1 } else { room.min(LOOKS_MAX - looks) };
                let limits = ChunkLimits { entries_max, bytes_max: FETCH_BYTES - bytes - reduced.len() };
                let next = self.container.visit(segment, at, limits, cx.now, |visited| {
                    looks += 1;
                    if is_applied {
                        looked_bytes += visited.value().len();
                    }
                    let mut loaded_value = None;
                    if may_miss && visited.is_passive() {
                        let mut one = [(Bytes::copy_from_slice(visited.key()), visited.entry())];
                        let unknown = self.fill(segment, &mut one, loaded);
                        missing.extend(unknown.into_iter().map(|(_, place, version)| (place, version)));
                        let [(_, filled)] = one;
                        loaded_value = Some(filled);
                    }
                    if !missing.is_empty() || applied == Applied::Panicked {
                        return;
                    }
                    let (key, version) = (visited.key(), visited.version());
                    let value = match (&function, what, loaded_value) {
                        (Function::Reduction(function, arguments), _, loaded) => {
                            let entry = loaded.unwrap_or_else(|| visited.entry());
                            if guarded(|| function(&mut reduced, key, &entry, arguments)).is_err() {
                                applied = Applied::Panicked;
                            }
                            return;
                        }
                        (Function::Transform(function, arguments), _, loaded) => {
                            let entry = loaded.unwrap_or_else(|| visited.entry());
                            match guarded(|| function(key, &entry, arguments)) {
                                Ok(Some(made)) => Value::Made(made),
                                Ok(None) => return,
                                Err(Panicked) => {
                                    applied = Applied::Panicked;
                                    return;
                                }
                            }
                        }
                        (Function::Nothing, What::Entries, Some(loaded)) => Value::Made(loaded.value),
                        (Function::Nothing, What::Entries, None) => Value::Of(visited),
                        (Function::Nothing, ..) => Value::None,
                    };
                    bytes += key.len() + value.len();
                    count += 1;
                    if what != What::Count {
                        answer.push(key, value, version);
                    }
                });
                if applied == Applied::Panicked {
                    fetched.applied = applied;
                    return fetched;
                }
                if !missing.is_empty() && stops_at.is_none() {
                    stops_at = Some(at);
                }
                if let (Ok(next), Some(stop)) = (next, stops_at) {
                    // Missing values of the following entries are loaded with it.
                    match next.filter(|_| missing.len() < LOAD_KEYS && looks < LOOKS_MAX) {
                        Some(next) => at = next,
                        None => {
                            fetched.cursor = Some(stop.into());
                            break PartEnd::More;
                        }
                    }
                    continue;
                }
                match next {
                    Ok(Some(next)) => at = next,
                    Ok(None) => {
                        // Includes removals that began after the segment's iteration, which may not have reached their keys.
                        if what == What::Removable {
                            for record in self.removals_under_way(cx, segment) {
                                bytes += record.key.len();
                                count += 1;
                                answer.push(&record.key, Value::None, record.version);
                            }
                        }
                        break PartEnd::Complete;
                    }
                    Err(_) => {
                        answer.cut(&before);
                        count = 0;
                        break PartEnd::Refused;
                    }
                }
            };
            if !reduced.is_empty() && end != PartEnd::Refused {
                bytes += reduced.len();
                count = 1;
                answer.push(&[], Value::Made(reduced.into()), Version::NONE);
            }
            fetched.parts.push(Part { segment, count, end });
            if end == PartEnd::More {
                break;
            }
        }
        fetched
    }
}
