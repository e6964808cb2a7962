//! The reader's side of iterations. Each of up to [`LANES_MAX`] lanes belongs to a member and has at most one
//! request or unconsumed answer; the lanes share the batch. No request is sent before the reader wants items.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use consort_group::{Address, Time};

use crate::Segment;
use crate::command::{Applied, Body, Fetch, Fetched, PartEnd};
use crate::cx::Cx;
use crate::cx::NodeEvent;
use crate::cx::calls::{RESEND_AFTER, RESEND_AFTER_MAX};
use crate::event::ListenerId;
use crate::injected_bugs::InjectedBug;
use crate::items::{Item, ItemRef, Items};
use crate::operation::{OperationError, ReadFrom};
use crate::publication::{Guarantee, IterationError, IterationId, LANES_MAX, Next, Projection, Publication};
use crate::replica::Shared;
use crate::replica::iterate::Iterations;
use crate::replica::iterate::batch_builder::BatchBuilder;
use crate::replica::iterate::publisher::items_at_most;
use crate::replica::store::Store;
use crate::replica::store::loads::Found;
use crate::replica::write::records::is_caller_gone;

/// Each open iteration keeps at most a batch, and the keys of partly received segments.
pub(crate) const ITERATIONS_MAX: usize = 65_536;

/// Segments in a request: more than a batch comes from.
const SEGMENTS_PER_FETCH: usize = 32;

/// The divisor of the batch for the reader's own lane beside others: its items are available at once, and a
/// remote answer must be worth its round trip.
const OWN_PART: usize = 8;

/// The limit for the only member asked, which has two requests at a time: it gathers one answer while the
/// reader consumes the other. So many small entries stay in a CPU's own cache.
const SEQUENTIAL_BATCH_MAX: usize = 640;

pub(crate) struct Iteration {
    publication: Publication,
    todo: BTreeSet<Segment>,
    lanes: Vec<Lane>,
    taken: VecDeque<u32>,
    /// The items returned of incomplete segments, if none may be returned twice.
    given: BTreeMap<Segment, Given>,
    partial: BTreeMap<Segment, u64>,
    reduced: BTreeMap<Segment, Vec<Item>>,
    next_nth: u32,
    count: u64,
    failed: Option<IterationError>,
    is_awaited: bool,
    is_idle: bool,
    is_brought: bool,
}

#[derive(Default)]
struct Given {
    /// The keys in order of arrival, concatenated; searched only if the segment is begun again.
    keys: Vec<u8>,
    ends: Vec<usize>,
    before: BTreeSet<Box<[u8]>>,
}

impl Given {
    fn note(&mut self, key: &[u8]) {
        self.keys.extend_from_slice(key);
        self.ends.push(self.keys.len());
    }

    fn begin_again(&mut self) {
        let mut from = 0;
        for end in std::mem::take(&mut self.ends) {
            self.before.insert(self.keys[from..end].into());
            from = end;
        }
        self.keys.clear();
    }

    fn had(&self, key: &[u8]) -> bool {
        self.before.contains(key)
    }
}

struct Lane {
    member: Address,
    segments: VecDeque<Segment>,
    cursor: Option<(u64, u64)>,
    state: LaneState,
    share: usize,
}

impl Lane {
    fn new(member: Address, segments: VecDeque<Segment>, share: usize) -> Self {
        Self { member, segments, cursor: None, state: LaneState::Idle, share }
    }

    fn is_filled(&self) -> bool {
        matches!(&self.state, LaneState::Ready { items, .. } if !items.is_empty())
    }
}

enum LaneState {
    Idle,
    /// `patience`: the time until the request is repeated.
    Asked {
        nth: u32,
        at: Time,
        patience: Duration,
    },
    Ready {
        nth: u32,
        items: Items,
    },
    Taken {
        nth: u32,
        count: usize,
    },
}

impl Iteration {
    fn new(publication: Publication, segments: u16) -> Self {
        let todo = match &publication.segments {
            Some(wanted) => wanted.iter().copied().filter(|segment| segment.0 < segments).collect(),
            None => (0..segments).map(Segment).collect(),
        };
        Self {
            publication,
            todo,
            lanes: Vec::new(),
            taken: VecDeque::new(),
            given: BTreeMap::new(),
            partial: BTreeMap::new(),
            reduced: BTreeMap::new(),
            next_nth: 0,
            count: 0,
            failed: None,
            is_awaited: false,
            is_idle: false,
            is_brought: false,
        }
    }

    fn unconsumed(&self) -> usize {
        let of = |lane: &Lane| match &lane.state {
            LaneState::Idle => 0,
            LaneState::Asked { .. } => lane.share,
            LaneState::Ready { items, .. } => items.len(),
            LaneState::Taken { count, .. } => *count,
        };
        self.lanes.iter().map(of).sum()
    }

    fn asked(&self) -> usize {
        self.lanes.iter().filter(|lane| matches!(lane.state, LaneState::Asked { .. })).count()
    }

    fn is_over(&self) -> bool {
        self.todo.is_empty() && self.lanes.is_empty()
    }

    fn note_consumed(&mut self, count: usize) {
        for done in self.taken.drain(..count.min(self.taken.len())) {
            let of = |lane: &&mut Lane| matches!(lane.state, LaneState::Taken { nth, .. } if nth == done);
            if let Some(lane) = self.lanes.iter_mut().find(of) {
                lane.state = LaneState::Idle;
            }
        }
    }

    fn give(&mut self, local: &Address) -> Option<Items> {
        // The lane of the reader's own member comes last: other members gather their next answers while it is consumed.
        let is_ready = |lane: &Lane| matches!(lane.state, LaneState::Ready { .. });
        let is_others = |lane: &Lane| is_ready(lane) && lane.member != *local;
        let at = self.lanes.iter().position(is_others).or_else(|| self.lanes.iter().position(is_ready))?;
        let state = &mut self.lanes[at].state;
        let LaneState::Ready { nth, items } = std::mem::replace(state, LaneState::Idle) else { return None };
        if !items.is_empty() {
            *state = LaneState::Taken { nth, count: items.len() };
            self.taken.push_back(nth);
        }
        Some(items)
    }

    /// The segments' sender is lost, so other members are asked.
    fn give_back(&mut self, segments: impl IntoIterator<Item = Segment>, begun: Option<Segment>) {
        for segment in segments {
            let is_begun = begun == Some(segment);
            self.partial.remove(&segment);
            self.reduced.remove(&segment);
            match self.publication.guarantee {
                Guarantee::AtMostOnce if is_begun => continue,
                Guarantee::ExactlyOnce => {
                    if let Some(given) = self.given.get_mut(&segment) {
                        given.begin_again();
                    }
                }
                _ => {}
            }
            self.todo.insert(segment);
        }
    }
}

impl Iterations {
    pub(crate) fn iterate(
        &mut self,
        shared: &Shared,
        id: IterationId,
        publication: Publication,
    ) -> Result<(), OperationError> {
        if self.open.len() >= ITERATIONS_MAX {
            return Err(OperationError::TooManyInFlight(ITERATIONS_MAX as u64));
        }
        self.open.insert(id, Iteration::new(publication, shared.config.segments));
        Ok(())
    }

    pub(crate) fn unconsumed(&self, id: IterationId) -> usize {
        self.open.get(&id).map_or(0, Iteration::unconsumed)
    }

    pub(crate) fn asked(&self, id: IterationId) -> usize {
        self.open.get(&id).map_or(0, Iteration::asked)
    }

    pub(crate) fn has_waiting_reader(&self) -> bool {
        self.open.values().any(|iteration| iteration.is_awaited)
    }

    /// The readers' next call returns that the cache is closed.
    pub(crate) fn wake_readers(&self, shared: &Shared, cx: &mut Cx) {
        let waiting = self.open.iter().filter(|(_, iteration)| iteration.is_awaited);
        for (&iteration, _) in waiting {
            cx.events.push_back(NodeEvent::Fetched { cache: shared.id, iteration });
        }
    }

    pub(crate) fn cancel(&mut self, id: IterationId) {
        self.open.remove(&id);
    }

    pub(crate) fn take(
        &mut self,
        shared: &Shared,
        store: &Store,
        cx: &mut Cx,
        id: IterationId,
    ) -> Result<Next, IterationError> {
        Ok(self.next(shared, store, cx, id, usize::MAX, true)?.0)
    }

    /// Returns arrived items, and whether more have arrived; `consumed` of the answers taken before count as
    /// consumed. If there are items or the reader waits, other members are asked for more. This member's own
    /// entries are gathered only when the reader has nothing else to do.
    pub(crate) fn take_ahead(
        &mut self,
        shared: &Shared,
        store: &Store,
        cx: &mut Cx,
        id: IterationId,
        consumed: usize,
    ) -> Result<(Next, bool), IterationError> {
        self.next(shared, store, cx, id, consumed, false)
    }

    fn next(
        &mut self,
        shared: &Shared,
        store: &Store,
        cx: &mut Cx,
        id: IterationId,
        consumed: usize,
        is_idle: bool,
    ) -> Result<(Next, bool), IterationError> {
        let Some(mut iteration) = self.open.remove(&id) else {
            return Err(OperationError::Closed.into());
        };
        iteration.note_consumed(consumed);
        iteration.is_idle |= is_idle;
        iteration.is_brought |= !is_idle;
        // No request is sent before the reader has shown a need for items.
        let is_wanted = consumed > 0 || iteration.is_idle;
        let next = loop {
            if is_wanted {
                self.ask_all(shared, store, cx, id, &mut iteration);
            }
            if let Some(error) = iteration.failed.take() {
                return Err(error);
            }
            match iteration.give(&cx.local) {
                Some(items) if items.is_empty() => {}
                Some(items) => {
                    iteration.is_idle = false;
                    let is_filled = iteration.lanes.iter().any(Lane::is_filled);
                    if iteration.is_brought {
                        iteration.is_awaited = !is_filled;
                    }
                    break (Next::Items(items), is_filled);
                }
                None if iteration.is_over() => return Ok((Next::End { count: iteration.count }, false)),
                None => {
                    iteration.is_awaited = true;
                    break (Next::Nothing, false);
                }
            }
        };
        self.open.insert(id, iteration);
        Ok(next)
    }

    /// Sends a request on every idle lane; on the reader's own only if the reader is idle. Adds lanes while
    /// there are segments and members for them.
    fn ask_all(
        &self,
        shared: &Shared,
        store: &Store,
        cx: &mut Cx,
        id: IterationId,
        iteration: &mut Iteration,
    ) {
        iteration.lanes.retain(|lane| !(lane.segments.is_empty() && matches!(lane.state, LaneState::Idle)));
        make_lanes(shared, cx, iteration);
        for nth in 0..iteration.lanes.len() {
            let lane = &iteration.lanes[nth];
            if matches!(lane.state, LaneState::Idle) && (iteration.is_idle || lane.member != cx.local) {
                self.ask_lane(shared, store, cx, id, iteration, nth);
            }
        }
    }

    fn ask_lane(
        &self,
        shared: &Shared,
        store: &Store,
        cx: &mut Cx,
        id: IterationId,
        iteration: &mut Iteration,
        nth: usize,
    ) {
        if cx.has(InjectedBug::GivenForgotten) {
            iteration.given.values_mut().for_each(|given| given.before.clear());
        }
        let lane = &mut iteration.lanes[nth];
        // Either answer to a repeated request is valid: the first may come late, and the second does not come earlier.
        let (asked, patience) = match lane.state {
            LaneState::Asked { nth, patience, .. } => (nth, (2 * patience).min(RESEND_AFTER_MAX)),
            _ => (iteration.next_nth + 1, RESEND_AFTER),
        };
        iteration.next_nth = iteration.next_nth.max(asked);
        let fetch = Fetch {
            iteration: id.0,
            nth: asked,
            segments: lane.segments.iter().copied().take(SEGMENTS_PER_FETCH).collect(),
            cursor: lane.cursor,
            items_max: u32::try_from(lane.share).unwrap_or(u32::MAX),
            projection: iteration.publication.projection,
            transform: iteration.publication.transform.clone(),
            is_only: iteration.publication.lanes <= 1,
        };
        lane.state = LaneState::Asked { nth: asked, at: cx.now, patience };
        if lane.member == cx.local
            && shared.container.statistics().passive_len() == 0
            && !self.is_costly(&fetch)
        {
            let local = cx.local.clone();
            let mut answer = BatchBuilder::here(items_at_most(shared, &fetch), iteration.publication.whole);
            let (fetched, _) = self.fetch(shared, store, cx, fetch, &Found::new(), &mut answer);
            accept(iteration, &local, answer.with(fetched));
        } else {
            let member = lane.member.clone();
            shared.send(cx, &member, Body::Fetch(fetch));
        }
    }

    /// `listener_of` returns the listener whose present entries an iteration reads.
    pub(crate) fn handle_fetched(
        &mut self,
        shared: &Shared,
        store: &Store,
        cx: &mut Cx,
        from: &Address,
        fetched: Fetched,
        listener_of: impl Fn(IterationId) -> Option<ListenerId>,
    ) {
        let id = IterationId(fetched.iteration);
        let Some(mut iteration) = self.open.remove(&id) else { return };
        accept(&mut iteration, from, fetched);
        self.advance(shared, store, cx, id, &mut iteration, &listener_of);
        self.open.insert(id, iteration);
    }

    fn advance(
        &self,
        shared: &Shared,
        store: &Store,
        cx: &mut Cx,
        id: IterationId,
        iteration: &mut Iteration,
        listener_of: impl Fn(IterationId) -> Option<ListenerId>,
    ) {
        if !iteration.is_awaited {
            return;
        }
        let is_ready = loop {
            if iteration.lanes.iter().any(Lane::is_filled) || iteration.failed.is_some() {
                break true;
            }
            let mut is_changed = false;
            for lane in &mut iteration.lanes {
                if matches!(&lane.state, LaneState::Ready { items, .. } if items.is_empty()) {
                    lane.state = LaneState::Idle;
                    is_changed = true;
                }
            }
            self.ask_all(shared, store, cx, id, iteration);
            if iteration.is_over() {
                break true;
            }
            let is_ready = |lane: &Lane| matches!(lane.state, LaneState::Ready { .. });
            if !is_changed && !iteration.lanes.iter().any(is_ready) {
                break iteration.failed.is_some();
            }
        };
        if is_ready {
            iteration.is_awaited = false;
            let cache = shared.id;
            cx.events.push_back(match listener_of(id) {
                Some(listener) => NodeEvent::Told { cache, listener },
                None => NodeEvent::Fetched { cache, iteration: id },
            });
        }
    }

    pub(crate) fn tick_iterations(
        &mut self,
        shared: &Shared,
        store: &Store,
        cx: &mut Cx,
        listener_of: impl Fn(IterationId) -> Option<ListenerId>,
    ) {
        for (id, mut iteration) in std::mem::take(&mut self.open) {
            let Some(topology) = shared.topology() else {
                self.open.insert(id, iteration);
                continue;
            };
            let mut nth = 0;
            while nth < iteration.lanes.len() {
                let lane = &iteration.lanes[nth];
                // An unreachable member may return later; until then other owners have the same entries, or the segment may not
                // be read.
                let is_gone =
                    is_caller_gone(topology, &lane.member) || topology.away().contains(&lane.member);
                match lane.state {
                    LaneState::Asked { .. } if is_gone => {
                        let lane = iteration.lanes.remove(nth);
                        let begun = lane.cursor.and(lane.segments.front().copied());
                        iteration.give_back(lane.segments, begun);
                        continue;
                    }
                    LaneState::Asked { at, patience, .. } if cx.now.since(at) >= patience => {
                        self.ask_lane(shared, store, cx, id, &mut iteration, nth);
                    }
                    // The items that it has sent are valid; the rest is requested from another owner.
                    LaneState::Ready { .. } | LaneState::Taken { .. } if is_gone => {
                        let lane = &mut iteration.lanes[nth];
                        let begun = lane.cursor.take().and(lane.segments.front().copied());
                        let segments = std::mem::take(&mut lane.segments);
                        iteration.give_back(segments, begun);
                    }
                    _ => {}
                }
                nth += 1;
            }
            self.advance(shared, store, cx, id, &mut iteration, &listener_of);
            self.open.insert(id, iteration);
        }
    }
}

fn make_lanes(shared: &Shared, cx: &Cx, iteration: &mut Iteration) {
    let Some(topology) = shared.topology() else { return };
    if iteration.todo.is_empty() || shared.is_restoring() {
        return;
    }
    let lanes_max = iteration.publication.lanes.clamp(1, LANES_MAX);
    let mut of: BTreeMap<Address, VecDeque<Segment>> = BTreeMap::new();
    let readers = topology.read_owners();
    let mut empty = Vec::new();
    for &segment in &iteration.todo {
        if let Some(error) = shared.refusal(topology, segment, false) {
            if cx.has(InjectedBug::AwayPassedOver) {
                empty.push(segment);
                continue;
            }
            iteration.failed = Some(error.into());
            return;
        }
        let mut owners = crate::replica::write::caller::present(topology, readers.owners(segment));
        // In invalidation mode, every member has its own entries and is its own primary.
        let is_nearest = iteration.publication.from == ReadFrom::Nearest || shared.is_invalidation();
        // The owner with the fewest segments so far: lanes of equal length bring more at the same time.
        let load = |owner: &&Address| (*owner != &cx.local).then(|| of.get(*owner).map_or(0, VecDeque::len));
        let giver = if is_nearest { owners.min_by_key(load) } else { owners.next() };
        let Some(giver) = giver else {
            // The segment has no owner: its entries are lost, or it never had any.
            empty.push(segment);
            continue;
        };
        of.entry(giver.clone()).or_default().push_back(segment);
    }
    for segment in empty {
        iteration.todo.remove(&segment);
    }
    // A member that has a lane gets more segments when that lane is done.
    of.retain(|member, _| !iteration.lanes.iter().any(|lane| lane.member == *member));
    let free = lanes_max.saturating_sub(iteration.lanes.len());
    // The reader's own segments come first because they cost no request.
    let mut givers: Vec<(Address, VecDeque<Segment>)> = of.into_iter().collect();
    givers.sort_by_key(|(member, _)| *member != cx.local);
    if givers.is_empty() {
        return;
    }
    let is_first = iteration.lanes.is_empty();
    let count = if is_first { givers.len().min(lanes_max) } else { lanes_max };
    let batch = iteration.publication.batch.max(1);
    let has_own = is_first && count > 1 && givers[0].0 == cx.local;
    let own = if has_own { batch.div_ceil(OWN_PART) } else { 0 };
    let each = if has_own { (batch - own).div_ceil(count - 1) } else { batch.div_ceil(count) };
    for (member, mut segments) in givers.into_iter().take(free) {
        let used: usize = iteration.lanes.iter().map(|lane| lane.share).sum();
        if used >= batch {
            break;
        }
        for segment in &segments {
            iteration.todo.remove(segment);
        }
        let share = if own > 0 && member == cx.local { own } else { each.min(batch - used) };
        let is_alone = lanes_max == 1 && member != cx.local && share > 1 && segments.len() > 1;
        if is_alone {
            let rest = segments.split_off(segments.len() / 2);
            iteration.lanes.push(Lane::new(member.clone(), rest, (share / 2).min(SEQUENTIAL_BATCH_MAX)));
        }
        let share = if is_alone { share.div_ceil(2).min(SEQUENTIAL_BATCH_MAX) } else { share };
        iteration.lanes.push(Lane::new(member, segments, share));
    }
}

fn failure_of(
    publication: &Publication,
    from: &Address,
    failed: Option<OperationError>,
    applied: Applied,
) -> IterationError {
    if let Some(error) = failed {
        return error.into();
    }
    let name = publication.transform.as_ref().map_or_else(|| Arc::from(""), |one| one.name.clone());
    let member = from.clone().into();
    match applied {
        Applied::Panicked => IterationError::Panicked { member, name },
        Applied::Unknown | Applied::Done => IterationError::UnknownTransform { member, name },
    }
}

fn accept(iteration: &mut Iteration, from: &Address, fetched: Fetched) {
    let Fetched { nth, parts, items, cursor, applied, failed, .. } = fetched;
    let is_it = |lane: &Lane| {
        lane.member == *from && matches!(lane.state, LaneState::Asked { nth: asked, .. } if asked == nth)
    };
    let Some(at) = iteration.lanes.iter().position(is_it) else { return };
    if failed.is_some() || applied != Applied::Done {
        iteration.failed = Some(failure_of(&iteration.publication, from, failed, applied));
        return;
    }
    let remembers = iteration.publication.guarantee == Guarantee::ExactlyOnce;
    let is_counted = iteration.publication.projection == Projection::Count;
    let mut kept = if iteration.publication.whole { items } else { items.materialize() };
    let is_reduced = iteration.publication.projection == Projection::Reduced;
    let mut completed = Vec::new();
    let mut length = 0;
    let mut refused = Vec::new();
    let begun_with = iteration.lanes[at].cursor.and(iteration.lanes[at].segments.front().copied());
    for part in parts {
        let segment = part.segment;
        if iteration.lanes[at].segments.front() != Some(&segment) {
            // The part does not answer the request.
            break;
        }
        let count = if is_counted { 0 } else { part.count as usize };
        let from_here = length;
        length = kept.len().min(from_here + count);
        if let Some(given) = iteration.given.get(&segment).filter(|given| !given.before.is_empty()) {
            length -= kept.take_out(from_here..length, |key| !given.had(key));
        }
        let fresh = length - from_here;
        match part.end {
            PartEnd::Complete => {
                let counted = iteration.partial.remove(&segment).unwrap_or(0) + u64::from(part.count);
                iteration.count += if is_counted { counted } else { fresh as u64 };
                iteration.given.remove(&segment);
                completed.append(&mut iteration.reduced.remove(&segment).unwrap_or_default());
                iteration.lanes[at].segments.pop_front();
            }
            // If its sender is lost, another owner begins the segment anew.
            PartEnd::More if is_reduced => {
                let made = kept.iter().take(length).skip(from_here).map(ItemRef::to_item);
                iteration.reduced.entry(segment).or_default().extend(made);
                length = from_here;
                break;
            }
            PartEnd::More if is_counted => {
                *iteration.partial.entry(segment).or_default() += u64::from(part.count);
                break;
            }
            PartEnd::More => {
                iteration.count += fresh as u64;
                if remembers {
                    let given = iteration.given.entry(segment).or_default();
                    kept.iter().take(length).skip(from_here).for_each(|item| given.note(item.key));
                }
                break;
            }
            PartEnd::Refused => {
                iteration.lanes[at].segments.pop_front();
                refused.push(segment);
            }
        }
    }
    kept.truncate(length);
    kept.append(completed);
    let lane = &mut iteration.lanes[at];
    lane.cursor = cursor.filter(|_| !lane.segments.is_empty());
    lane.state = LaneState::Ready { nth, items: kept };
    iteration.give_back(refused, begun_with);
}
