//! The owner's side of iterations. An owner keeps no state between requests, because the request has the
//! position: a reader that vanishes leaves nothing behind.

use std::sync::Arc;

use bytes::Bytes;
use consort_group::Address;

use crate::catch_panic::{Panicked, catch_panic};
use crate::command::{Applied, Body, Fetch, Fetched, Part, PartEnd};
use crate::container::{ChunkLimits, Cursor, ENTRY_OVERHEAD, Visited};
use crate::cx::Cx;
use crate::cx::NodeEvent;
use crate::injected_bugs::InjectedBug;
use crate::operation::OperationError;
use crate::publication::{FETCH_BYTES, Projection, ReduceFn, Transform, TransformFn};
use crate::replica::Shared;
use crate::replica::iterate::Iterations;
use crate::replica::iterate::batch_builder::{BatchBuilder, Value};
use crate::replica::store::Place;
use crate::replica::store::Store;
use crate::replica::store::loads::{AwaitingLoad, Found, LOAD_KEYS};
use crate::replica::write::records::{WriteEffect, WriteRecord};
use crate::{Segment, SegmentState as ContainerState, Version};

/// Two lengths and a version.
const ITEM_OVERHEAD: u64 = 16;

/// For a key and its version: most are shorter, and the buffer grows.
const KEY_ROOM: u64 = 32;

/// Entries visited for one response, filtered or not, so that other requests do not wait behind a long
/// iteration.
pub(crate) const LOOKS_MAX: usize = 16_384;

/// Bytes of the values that functions process for one response; one value may exceed it. Longer functions run
/// in [`crate::replica::iterate::computations`].
const LOOKED_BYTES_MAX: usize = 16 * 1024 * 1024;

pub(crate) enum Function {
    Nothing,
    Transform(Arc<TransformFn>, Bytes),
    Reduction(Arc<ReduceFn>, Bytes),
}

impl Iterations {
    pub(crate) fn publish(
        &self,
        shared: &Shared,
        store: &mut Store,
        cx: &mut Cx,
        from: &Address,
        fetch: Fetch,
        loaded: Found,
    ) {
        if self.is_costly(&fetch) {
            return queue_computation(shared, cx, from, fetch, loaded);
        }
        // The request is copied only if there are passive entries.
        let again = (shared.container.statistics().passive_len() > 0).then(|| fetch.clone());
        let begun = fetch.cursor.or(Some(Cursor::START.into()));
        let is_only = fetch.is_only;
        let mut answer = if *from == cx.local {
            BatchBuilder::here(items_at_most(shared, &fetch), false)
        } else {
            BatchBuilder::elsewhere(shared, room(shared, &fetch))
        };
        let (fetched, missing) = self.fetch(shared, store, cx, fetch, &loaded, &mut answer);
        match again {
            // If the iteration has advanced, its items so far are sent first.
            Some(fetch) if !missing.is_empty() && fetched.parts.len() == 1 && fetched.cursor == begun => {
                store.load(shared, cx, missing, AwaitingLoad::Fetch { from: from.clone(), fetch });
            }
            _ => {
                answer.send(shared, cx, from, fetched);
                if is_only && *from != cx.local {
                    cx.events.push_back(NodeEvent::Expecting);
                }
            }
        }
    }

    /// `None`: the function is not registered here.
    pub(crate) fn function(&self, projection: Projection, transform: Option<Transform>) -> Option<Function> {
        match (projection, transform) {
            (Projection::Reduced, None) => None,
            (Projection::Reduced, Some(Transform { name, arguments })) => {
                self.reductions.get(&name).map(|function| Function::Reduction(function.clone(), arguments))
            }
            (_, None) => Some(Function::Nothing),
            (_, Some(Transform { name, arguments })) => {
                self.transforms.get(&name).map(|function| Function::Transform(function.clone(), arguments))
            }
        }
    }

    pub(crate) fn fetch(
        &self,
        shared: &Shared,
        store: &Store,
        cx: &Cx,
        fetch: Fetch,
        loaded: &Found,
        answer: &mut BatchBuilder,
    ) -> (Fetched, Vec<(Place, Version)>) {
        let Fetch { iteration, nth, segments, cursor, items_max, projection, transform, is_only: _ } = fetch;
        let mut fetched = Fetched::nothing(iteration, nth);
        let Some(function) = self.function(projection, transform) else {
            fetched.applied = Applied::Unknown;
            return (fetched, Vec::new());
        };
        let needs_value = projection == Projection::Entries || !matches!(function, Function::Nothing);
        let mut walk = PublishedWalk {
            shared,
            store,
            cx,
            loaded,
            answer,
            projection,
            items_max: items_max as usize,
            function,
            may_miss: shared.container.statistics().passive_len() > 0 && needs_value,
            bytes: 0,
            looks: 0,
            looked_bytes: 0,
            missing: Vec::new(),
            stops_at: None,
            applied: Applied::Done,
        };
        let mut cursor = cursor.map(Cursor::from);
        for segment in segments {
            if !is_published(shared, cx, segment) {
                let is_lost = cx.has(InjectedBug::RefusalIsEmpty);
                let end = if is_lost { PartEnd::Complete } else { PartEnd::Refused };
                fetched.parts.push(Part { segment, count: 0, end });
                cursor = None;
                continue;
            }
            let Some((part, next)) = walk.segment(segment, cursor.take().unwrap_or(Cursor::START)) else {
                fetched.applied = Applied::Panicked;
                break;
            };
            let is_over = part.end == PartEnd::More;
            fetched.parts.push(part);
            if is_over {
                fetched.cursor = next.map(<(u64, u64)>::from);
                break;
            }
        }
        (fetched, walk.missing)
    }
}

pub(crate) fn queue_computation(shared: &Shared, cx: &mut Cx, from: &Address, fetch: Fetch, loaded: Found) {
    let key = (shared.id, from.clone(), fetch.iteration, fetch.nth);
    if let Some((fetch, error)) = cx.computations.queue(key, fetch, loaded) {
        cx.counters.overflowed += 1;
        fail_fetch(shared, cx, from, fetch, error);
    }
}

struct PublishedWalk<'a> {
    shared: &'a Shared,
    store: &'a Store,
    cx: &'a Cx,
    loaded: &'a Found,
    answer: &'a mut BatchBuilder,
    projection: Projection,
    items_max: usize,
    function: Function,
    may_miss: bool,
    bytes: usize,
    looks: usize,
    looked_bytes: usize,
    missing: Vec<(Place, Version)>,
    stops_at: Option<Cursor>,
    applied: Applied,
}

#[derive(Default)]
struct SegmentItems {
    count: u32,
    reduced: Vec<u8>,
}

impl PublishedWalk<'_> {
    /// Also returns the position of the next request; `None` if the function has panicked.
    fn segment(&mut self, segment: Segment, mut at: Cursor) -> Option<(Part, Option<Cursor>)> {
        let before = self.answer.mark();
        let mut items = SegmentItems::default();
        let (end, next) = loop {
            let room = self.items_max.saturating_sub(self.answer.len());
            let is_long = self.looks >= LOOKS_MAX || self.looked_bytes >= LOOKED_BYTES_MAX;
            let filled = self.bytes + items.reduced.len();
            if room == 0 || filled >= FETCH_BYTES || is_long {
                break (PartEnd::More, Some(at));
            }
            // If values may be missing, entries are visited one at a time, so that the iteration stops before the missing one.
            let entries_max = if self.may_miss { 1 } else { room.min(LOOKS_MAX - self.looks) };
            let limits = ChunkLimits { entries_max, bytes_max: FETCH_BYTES - filled };
            let (shared, now) = (self.shared, self.cx.now);
            let next = shared.container.visit(segment, at, limits, now, |visited| {
                self.visit(segment, &mut items, visited);
            });
            if self.applied == Applied::Panicked {
                return None;
            }
            if !self.missing.is_empty() && self.stops_at.is_none() {
                self.stops_at = Some(at);
            }
            if let (Ok(next), Some(stop)) = (next, self.stops_at) {
                // Missing values of the following entries are loaded with it.
                match next.filter(|_| self.missing.len() < LOAD_KEYS && self.looks < LOOKS_MAX) {
                    Some(next) => at = next,
                    None => break (PartEnd::More, Some(stop)),
                }
                continue;
            }
            match next {
                Ok(Some(next)) => at = next,
                Ok(None) => {
                    self.push_removals(segment, &mut items);
                    break (PartEnd::Complete, None);
                }
                Err(_) => {
                    self.answer.cut(&before);
                    items.count = 0;
                    break (PartEnd::Refused, None);
                }
            }
        };
        let SegmentItems { mut count, reduced } = items;
        if !reduced.is_empty() && end != PartEnd::Refused {
            self.bytes += reduced.len();
            count = 1;
            self.answer.push(&[], Value::Made(reduced.into()), Version::NONE);
        }
        Some((Part { segment, count, end }, next))
    }

    fn visit(&mut self, segment: Segment, items: &mut SegmentItems, visited: Visited<'_>) {
        self.looks += 1;
        if !matches!(self.function, Function::Nothing) {
            self.looked_bytes += visited.value().len();
        }
        let mut loaded_value = None;
        if self.may_miss && visited.is_passive() {
            let mut one = [(Bytes::copy_from_slice(visited.key()), visited.entry())];
            let unknown = self.store.fill(segment, &mut one, self.loaded);
            self.missing.extend(unknown.into_iter().map(|(_, place, version)| (place, version)));
            let [(_, filled)] = one;
            loaded_value = Some(filled);
        }
        if !self.missing.is_empty() || self.applied == Applied::Panicked {
            return;
        }
        let (key, version) = (visited.key(), visited.version());
        let value = match (&self.function, self.projection, loaded_value) {
            (Function::Reduction(function, arguments), _, loaded) => {
                let entry = loaded.unwrap_or_else(|| visited.entry());
                if catch_panic(|| function(&mut items.reduced, key, &entry, arguments)).is_err() {
                    self.applied = Applied::Panicked;
                }
                return;
            }
            (Function::Transform(function, arguments), _, loaded) => {
                let entry = loaded.unwrap_or_else(|| visited.entry());
                match catch_panic(|| function(key, &entry, arguments)) {
                    Ok(Some(made)) => Value::Made(made),
                    Ok(None) => return,
                    Err(Panicked) => {
                        self.applied = Applied::Panicked;
                        return;
                    }
                }
            }
            (Function::Nothing, Projection::Entries, Some(loaded)) => Value::Made(loaded.value),
            (Function::Nothing, Projection::Entries, None) => Value::Of(visited),
            (Function::Nothing, ..) => Value::None,
        };
        self.bytes += key.len() + value.len();
        items.count += 1;
        if self.projection != Projection::Count {
            self.answer.push(key, value, version);
        }
    }

    /// Adds the segment's removals under way, for a reader that removes entries. They may be newer than the
    /// iteration and not have reached their keys.
    fn push_removals(&mut self, segment: Segment, items: &mut SegmentItems) {
        if self.projection != Projection::Removable {
            return;
        }
        for record in removals_under_way(self.shared, self.cx, segment) {
            self.bytes += record.key.len();
            items.count += 1;
            self.answer.push(&record.key, Value::None, record.version);
        }
    }
}

pub(crate) fn items_at_most(shared: &Shared, fetch: &Fetch) -> usize {
    let here = usize::try_from(shared.container.len()).unwrap_or(LOOKS_MAX);
    if fetch.projection == Projection::Count {
        0
    } else {
        (fetch.items_max as usize).min(here).min(LOOKS_MAX)
    }
}

fn room(shared: &Shared, fetch: &Fetch) -> usize {
    let each = match fetch.projection {
        Projection::Count => return 0,
        Projection::Keys | Projection::Removable | Projection::Reduced => KEY_ROOM,
        Projection::Entries => {
            let all = shared.container.bytes() / shared.container.len().max(1);
            all.saturating_sub(ENTRY_OVERHEAD) + ITEM_OVERHEAD
        }
    };
    FETCH_BYTES.min(usize::try_from(each * u64::from(fetch.items_max)).unwrap_or(FETCH_BYTES))
}

pub(crate) fn fail_fetch(shared: &Shared, cx: &mut Cx, from: &Address, fetch: Fetch, error: OperationError) {
    let Fetch { iteration, nth, .. } = fetch;
    let fetched = Fetched { failed: Some(error), ..Fetched::nothing(iteration, nth) };
    shared.send(cx, from, Body::Fetched(fetched));
}

pub(crate) fn is_published(shared: &Shared, cx: &Cx, segment: Segment) -> bool {
    let is_read = shared.topology().is_some_and(|topology| {
        usize::from(segment.0) < topology.epochs.len()
            && topology.read_owners().owners(segment).any(|owner| *owner == cx.local)
    });
    is_read && shared.container.state(segment) == ContainerState::Owned
}

fn removals_under_way<'c>(
    shared: &'c Shared,
    cx: &'c Cx,
    segment: Segment,
) -> impl Iterator<Item = &'c WriteRecord> {
    let records = &shared.segments[usize::from(segment.0)].records;
    records
        .unfinished(cx)
        .filter(|record| matches!(record.did, WriteEffect::Remove | WriteEffect::CopiedRemoval))
}
