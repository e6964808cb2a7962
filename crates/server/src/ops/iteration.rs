//! Iterations of clients over a cache's entries, batch by batch (facts section 2.10).
//!
//! An entry that exists throughout is returned once, whatever members join or leave. After the loss of a connection, a client
//! iterates again over the unfinished segments; so an iteration goes over a group of segments at a time, and reports each group
//! as finished.
//!
//! Clients compute a key's segment from the bytes that they get. If these are not the cache's ([`crate::media`]), an iteration
//! goes over all segments, returns the keys in the client's segments by the client's bytes, and reports all segments as finished
//! at its end.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use consort_cache::{BATCH, EntryStream, FETCH_BYTES, LANES_MAX, RawCache, Segment};
use consort_hotrod::hash::segment_of;
use consort_hotrod::ops::iteration::{Batch, Entry, Request, Response, Start, Values};
use consort_hotrod::{BitSet, Metadata, ResponseBody, Status, Text};
use consort_memory::Reservation;

use crate::limits::{BATCH_BYTES_MAX, BATCH_MAX, ITERATION_IDLE_MAX, ITERATIONS_MAX, SEGMENTS_PER_GROUP};
use crate::media::Conversion;
use crate::memory::responses::{ResponseReservation, Responses};
use crate::ops::filter::EntrySelection;
use crate::ops::query::IterationQuery;
use crate::reply::{Answer, Refusal};

pub(crate) struct Iterations {
    all: Mutex<IterationTable>,
}

struct IterationTable {
    /// Unique in the process: after the loss of its connection a client must not find another iteration under an old id.
    last: u64,
    walking: BTreeMap<u64, Arc<OpenIteration>>,
}

struct OpenIteration {
    cache: RawCache,
    used: Mutex<Instant>,
    progress: tokio::sync::Mutex<Progress>,
}

enum Projection {
    Entries(EntrySelection),
    Rows(Box<IterationQuery>),
}

impl Projection {
    fn apply_to(&self, entries: Entries) -> Entries {
        match self {
            Self::Entries(wanted) => wanted.apply_to(entries),
            Self::Rows(rows) => rows.apply(entries),
        }
    }

    fn read(&self, made: Bytes) -> Result<Option<(Option<Metadata>, Values)>, Refusal> {
        Ok(match self {
            Self::Entries(wanted) => {
                wanted.read(made).map(|(metadata, value)| (metadata, [value].into_iter().collect()))
            }
            Self::Rows(rows) => rows.read(made)?,
        })
    }

    fn columns(&self) -> usize {
        match self {
            Self::Entries(_) => 1,
            Self::Rows(rows) => rows.columns(),
        }
    }

    /// False for the mark of a missing value.
    fn is_value(&self, value: &Bytes) -> bool {
        match self {
            Self::Entries(wanted) => !wanted.without_values,
            Self::Rows(_) => !value.is_empty(),
        }
    }
}

type Entries = EntryStream<(Bytes, Bytes)>;

struct Progress {
    cache: RawCache,
    conversion: Option<Conversion>,
    wanted: Projection,
    batch: usize,
    /// Set if the keys of these segments may be in any segment of the cache.
    scattered: Option<BitSet>,
    ahead: Vec<Segment>,
    now: Option<(Vec<Segment>, Entries)>,
    /// The reservation for entries that are in no batch yet, between two requests of the client.
    held: Option<Reservation>,
}

impl Default for Iterations {
    fn default() -> Self {
        let last = RandomState::new().build_hasher().finish();
        Self { all: Mutex::new(IterationTable { last, walking: BTreeMap::new() }) }
    }
}

impl OpenIteration {
    fn idles(&self, now: Instant) -> bool {
        let used = *self.used.lock().unwrap_or_else(PoisonError::into_inner);
        now.saturating_duration_since(used) > ITERATION_IDLE_MAX
    }
}

impl Iterations {
    fn all(&self) -> MutexGuard<'_, IterationTable> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, id: &Text) -> Option<(u64, Arc<OpenIteration>)> {
        let id = id.as_str().parse().ok()?;
        Some((id, self.all().walking.get(&id)?.clone()))
    }

    pub(crate) fn cache_of(&self, id: &Text) -> Option<RawCache> {
        self.get(id).map(|(_, walking)| walking.cache.clone())
    }

    pub(crate) async fn answer(
        &self,
        responses: &Responses,
        cache: &RawCache,
        conversion: Option<&Conversion>,
        request: Request,
        rows: Option<IterationQuery>,
    ) -> Answer {
        match request {
            Request::Start(start) => self.start(cache, conversion, &start, rows, Instant::now()),
            Request::Next(id) => match self.get(&id) {
                None => {
                    let nothing = Batch { finished: BitSet::default(), projections: 1, entries: Vec::new() };
                    Answer::new(Status::InvalidIteration, ResponseBody::Iteration(Response::Batch(nothing)))
                }
                Some((id, walking)) => {
                    let batch = walking.progress.lock().await.answer(responses).await;
                    *walking.used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
                    match batch {
                        Ok((batch, gathering)) => {
                            let body = ResponseBody::Iteration(Response::Batch(batch));
                            Answer::success(body).holding(gathering.finish())
                        }
                        Err(BatchError::NoRoom(refusal)) => refusal.into(),
                        Err(BatchError::Failed(refusal)) => {
                            self.all().walking.remove(&id);
                            refusal.into()
                        }
                    }
                }
            },
            Request::End(id) => {
                let ended = self.get(&id).and_then(|(id, _)| self.all().walking.remove(&id));
                Answer::of(if ended.is_some() { Status::Success } else { Status::InvalidIteration })
            }
        }
    }

    fn start(
        &self,
        cache: &RawCache,
        conversion: Option<&Conversion>,
        start: &Start,
        rows: Option<IterationQuery>,
        now: Instant,
    ) -> Answer {
        let wanted = match rows {
            Some(rows) => Ok(Projection::Rows(Box::new(rows))),
            None => EntrySelection::of(start.filter.as_ref(), start.with_metadata).map(Projection::Entries),
        };
        let wanted = match wanted {
            Ok(wanted) => wanted,
            Err(error) => return error.in_iteration().into(),
        };
        let is_asked = |segment: &u16| {
            start.segments.as_ref().is_none_or(|segments| segments.contains(usize::from(*segment)))
        };
        let segments = || (0..cache.config().segments).rev();
        let is_scattered = conversion.is_some_and(Conversion::changes_keys);
        let asked = || segments().filter(is_asked).map(usize::from).collect();
        let progress = Progress {
            wanted,
            scattered: is_scattered.then(asked),
            batch: usize::try_from(start.batch).unwrap_or(usize::MAX).clamp(1, BATCH_MAX),
            ahead: segments().filter(|segment| is_scattered || is_asked(segment)).map(Segment).collect(),
            now: None,
            held: None,
            cache: cache.clone(),
            conversion: conversion.cloned(),
        };
        let (used, progress) = (Mutex::new(now), tokio::sync::Mutex::new(progress));
        let walking = OpenIteration { cache: cache.clone(), used, progress };
        let mut all = self.all();
        if all.walking.len() >= ITERATIONS_MAX {
            all.walking.retain(|_, walking| !walking.idles(now));
        }
        if all.walking.len() >= ITERATIONS_MAX {
            return Refusal::new(format!(
                "this connection has reached the limit of {ITERATIONS_MAX} iterations"
            ))
            .into();
        }
        all.last = all.last.wrapping_add(1);
        let id = all.last;
        all.walking.insert(id, Arc::new(walking));
        Answer::success(ResponseBody::Iteration(Response::Started(id.to_string().into())))
    }
}

enum BatchError {
    /// The iteration keeps its position.
    NoRoom(Refusal),
    Failed(Refusal),
}

impl Progress {
    async fn answer(&mut self, responses: &Responses) -> Result<(Batch, ResponseReservation), BatchError> {
        let mut gathering = responses.begin_batch().await.map_err(BatchError::NoRoom)?;
        responses.hold_iteration(&mut self.held).await.map_err(BatchError::NoRoom)?;
        let in_transit = responses.begin_iteration().await.map_err(BatchError::NoRoom)?;
        let batch = self.next_batch(&mut gathering).await.map_err(BatchError::Failed)?;
        drop(in_transit);
        let rest = responses.iteration_share(self.rest_bytes(&batch));
        if let Some(held) = &mut self.held {
            // The entries are already here, so that they count also beyond the limit. Other iterations wait then.
            held.grow_forced(rest.saturating_sub(held.bytes()));
            held.shrink(held.bytes() - rest);
        }
        Ok((batch, gathering))
    }

    /// Bytes that owners may have sent beyond this batch, if entries stay as large.
    fn rest_bytes(&self, batch: &Batch) -> u64 {
        if self.now.is_none() {
            return 0;
        }
        let bytes = |entry: &Entry| entry.key.len() + entry.values.iter().map(Bytes::len).sum::<usize>();
        let all: usize = batch.entries.iter().map(bytes).sum();
        let largest = batch.entries.iter().map(bytes).max().unwrap_or(0);
        let fetched = (all / batch.entries.len().max(1)).saturating_mul(BATCH);
        fetched.min(LANES_MAX * largest.max(FETCH_BYTES)) as u64
    }

    async fn next_batch(&mut self, gathering: &mut ResponseReservation) -> Result<Batch, Refusal> {
        let (mut entries, mut bytes, mut finished, mut has_room) = (Vec::new(), 0, Vec::new(), true);
        while entries.len() < self.batch && bytes < BATCH_BYTES_MAX && has_room {
            let Some((segments, stream)) = &mut self.now else {
                if self.ahead.is_empty() {
                    break;
                }
                let segments = self.ahead.split_off(self.ahead.len().saturating_sub(SEGMENTS_PER_GROUP));
                let stream = self.cache.entries().segments(&segments[..]);
                self.now = Some((segments, self.wanted.apply_to(stream)));
                continue;
            };
            match stream.next().await.transpose()? {
                None => {
                    match &self.scattered {
                        None => finished.extend(segments.iter().map(|segment| usize::from(segment.0))),
                        Some(asked) if self.ahead.is_empty() => finished.extend(asked.iter()),
                        Some(_) => {}
                    }
                    self.now = None;
                }
                Some((key, made)) => {
                    let Some((metadata, mut values)) = self.wanted.read(made)? else {
                        let text = "cannot read the entries of an owner of another version";
                        return Err(Refusal::new(text));
                    };
                    let key = match &self.conversion {
                        None => key,
                        Some(conversion) => {
                            for value in values.iter_mut().filter(|value| self.wanted.is_value(value)) {
                                *value = conversion.value_out_offloaded(std::mem::take(value)).await?;
                            }
                            conversion.key_out(key)?
                        }
                    };
                    if let Some(asked) = &self.scattered {
                        let segment = segment_of(&key, self.cache.config().segments.into());
                        if !asked.contains(segment as usize) {
                            continue;
                        }
                    }
                    let own = key.len() + values.iter().map(Bytes::len).sum::<usize>();
                    bytes += own;
                    // The entry counts twice, because it is in memory and is copied into the response; a large one is not
                    // copied.
                    has_room = gathering.try_add(size_of::<Entry>() + 2 * own);
                    entries.push(Entry { metadata, key, values });
                }
            }
        }
        let projections = u32::try_from(self.wanted.columns()).unwrap_or(u32::MAX);
        Ok(Batch { finished: finished.into_iter().collect(), projections, entries })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use consort_memory::Budget;

    use super::*;
    use crate::memory::Memory;
    use crate::transactions::tests::single_member;

    const START: Start = Start { segments: None, filter: None, batch: 1, with_metadata: false };

    #[tokio::test]
    async fn idle_iterations_are_dropped_for_others_and_the_rest_stay() {
        let alone = single_member("idle-walks").await;
        let (iterations, responses) = (Iterations::default(), Responses::new(&Memory::default()));
        let begun = Instant::now();
        let start = |now| {
            let answer = iterations.start(&alone.cache, None, &START, None, now);
            match answer.body {
                ResponseBody::Iteration(Response::Started(id)) => Some(id),
                _ => None,
            }
        };
        let [idle, used] = [start(begun).unwrap(), start(begun).unwrap()];
        let later = begun + ITERATION_IDLE_MAX + Duration::from_secs(1);
        for _ in 2..ITERATIONS_MAX {
            assert!(start(later).is_some());
        }
        assert_eq!(start(begun + ITERATION_IDLE_MAX), None, "no iteration has idled for longer than it may");
        let next = async |id: &Text| {
            let next = Request::Next(id.clone());
            iterations.answer(&responses, &alone.cache, None, next, None).await.status
        };
        assert_eq!(next(&used).await, Status::Success);
        *iterations.get(&used).unwrap().1.used.lock().unwrap() = later;
        assert!(start(later).is_some());
        assert_eq!(start(later), None, "as many as there may be");
        assert_eq!(next(&idle).await, Status::InvalidIteration);
        assert_eq!(next(&used).await, Status::Success);
    }

    #[tokio::test]
    async fn bytes_that_iterations_hold_are_bounded_for_all_of_them() {
        const MIB: u64 = 1024 * 1024;
        let alone = single_member("held-iterations").await;
        alone.cache.put(&b"k"[..], &vec![7; MIB as usize / 2][..]).await.unwrap();
        let process = Budget::new("process", 64 * MIB);
        let memory = Memory { reserve_time: Duration::ZERO, ..Memory::within(process) };
        let (iterations, responses) = (Iterations::default(), Responses::new(&memory));
        let begin = async || {
            let answer = iterations.start(&alone.cache, None, &START, None, Instant::now());
            let ResponseBody::Iteration(Response::Started(id)) = answer.body else {
                panic!("it has not begun")
            };
            id
        };
        let ask =
            async |request| iterations.answer(&responses, &alone.cache, None, request, None).await.status;
        let mut open = Vec::new();
        let refused = loop {
            let iteration = begin().await;
            if ask(Request::Next(iteration.clone())).await != Status::Success {
                break iteration;
            }
            open.push(iteration);
        };
        // Each may have four responses of 1 MiB.
        assert_eq!(open.len() as u64, memory.iterations.limit() / (4 * MIB));
        for iteration in &open[1..] {
            assert_eq!(ask(Request::Next(iteration.clone())).await, Status::Success, "it has begun");
        }
        assert!(memory.iterations.used() <= 4 * MIB, "those at their end hold nothing");
        assert_eq!(
            ask(Request::Next(refused)).await,
            Status::Success,
            "it kept its position, and there is capacity"
        );
    }

    #[tokio::test]
    async fn iteration_over_large_values_continues_without_other_reservations() {
        const MIB: usize = 1024 * 1024;
        let alone = single_member("large-values").await;
        for key in [b"a", b"b", b"c"] {
            alone.cache.put(&key[..], &vec![7; 6 * MIB][..]).await.unwrap();
        }
        let memory = Memory::within(Budget::new("process", 32 * MIB as u64));
        let (iterations, responses) = (Iterations::default(), Responses::new(&memory));
        let answer = iterations.start(&alone.cache, None, &START, None, Instant::now());
        let ResponseBody::Iteration(Response::Started(id)) = answer.body else { panic!("it has not begun") };
        for _ in 0..4 {
            let next = Request::Next(id.clone());
            let answer = iterations.answer(&responses, &alone.cache, None, next, None).await;
            assert_eq!(answer.status, Status::Success);
        }
        assert_eq!(memory.iterations.used(), 0);
    }
}
