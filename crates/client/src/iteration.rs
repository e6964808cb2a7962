//! Iterations over a cache as streams that fetch on demand (facts section 2.10).
//!
//! The client asks each server for the segments of which it is the primary, several at a time. Servers report finished segments;
//! if one is lost or has forgotten the iteration, the client requests the rest from the new owners and drops duplicates
//! (`tracking`).

mod server_iteration;
mod tracking;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use consort_encoding::Decode;
use consort_hotrod::ops::iteration::{Entry as Item, TO_EMPTY_BYTES};
use consort_hotrod::ops::listener::Factory;
use consort_hotrod::ops::server;
use consort_hotrod::{Intelligence, RequestBody};
use futures_core::Stream;

use crate::cache::{Cache, Entry, entry};
use crate::error::ClientError;
use crate::filter::Filter;
use crate::limits::{SEGMENTS_MAX, WALK_TRIES_MAX, WALKS_AT_ONCE};
use server_iteration::{BatchError, FetchedBatch, IterationRequest, SegmentSet, ServerIteration};
use tracking::Tracking;

/// A few hundred KB of small entries, and few requests.
const BATCH: usize = 1_024;

type Decoding<T> = dyn Fn(Item) -> Result<T, ClientError> + Send;
type LearningTopology = Pin<Box<dyn Future<Output = Result<(), ClientError>> + Send>>;

/// An iteration over a cache. From [`Cache::entries`], [`Cache::entries_with_metadata`], [`Cache::keys`] and [`Cache::values`].
///
/// Entries come in no order. An entry that exists from the first poll to the end comes exactly once, also if servers crash, join
/// or leave; one created or removed meanwhile may come. For that the client remembers unfinished segments' keys, up to 64 MB.
/// Beyond that, with servers that map keys to segments differently, and after a switch to another cluster, an interruption ends
/// it with [`ClientError::IterationInterrupted`].
///
/// Dropping the stream ends the iteration on the servers.
#[must_use = "an iteration sends no request before it is polled"]
pub struct EntryStream<T> {
    request: Arc<IterationRequest>,
    batch: usize,
    segments: Option<BTreeSet<usize>>,
    state: State,
    server_iterations: Vec<ServerIteration>,
    ahead: VecDeque<SegmentSet>,
    items: VecDeque<Item>,
    tracking: Tracking,
    /// The number of cluster switches at its begin.
    switches: u64,
    /// Attempts since the last entry or finished segment.
    tries: usize,
    decode: Box<Decoding<T>>,
}

enum State {
    New,
    LearningTopology(LearningTopology),
    Running,
    Over,
}

impl<T> fmt::Debug for EntryStream<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "iteration of {}", self.request.cache.name)
    }
}

impl<T> EntryStream<T> {
    fn settings(&mut self) -> &mut IterationRequest {
        Arc::get_mut(&mut self.request).expect("settings are changed before the request is shared")
    }

    /// Sets how many entries are fetched ahead for all servers together; default 1,024.
    pub fn batch(mut self, batch: usize) -> Self {
        self.batch = batch.max(1);
        self
    }

    /// Iterates over these segments only.
    pub fn segments(mut self, segments: impl IntoIterator<Item = u16>) -> Self {
        self.segments = Some(segments.into_iter().map(usize::from).collect());
        self
    }

    /// Iterates over entries that match a filter.
    pub fn filter(mut self, filter: Filter) -> Self {
        self.settings().filter = Some(filter.into_factory());
        self
    }

    fn fetch(&mut self) -> bool {
        while self.server_iterations.len() < WALKS_AT_ONCE
            && let Some(part) = self.ahead.pop_front()
        {
            self.server_iterations.push(ServerIteration::new(part));
        }
        // While one half is consumed, the other half is fetched.
        let share = (self.batch / (2 * self.server_iterations.len().max(1))).max(1);
        let coming =
            self.server_iterations.iter().filter(|server_iteration| server_iteration.is_fetching()).count();
        let is_idle = coming == 0 && self.items.is_empty();
        let room = self.batch.saturating_sub(self.items.len()) / share;
        let more = room.saturating_sub(coming).max(usize::from(is_idle));
        let mut has_asked = false;
        for server_iteration in self
            .server_iterations
            .iter_mut()
            .filter(|server_iteration| !server_iteration.is_fetching())
            .take(more)
        {
            server_iteration.fetch(&self.request, u32::try_from(share).unwrap_or(u32::MAX));
            has_asked = true;
        }
        has_asked
    }

    fn divide(&mut self, segments: Option<BTreeSet<usize>>) {
        let routing = self.request.cache.routing();
        let Some((routing, count)) = routing.and_then(|routing| Some((routing.clone(), routing.segments()?)))
        else {
            self.ahead.push_back(SegmentSet { server: None, segments });
            return;
        };
        let all = 0..count as usize;
        let segments = segments.unwrap_or_else(|| all.clone().collect());
        let mut parts: BTreeMap<Option<usize>, SegmentSet> = BTreeMap::new();
        for segment in segments.into_iter().filter(|segment| all.contains(segment)) {
            let server = routing.primary_of(segment);
            let index = server
                .and_then(|server| routing.servers().iter().position(|other| Arc::ptr_eq(other, server)));
            let part = parts
                .entry(index)
                .or_insert_with(|| SegmentSet { server: server.cloned(), segments: Some(BTreeSet::new()) });
            part.segments.get_or_insert_default().insert(segment);
        }
        self.ahead.extend(parts.into_values());
    }

    fn begin(&mut self) {
        self.state = State::Running;
        self.switches = self.request.client.clusters.switches();
        let count = self.request.cache.routing().and_then(|routing| routing.segments());
        self.tracking = Tracking::new(count);
        let segments = self.segments.take();
        if segments.as_ref().is_none_or(|segments| !segments.is_empty()) {
            self.divide(segments);
        }
    }

    fn take(&mut self, index: usize, fetched: FetchedBatch) -> Result<(), ClientError> {
        let (remote, batch) = match fetched {
            // The entries of one cluster cannot complete those of another.
            Ok((remote, _)) if remote.switches() != self.switches => return Err(self.interrupted()),
            Ok(fetched) => fetched,
            Err(BatchError::Failed(error)) => return Err(error),
            Err(BatchError::Interrupted(error)) => {
                let ServerIteration { part, .. } = self.server_iterations.swap_remove(index);
                return self.again(part, error);
            }
        };
        let part = &mut self.server_iterations[index].part;
        let is_end = batch.entries.is_empty();
        for item in batch.entries {
            let segment = self.tracking.segment(&item.key);
            let is_of_part =
                |segment| part.segments.as_ref().is_none_or(|of_part| of_part.contains(&segment));
            if segment.is_some_and(|segment| !is_of_part(segment)) {
                self.tracking.lose();
            }
            if self.tracking.is_new(&item.key) {
                self.items.push_back(item);
                self.tries = 0;
            }
        }
        if let Some(segments) = &mut part.segments {
            for segment in batch.finished.iter().take(SEGMENTS_MAX) {
                if segments.remove(&segment) {
                    self.tracking.finish(segment);
                    self.tries = 0;
                }
            }
        }
        let is_finished = part.segments.as_ref().is_some_and(BTreeSet::is_empty);
        // Without known segments, the server's end counts.
        let is_done = is_finished || is_end && !self.tracking.knows_segments();
        if is_done {
            // Dropping the remote iteration ends it on the server.
            self.server_iterations.swap_remove(index);
        } else if is_end {
            let ServerIteration { part, .. } = self.server_iterations.swap_remove(index);
            return self.again(part, None);
        } else {
            self.server_iterations[index].remote = Some(remote);
        }
        Ok(())
    }

    fn again(&mut self, part: SegmentSet, error: Option<ClientError>) -> Result<(), ClientError> {
        self.tries += 1;
        if self.request.client.clusters.switches() != self.switches {
            return Err(self.interrupted());
        }
        if self.tracking.is_lost() || self.tries > WALK_TRIES_MAX {
            return Err(error.unwrap_or_else(|| self.interrupted()));
        }
        self.divide(part.segments);
        Ok(())
    }

    fn interrupted(&self) -> ClientError {
        ClientError::IterationInterrupted { cache: self.request.cache.name.to_string() }
    }

    fn poll_item(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Item, ClientError>>> {
        loop {
            match &mut self.state {
                State::Over => return Poll::Ready(None),
                State::New => {
                    let client = &self.request.client;
                    let is_known = self.request.cache.routing().is_some();
                    if is_known || client.settings.intelligence != Intelligence::Hash {
                        self.begin();
                    } else {
                        self.state = State::LearningTopology(Box::pin(learn_topology(self.request.clone())));
                    }
                    continue;
                }
                State::LearningTopology(learning) => {
                    let learned = std::task::ready!(learning.as_mut().poll(cx));
                    self.begin();
                    if let Err(error) = learned {
                        return self.fail(error);
                    }
                    continue;
                }
                State::Running => {}
            }
            let has_asked = self.fetch();
            if let Some(item) = self.items.pop_front_if(|_| !has_asked) {
                return Poll::Ready(Some(Ok(item)));
            }
            let (mut index, mut has_moved) = (0, false);
            while index < self.server_iterations.len() {
                let Poll::Ready(fetched) = self.server_iterations[index].poll(cx) else {
                    index += 1;
                    continue;
                };
                has_moved = true;
                let before = self.server_iterations.len();
                if let Err(error) = self.take(index, fetched) {
                    return self.fail(error);
                }
                // `take` may have moved another server iteration to this index.
                index += usize::from(self.server_iterations.len() == before);
            }
            if let Some(item) = self.items.pop_front() {
                return Poll::Ready(Some(Ok(item)));
            }
            if self.server_iterations.is_empty() && self.ahead.is_empty() {
                self.state = State::Over;
            } else if !has_moved {
                return Poll::Pending;
            }
        }
    }

    fn fail(&mut self, error: ClientError) -> Poll<Option<Result<Item, ClientError>>> {
        self.state = State::Over;
        self.items.clear();
        self.ahead.clear();
        self.abandon();
        Poll::Ready(Some(Err(error)))
    }

    fn abandon(&mut self) {
        for server_iteration in self.server_iterations.drain(..) {
            if let Some(fetching) = server_iteration.abandon() {
                self.request.client.spawn(async move {
                    // Dropping the batch's iteration ends it on the server.
                    drop(fetching.await);
                });
            }
        }
    }
}

async fn learn_topology(request: Arc<IterationRequest>) -> Result<(), ClientError> {
    let ping = request.ask(RequestBody::Server(server::Request::Ping));
    request.client.perform(&request.cache, ping, None).await.map(drop)
}

impl<T> Stream for EntryStream<T> {
    type Item = Result<T, ClientError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_item(cx).map(|item| item.map(|item| item.and_then(|item| (self.decode)(item))))
    }
}

impl<T> EntryStream<T> {
    /// Returns the next item, as the stream's `next`; `None` at the end.
    ///
    /// # Errors
    ///
    /// [`ClientError`]; earlier items are valid. A failure of the servers ends the stream; after a decoding failure the next item
    /// follows.
    pub async fn next(&mut self) -> Option<Result<T, ClientError>> {
        std::future::poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await
    }
}

impl<T> Drop for EntryStream<T> {
    fn drop(&mut self) {
        self.abandon();
    }
}

impl<K, V, KE, VE> Cache<K, V, KE, VE> {
    fn stream<T>(&self, decode: impl Fn(Item) -> Result<T, ClientError> + Send + 'static) -> EntryStream<T> {
        let request = IterationRequest {
            client: self.client.clone(),
            cache: self.state.clone(),
            flags: self.options().flags,
            key_type: self.key_type.clone(),
            value_type: self.value_type.clone(),
            timeout: self.options().timeout,
            filter: None,
            with_metadata: false,
        };
        EntryStream {
            request: Arc::new(request),
            batch: BATCH,
            segments: None,
            state: State::New,
            server_iterations: Vec::new(),
            ahead: VecDeque::new(),
            items: VecDeque::new(),
            tracking: Tracking::new(None),
            switches: 0,
            tries: 0,
            decode: Box::new(decode),
        }
    }

    /// Iterates over all entries, with values as of the server's batch; see [`EntryStream`].
    pub fn entries(&self) -> EntryStream<(K, V)>
    where
        KE: Decode<K>,
        VE: Decode<V>,
    {
        let (keys, values) = (self.codec.keys().clone(), self.codec.values().clone());
        self.stream(move |item| {
            let value = item.values.into_iter().next().unwrap_or_default();
            Ok((keys.decode(item.key)?, values.decode(value)?))
        })
    }

    /// Iterates over all entries with their versions and lifetimes.
    pub fn entries_with_metadata(&self) -> EntryStream<(K, Entry<V>)>
    where
        KE: Decode<K>,
        VE: Decode<V>,
    {
        let (keys, values) = (self.codec.keys().clone(), self.codec.values().clone());
        let mut stream = self.stream(move |item| {
            let value = item.values.into_iter().next().unwrap_or_default();
            let metadata = item.metadata.unwrap_or(consort_hotrod::Metadata::immortal(0));
            Ok((keys.decode(item.key)?, entry(metadata, values.decode(value)?)))
        });
        stream.settings().with_metadata = true;
        stream
    }

    /// Iterates over all values; keys are transferred, too, because the client needs them to drop duplicates.
    pub fn values(&self) -> EntryStream<V>
    where
        VE: Decode<V>,
    {
        let values = self.codec.values().clone();
        self.stream(move |item| Ok(values.decode(item.values.into_iter().next().unwrap_or_default())?))
    }

    /// Returns whether the cache has no entries; fails if the servers do.
    pub async fn is_empty(&self) -> Result<bool, ClientError>
    where
        KE: Send + Sync,
        VE: Send + Sync,
    {
        let mut stream = self.stream(|_| Ok(())).batch(1);
        match stream.next().await {
            // Versions without iterations need the size.
            Some(Err(ClientError::Unsupported { .. })) => Ok(self.size().await? == 0),
            first => Ok(first.transpose()?.is_none()),
        }
    }

    /// Iterates over all keys; values are transferred only with a filter, because servers apply one function at a time.
    pub fn keys(&self) -> EntryStream<K>
    where
        KE: Decode<K>,
    {
        let keys = self.codec.keys().clone();
        let mut stream = self.stream(move |item| Ok(keys.decode(item.key)?));
        stream.settings().filter = Some(Factory { name: TO_EMPTY_BYTES.into(), params: Vec::new() });
        stream
    }
}
