//! Going through all entries of a cache, as streams that ask for more only when they are polled (facts section 2.10).
//!
//! Each server is asked for the segments of which it is the primary, some servers at a time. It says which segments are
//! finished; where a server is lost, or does not know the walk any more, the rest is asked for again, at those who have it
//! then, and what was given already is left out (`tracking`).

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

use crate::limits::{SEGMENTS_MAX, WALK_TRIES_MAX, WALKS_AT_ONCE};
use crate::cache::{Cache, Entry, entry};
use crate::error::ClientError;
use crate::filter::Filter;
use server_iteration::{IterationRequest, BatchError, FetchedBatch, ServerIteration, SegmentSet};
use tracking::Tracking;

/// Entries that may be fetched and not consumed unless a walk says otherwise: a few hundred KB of small ones, and enough
/// that servers are not asked for each handful.
const BATCH: usize = 1_024;

type Decoding<T> = dyn Fn(Item) -> Result<T, ClientError> + Send;
type LearningTopology = Pin<Box<dyn Future<Output = Result<(), ClientError>> + Send>>;

/// What is to be gone through, and how. From [`Cache::entries`], [`Cache::entries_with_metadata`], [`Cache::keys`]
/// and [`Cache::values`].
///
/// Entries come from several servers at once, in no order. One that is there from the first poll to the end comes exactly
/// once, also if servers die, join or leave meanwhile; one that comes or goes meanwhile may come. For that, the keys of
/// segments that are not finished are remembered, 64 MB of them at most. Beyond, with servers that share keys out otherwise
/// than this client knows, and if the client goes on with another cluster, a walk that is interrupted ends with
/// [`ClientError::IterationInterrupted`].
///
/// When it is dropped, the servers are told that they can forget it.
#[must_use = "nothing is asked before it is polled"]
pub struct EntryStream<T> {
    request: Arc<IterationRequest>,
    batch: usize,
    segments: Option<BTreeSet<usize>>,
    state: State,
    server_iterations: Vec<ServerIteration>,
    /// Parts that wait for others to end.
    ahead: VecDeque<SegmentSet>,
    items: VecDeque<Item>,
    tracking: Tracking,
    /// The cluster through which it goes: how often the client had switched when it began.
    site: u64,
    /// Attempts since something was last given or finished.
    tries: usize,
    decode: Box<Decoding<T>>,
}

enum State {
    New,
    /// It is asked for the topology.
    LearningTopology(LearningTopology),
    Running,
    Over,
}

impl<T> fmt::Debug for EntryStream<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "walk through {}", self.request.cache.name)
    }
}

impl<T> EntryStream<T> {
    fn settings(&mut self) -> &mut IterationRequest {
        Arc::get_mut(&mut self.request).expect("it is shared when it begins, and settings are made before")
    }

    /// Entries that may be fetched and not consumed, from all servers together; each is asked for an equal part at a time.
    /// 1,024 by default.
    pub fn batch(mut self, batch: usize) -> Self {
        self.batch = batch.max(1);
        self
    }

    /// Only these segments.
    pub fn segments(mut self, segments: impl IntoIterator<Item = u16>) -> Self {
        self.segments = Some(segments.into_iter().map(usize::from).collect());
        self
    }

    /// Only what this filter lets through: the servers apply it.
    pub fn filter(mut self, filter: Filter) -> Self {
        self.settings().filter = Some(filter.into_factory());
        self
    }

    /// Asks for the next batches, as far as there is room for what they bring. Whether it has asked for any.
    fn fetch(&mut self) -> bool {
        while self.server_iterations.len() < WALKS_AT_ONCE
            && let Some(part) = self.ahead.pop_front()
        {
            self.server_iterations.push(ServerIteration::new(part));
        }
        // While one half is consumed, the other is fetched.
        let share = (self.batch / (2 * self.server_iterations.len().max(1))).max(1);
        let coming = self.server_iterations.iter().filter(|server_iteration| server_iteration.is_fetching()).count();
        let is_idle = coming == 0 && self.items.is_empty();
        let room = self.batch.saturating_sub(self.items.len()) / share;
        let more = room.saturating_sub(coming).max(usize::from(is_idle));
        let mut has_asked = false;
        for server_iteration in self.server_iterations.iter_mut().filter(|server_iteration| !server_iteration.is_fetching()).take(more) {
            server_iteration.fetch(&self.request, u32::try_from(share).unwrap_or(u32::MAX));
            has_asked = true;
        }
        has_asked
    }

    /// Divides segments among those who are their primaries.
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
            let place = server
                .and_then(|server| routing.servers().iter().position(|other| Arc::ptr_eq(other, server)));
            let part = parts
                .entry(place)
                .or_insert_with(|| SegmentSet { server: server.cloned(), segments: Some(BTreeSet::new()) });
            part.segments.get_or_insert_default().insert(segment);
        }
        self.ahead.extend(parts.into_values());
    }

    fn begin(&mut self) {
        self.state = State::Running;
        self.site = self.request.client.sites.switches();
        let count = self.request.cache.routing().and_then(|routing| routing.segments());
        self.tracking = Tracking::new(count);
        let segments = self.segments.take();
        if segments.as_ref().is_none_or(|segments| !segments.is_empty()) {
            self.divide(segments);
        }
    }

    /// Takes what a lane has brought. It is among the lanes no more if it has ended.
    fn take(&mut self, place: usize, fetched: FetchedBatch) -> Result<(), ClientError> {
        let (remote, batch) = match fetched {
            // The rest of one cluster's entries is not another one's.
            Ok((remote, _)) if remote.site() != self.site => return Err(self.interrupted()),
            Ok(fetched) => fetched,
            Err(BatchError::Failed(error)) => return Err(error),
            Err(BatchError::Interrupted(error)) => {
                let ServerIteration { part, .. } = self.server_iterations.swap_remove(place);
                return self.again(part, error);
            }
        };
        let part = &mut self.server_iterations[place].part;
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
        // Who does not know the segments takes the server's word.
        let is_done = is_finished || is_end && !self.tracking.knows_segments();
        if is_done {
            // The server is told with what has begun there.
            self.server_iterations.swap_remove(place);
        } else if is_end {
            let ServerIteration { part, .. } = self.server_iterations.swap_remove(place);
            return self.again(part, None);
        } else {
            self.server_iterations[place].remote = Some(remote);
        }
        Ok(())
    }

    /// What is left of a part goes on elsewhere.
    fn again(&mut self, part: SegmentSet, error: Option<ClientError>) -> Result<(), ClientError> {
        self.tries += 1;
        if self.request.client.sites.switches() != self.site {
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
            let (mut place, mut has_moved) = (0, false);
            while place < self.server_iterations.len() {
                let Poll::Ready(fetched) = self.server_iterations[place].poll(cx) else {
                    place += 1;
                    continue;
                };
                has_moved = true;
                let before = self.server_iterations.len();
                if let Err(error) = self.take(place, fetched) {
                    return self.fail(error);
                }
                // Another one may have taken its place.
                place += usize::from(self.server_iterations.len() == before);
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
                    // Once it has begun it ends.
                    drop(fetching.await);
                });
            }
        }
    }
}

/// Lets a server tell the topology.
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
    /// The next one; `None` at the end. The stream's `next` for those who use no streams.
    ///
    /// # Errors
    ///
    /// [`ClientError`]; what came before was right. After a failure of the servers' nothing comes any more, after one of
    /// decoding the next.
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
            site: 0,
            tries: 0,
            decode: Box::new(decode),
        }
    }

    /// All entries: see [`EntryStream`]. Values are those of the moment in which a server was asked.
    pub fn entries(&self) -> EntryStream<(K, V)>
    where
        KE: Decode<K>,
        VE: Decode<V>,
    {
        let (keys, values) = (self.keys.clone(), self.values.clone());
        self.stream(move |item| {
            let value = item.values.into_iter().next().unwrap_or_default();
            Ok((keys.decode(item.key)?, values.decode(value)?))
        })
    }

    /// All entries with their versions and how long they live.
    pub fn entries_with_metadata(&self) -> EntryStream<(K, Entry<V>)>
    where
        KE: Decode<K>,
        VE: Decode<V>,
    {
        let (keys, values) = (self.keys.clone(), self.values.clone());
        let mut stream = self.stream(move |item| {
            let value = item.values.into_iter().next().unwrap_or_default();
            let metadata = item.metadata.unwrap_or(consort_hotrod::Metadata::immortal(0));
            Ok((keys.decode(item.key)?, entry(metadata, values.decode(value)?)))
        });
        stream.settings().with_metadata = true;
        stream
    }

    /// All values, as [`Cache::entries`]. Keys come with them, since it is by their keys that none comes twice.
    pub fn values(&self) -> EntryStream<V>
    where
        VE: Decode<V>,
    {
        let values = self.values.clone();
        self.stream(move |item| Ok(values.decode(item.values.into_iter().next().unwrap_or_default())?))
    }

    /// Whether there are no entries.
    ///
    /// # Errors
    ///
    /// [`ClientError`], if servers cannot tell.
    pub async fn is_empty(&self) -> Result<bool, ClientError>
    where
        KE: Send + Sync,
        VE: Send + Sync,
    {
        let mut stream = self.stream(|_| Ok(())).batch(1);
        match stream.next().await {
            // Who speaks no version with walks has to count.
            Some(Err(ClientError::Unsupported { .. })) => Ok(self.size().await? == 0),
            first => Ok(first.transpose()?.is_none()),
        }
    }

    /// All keys. Values stay where they are, unless a filter is asked for: servers apply one thing at a time.
    pub fn keys(&self) -> EntryStream<K>
    where
        KE: Decode<K>,
    {
        let keys = self.keys.clone();
        let mut stream = self.stream(move |item| Ok(keys.decode(item.key)?));
        stream.settings().filter = Some(Factory { name: TO_EMPTY_BYTES.into(), params: Vec::new() });
        stream
    }
}
