//! Near caches: what a client has read and not been told to have changed since (facts sections 2.12 and 9.1).
//!
//! A listener tells of changes, at one server. Reads that are to be kept go to the same server on the same connection, so that
//! what they bring and what the listener tells are in one order, and so that the server's filter has their keys. When the
//! connection is lost, everything is forgotten until there is a listener again.

mod table;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::task::Waker;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use consort_hotrod::bloom::{BLOOM_BITS_MAX, BloomFilter};
use consort_hotrod::ops::event::EventData;
use consort_hotrod::ops::listener::{Interests, Listener, Request};
use consort_hotrod::ops::map;
use consort_hotrod::{MediaType, Metadata, RequestBody, ResponseBody, Status, Timed};
use smallvec::SmallVec;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::limits::BLOOM_BITS_PER_ENTRY;
use crate::cache::Cache;
use crate::clock::Time;
use crate::error::ClientError;
use crate::operation::{RequestSpec, NotExecuted, ServerConnection};
use crate::backoff::Backoff;
use crate::sinks::{Sink, ServerEvent};
use crate::registration::{ListenedCache, ListenerRegistration};
use table::{NearEntry, Lookup, PendingRead, Table};

/// What a near cache is to be like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NearCacheConfig {
    /// Entries that are kept: 10,000 by default. With more, those go that are least likely to be read.
    pub max_entries: usize,
    /// Bytes of keys and values that are kept, each with about 128 besides: 64 MiB by default.
    pub max_bytes: usize,
    /// Whether servers know, about, which keys are kept, and tell of those only: so by default. They are told with a filter,
    /// as soon as 3.1 is spoken.
    pub bloom: bool,
}

impl Default for NearCacheConfig {
    fn default() -> Self {
        Self { max_entries: 10_000, max_bytes: 64 * 1024 * 1024, bloom: true }
    }
}

/// What a near cache has done.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct NearStats {
    /// Reads that it has answered.
    pub hits: u64,
    /// Reads that had to go to a server.
    pub misses: u64,
    /// Changes that it was told of.
    pub events: u64,
    /// How often the server was told anew which keys are kept.
    pub updates: u64,
    /// Entries that it has.
    pub entries: usize,
    /// Whether it is told of changes. If not, it has nothing.
    pub is_on: bool,
}

#[derive(Default)]
struct Counters {
    hits: AtomicU64,
    misses: AtomicU64,
    events: AtomicU64,
    updates: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// A near cache and what keeps it true.
pub(crate) struct NearCache {
    near: NearCacheConfig,
    types: (MediaType, MediaType),
    entries: Arc<Entries>,
    started: watch::Receiver<Option<Result<(), ClientError>>>,
    task: JoinHandle<()>,
}

impl Drop for NearCache {
    /// With the task goes the listener.
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What callers, the connection and the task share.
struct Entries {
    table: Table<ServerConnection>,
    counters: Counters,
    /// Told when the server's filter has too many keys.
    is_stale: Notify,
    /// Keys that may be in the filter without need.
    gone_max: u64,
}

impl Entries {
    fn refresh_filter_if_stale(&self) {
        if self.table.gone() >= self.gone_max {
            self.is_stale.notify_one();
        }
    }
}

/// Hears of changes at one server.
struct InvalidationSink {
    entries: Arc<Entries>,
    lost: Arc<Notify>,
    is_lost: Arc<AtomicBool>,
}

impl Sink for InvalidationSink {
    fn on_event(&self, event: ServerEvent) -> Option<Waker> {
        if let ServerEvent::Entry(entry) = &event
            && let EventData::Key(key, _) = &entry.data
        {
            count(&self.entries.counters.events);
            self.entries.table.forget(key);
            self.entries.refresh_filter_if_stale();
        }
        None
    }

    fn on_disconnect(&self) -> Option<Waker> {
        self.is_lost.store(true, Ordering::Release);
        self.entries.table.turn_off();
        self.lost.notify_one();
        None
    }
}

impl NearCache {
    /// The near cache that handles of this cache share.
    fn of(listened: ListenedCache, near: NearCacheConfig, timeout: Duration) -> Result<Arc<Self>, ClientError> {
        let cache = listened.cache.clone();
        let mut shared = cache.near.lock().unwrap_or_else(PoisonError::into_inner);
        let types = (listened.key_type.clone(), listened.value_type.clone());
        if let Some(there) = shared.upgrade() {
            let is_same = there.near == near && there.types == types;
            return if is_same {
                Ok(there)
            } else {
                Err(ClientError::NearCacheConflict(cache.name.as_str().to_owned()))
            };
        }
        let entries = Arc::new(Entries {
            table: Table::new(near.max_entries, near.max_bytes),
            counters: Counters::default(),
            is_stale: Notify::new(),
            // As Java's clients do it.
            gone_max: near.max_entries as u64 / 16 + 3,
        });
        let (begins, started) = watch::channel(None);
        let bits = u32::try_from(near.max_entries.max(1)).unwrap_or(u32::MAX);
        let bits = bits.saturating_mul(BLOOM_BITS_PER_ENTRY).min(BLOOM_BITS_MAX);
        let client = listened.client.clone();
        let task = NearCacheTask {
            listened,
            entries: entries.clone(),
            bits: if near.bloom { bits } else { 0 },
            timeout,
            begins,
        };
        let task = client.spawn(task.keep());
        let near = Arc::new(Self { near, types, entries, started, task });
        *shared = Arc::downgrade(&near);
        Ok(near)
    }

    /// Until it is told of changes for the first time.
    async fn started(&self, start_timeout: Duration) -> Result<(), ClientError> {
        let mut started = self.started.clone();
        match timeout(start_timeout, started.wait_for(Option::is_some)).await {
            Ok(Ok(outcome)) => outcome.clone().unwrap_or(Err(ClientError::Closed)),
            Ok(Err(_)) => Err(ClientError::Closed),
            Err(_) => Err(ClientError::TimedOut { after: start_timeout, is_outcome_unknown: false }),
        }
    }

    fn stats(&self) -> NearStats {
        let Counters { hits, misses, events, updates } = &self.entries.counters;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        NearStats {
            hits: read(hits),
            misses: read(misses),
            events: read(events),
            updates: read(updates),
            entries: self.entries.table.len(),
            is_on: self.entries.table.is_on(),
        }
    }
}

/// What keeps a near cache's listener at some server.
struct NearCacheTask {
    listened: ListenedCache,
    entries: Arc<Entries>,
    /// Of the server's filter; 0 without one.
    bits: u32,
    timeout: Duration,
    begins: watch::Sender<Option<Result<(), ClientError>>>,
}

impl NearCacheTask {
    fn request(&self, id: Bytes) -> Request {
        if self.bits > 0 {
            return Request::AddBloom(id, self.bits);
        }
        Request::Add(Listener {
            id,
            includes_state: false,
            filter: None,
            converter: None,
            is_raw: false,
            interests: Interests::NEAR_CACHE,
        })
    }

    async fn keep(mut self) {
        let mut backoff = Backoff::new(RandomState::new().build_hasher().finish());
        loop {
            let mut is_lost = Arc::default();
            let added = self.listened.add(
                |id| RequestBody::Listener(self.request(id)),
                self.timeout,
                |_, lost| {
                    is_lost = Arc::new(AtomicBool::new(false));
                    Arc::new(InvalidationSink { entries: self.entries.clone(), lost, is_lost: is_lost.clone() })
                },
            );
            match added.await {
                Ok(standing) => {
                    self.serve(&standing, &is_lost).await;
                    self.entries.table.turn_off();
                    backoff.reset();
                }
                // Servers of 3.0 know no filters.
                Err(ClientError::Unsupported { .. }) if self.bits > 0 => {
                    self.bits = 0;
                    continue;
                }
                Err(error) => {
                    let is_first = self.begins.borrow().is_none();
                    tracing::debug!(%error, is_first, "a near cache is not told of changes");
                    if is_first || matches!(error, ClientError::Closed) {
                        let _ = self.begins.send(Some(Err(error)));
                        return;
                    }
                }
            }
            tokio::time::sleep(backoff.next()).await;
        }
    }

    /// Until nothing more is told.
    async fn serve(&mut self, standing: &ListenerRegistration, is_lost: &AtomicBool) {
        let Entries { table, is_stale, .. } = &*self.entries;
        table.turn_on(&standing.place);
        if is_lost.load(Ordering::Acquire) {
            // It came before.
            return;
        }
        let _ = self.begins.send(Some(Ok(())));
        loop {
            tokio::select! {
                () = standing.lost() => return,
                () = is_stale.notified(), if self.bits > 0 => {}
            }
            if self.entries.table.gone() < self.entries.gone_max {
                continue;
            }
            if let Err(why) = self.update(standing).await {
                if !is_lost.load(Ordering::Acquire) {
                    // The server may still do it, when it would be wrong.
                    tracing::warn!(%why, "a near cache goes on without a filter");
                    self.bits = 0;
                }
                return;
            }
        }
    }

    /// Tells the server which keys are kept.
    async fn update(&self, standing: &ListenerRegistration) -> Result<(), ClientError> {
        let mut filter = BloomFilter::new(self.bits).expect("there are bits, and not too many");
        self.entries.table.begin_update(|key| filter.add(key));
        let update = RequestBody::Listener(Request::UpdateBloom(filter.to_bits()));
        let ask = self.listened.ask(update, self.timeout);
        let ListenedCache { client, cache, .. } = &self.listened;
        match client.perform_at(cache, ask, &standing.place).await {
            Ok(answer) if answer.status == Status::Success => {
                self.entries.table.end_update();
                count(&self.entries.counters.updates);
                Ok(())
            }
            Ok(answer) => Err(answer.unexpected()),
            Err(NotExecuted::Failed(error) | NotExecuted::TryAnotherServer(Some(error))) => Err(error),
            Err(NotExecuted::TryAnotherServer(None)) => {
                Err(ClientError::Unreachable { after: Duration::ZERO, cause: client.trouble() })
            }
        }
    }
}

/// What a read has brought, if it can be kept. What lives by its use is used at the server only.
fn kept(metadata: Metadata, value: &Bytes, now: Time) -> Option<NearEntry> {
    if metadata.max_idle.is_some() {
        return None;
    }
    let until = match metadata.lifespan {
        None => None,
        Some(Timed { since, seconds }) => {
            let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let age = unix.saturating_sub(Duration::from_millis(u64::try_from(since).unwrap_or(0)));
            // A clock that is behind the server's makes nothing live longer than its whole span from now on.
            let left = Duration::from_secs(seconds.into()).checked_sub(age).filter(|left| !left.is_zero())?;
            Some(now + left)
        }
    };
    Some(NearEntry { metadata, value: Bytes::copy_from_slice(value), until })
}

/// A read that is ended, whatever becomes of it.
struct Reading<'a> {
    entries: &'a Entries,
    read: Option<PendingRead>,
}

impl Reading<'_> {
    fn end(mut self, kept: Option<NearEntry>) {
        if let Some(read) = self.read.take() {
            self.entries.table.end(read, kept);
            self.entries.refresh_filter_if_stale();
        }
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        if let Some(read) = self.read.take() {
            self.entries.table.end(read, None);
        }
    }
}

/// Keys that a write forgets when it has ended, or is waited for no more.
pub(crate) struct Invalidations<'a> {
    entries: &'a Entries,
    /// All, if it does not say.
    keys: Option<SmallVec<[Bytes; 1]>>,
}

impl Drop for Invalidations<'_> {
    fn drop(&mut self) {
        match &self.keys {
            Some(keys) => keys.iter().for_each(|key| self.entries.table.forget(key)),
            None => self.entries.table.forget_all(),
        }
        self.entries.refresh_filter_if_stale();
    }
}

type Found = Option<(Metadata, Bytes)>;

impl<K, V, KE, VE> Cache<K, V, KE, VE> {
    /// What there is of a key, if the near cache knows or can come to know it.
    pub(crate) async fn read_near(&self, key: &Bytes) -> Result<Option<Found>, ClientError> {
        let Some(near) = &self.near else { return Ok(None) };
        let entries = &*near.entries;
        let (place, read) = match entries.table.lookup(key, self.client.clock.now()) {
            Lookup::Hit(kept) => {
                count(&entries.counters.hits);
                return Ok(Some(Some((kept.metadata, kept.value))));
            }
            Lookup::Miss(place, read) => (place, read),
            Lookup::Off => {
                count(&entries.counters.misses);
                return Ok(None);
            }
        };
        count(&entries.counters.misses);
        let reading = Reading { entries, read: Some(read) };
        // Nobody's future is the larger for it who has no near cache.
        Box::pin(self.read_and_keep(key, place, reading)).await
    }

    async fn read_and_keep(
        &self,
        key: &Bytes,
        place: ServerConnection,
        reading: Reading<'_>,
    ) -> Result<Option<Found>, ClientError> {
        let options = self.options();
        let ask = RequestSpec {
            body: RequestBody::Map(map::Request::GetWithMetadata(key.clone())),
            flags: options.flags,
            key_type: self.key_type.clone(),
            value_type: self.value_type.clone(),
            timeout: options.timeout,
        };
        let answer = match self.client.perform_at(&self.state, ask, &place).await {
            Ok(answer) => answer,
            Err(NotExecuted::Failed(error)) => return Err(error),
            // What another server says is not kept.
            Err(NotExecuted::TryAnotherServer(_)) => return Ok(None),
        };
        match answer.body {
            ResponseBody::Map(map::Response::WithMetadata(metadata, value)) => {
                reading.end(kept(metadata, &value, self.client.clock.now()));
                Ok(Some(Some((metadata, value))))
            }
            ResponseBody::Empty if answer.status == Status::NotFound => {
                reading.end(None);
                Ok(Some(None))
            }
            _ => Err(answer.unexpected()),
        }
    }

    /// What a write of these keys makes forget.
    pub(crate) fn forgotten<I: IntoIterator<Item = Bytes>>(
        &self,
        keys: impl FnOnce() -> I,
    ) -> Option<Invalidations<'_>> {
        let near = self.near.as_ref()?;
        Some(Invalidations { entries: &near.entries, keys: Some(keys().into_iter().collect()) })
    }

    /// What a write of all keys makes forget.
    pub(crate) fn forgotten_all(&self) -> Option<Invalidations<'_>> {
        Some(Invalidations { entries: &self.near.as_ref()?.entries, keys: None })
    }

    /// What the near cache of this handle has done, if it has one.
    pub fn near_stats(&self) -> Option<NearStats> {
        self.near.as_ref().map(|near| near.stats())
    }
}

impl<K, V, KE: Clone, VE: Clone> Cache<K, V, KE, VE> {
    /// A handle that keeps what [`Cache::get`] and [`Cache::get_with_metadata`] have read, until it changes. All such handles
    /// of a client share what they keep; with the last of them it goes.
    ///
    /// What this client writes through handles with a near cache is forgotten before the write ends; changes by others as
    /// soon as they are told, a moment after they have ended. Until then the old value is given. Changes are not told that
    /// are made with [`crate::Flags::SKIP_LISTENER_NOTIFICATION`]. Entries that live by when they were last used are not kept.
    ///
    /// What is not kept is read from one server for all keys, the one that tells of changes. When the connection with it is
    /// lost, everything is forgotten, and nothing kept until another server tells of them.
    ///
    /// # Errors
    ///
    /// [`ClientError::NearCacheConflict`] if handles of this client have one with other settings; if no server can be reached in
    /// time, or if the one that is refuses.
    pub async fn near(&self, near: NearCacheConfig) -> Result<Self, ClientError> {
        let timeout = self.options().timeout;
        let shared = NearCache::of(self.listened(), near, timeout)?;
        shared.started(timeout).await?;
        let mut handle = self.clone();
        handle.near = Some(shared);
        Ok(handle)
    }
}
