//! Near caches: local copies of read entries, invalidated by events (facts sections 2.12 and 9.1).
//!
//! A listener at one server reports changes. Reads to cache go to the same server on the same connection. So
//! their responses and the events are ordered, and the server's filter has their keys. When the connection is
//! lost, the near cache is emptied and disabled until a new listener is registered.

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

use crate::backoff::Backoff;
use crate::cache::Cache;
use crate::clock::Time;
use crate::error::ClientError;
use crate::limits::BLOOM_BITS_PER_ENTRY;
use crate::operation::{NotExecuted, RequestSpec, ServerConnection};
use crate::registration::{ListenedCache, ListenerRegistration};
use crate::sinks::{ServerEvent, Sink};
use table::{Lookup, NearEntry, PendingRead, Table};

/// The configuration of a near cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NearCacheConfig {
    /// Maximum number of entries; default 10,000. On overflow, entries that are least likely to be read are
    /// evicted.
    pub max_entries: usize,
    /// Maximum bytes of keys and values, plus about 128 per entry; default 64 MiB.
    pub max_bytes: usize,
    /// Whether servers get a Bloom filter of the cached keys and report changes of those only; default true.
    /// Needs version 3.1.
    pub bloom: bool,
}

impl Default for NearCacheConfig {
    fn default() -> Self {
        Self { max_entries: 10_000, max_bytes: 64 * 1024 * 1024, bloom: true }
    }
}

/// Statistics of a near cache.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct NearStats {
    /// Reads answered locally.
    pub hits: u64,
    /// Reads sent to a server.
    pub misses: u64,
    /// Change events received.
    pub events: u64,
    /// Bloom filters sent to the server.
    pub updates: u64,
    /// Current number of entries.
    pub entries: usize,
    /// Whether a listener is registered. If not, the near cache is empty.
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

/// A near cache with its background task.
pub(crate) struct NearCache {
    near: NearCacheConfig,
    types: (MediaType, MediaType),
    entries: Arc<Entries>,
    started: watch::Receiver<Option<Result<(), ClientError>>>,
    task: JoinHandle<()>,
}

impl Drop for NearCache {
    /// Ends the listener with the task.
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The state shared by callers, the connection and the task.
struct Entries {
    table: Table<ServerConnection>,
    counters: Counters,
    /// Notified when the server's filter has too many stale keys.
    is_stale: Notify,
    /// Maximum number of stale keys in the filter.
    gone_max: u64,
}

impl Entries {
    fn refresh_filter_if_stale(&self) {
        if self.table.gone() >= self.gone_max {
            self.is_stale.notify_one();
        }
    }
}

/// Receives the change events of one server.
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
    /// Returns the near cache shared by the handles of this cache.
    fn of(
        listened: ListenedCache,
        near: NearCacheConfig,
        timeout: Duration,
    ) -> Result<Arc<Self>, ClientError> {
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
            // As in Java's client.
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

    /// Waits until a listener is registered for the first time.
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

/// The task that keeps the listener registered.
struct NearCacheTask {
    listened: ListenedCache,
    entries: Arc<Entries>,
    /// Bits of the filter; 0 without one.
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
                    Arc::new(InvalidationSink {
                        entries: self.entries.clone(),
                        lost,
                        is_lost: is_lost.clone(),
                    })
                },
            );
            match added.await {
                Ok(registration) => {
                    self.serve(&registration, &is_lost).await;
                    self.entries.table.turn_off();
                    backoff.reset();
                }
                // Servers of 3.0 do not support filters.
                Err(ClientError::Unsupported { .. }) if self.bits > 0 => {
                    self.bits = 0;
                    continue;
                }
                Err(error) => {
                    let is_first = self.begins.borrow().is_none();
                    tracing::debug!(%error, is_first, "near cache: the listener could not be registered");
                    if is_first || matches!(error, ClientError::Closed) {
                        let _ = self.begins.send(Some(Err(error)));
                        return;
                    }
                }
            }
            tokio::time::sleep(backoff.next()).await;
        }
    }

    /// Runs until the connection is lost or the filter fails.
    async fn serve(&mut self, registration: &ListenerRegistration, is_lost: &AtomicBool) {
        let Entries { table, is_stale, .. } = &*self.entries;
        table.turn_on(&registration.target);
        if is_lost.load(Ordering::Acquire) {
            // The loss came first.
            return;
        }
        let _ = self.begins.send(Some(Ok(())));
        loop {
            tokio::select! {
                () = registration.lost() => return,
                () = is_stale.notified(), if self.bits > 0 => {}
            }
            if self.entries.table.gone() < self.entries.gone_max {
                continue;
            }
            if let Err(why) = self.update(registration).await {
                if !is_lost.load(Ordering::Acquire) {
                    // The server may still install the filter, when it is outdated.
                    tracing::warn!(%why, "near cache: continuing without a Bloom filter");
                    self.bits = 0;
                }
                return;
            }
        }
    }

    /// Sends a filter of the cached keys to the server.
    async fn update(&self, registration: &ListenerRegistration) -> Result<(), ClientError> {
        let mut filter = BloomFilter::new(self.bits).expect("the number of bits is in range");
        self.entries.table.begin_update(|key| filter.add(key));
        let update = RequestBody::Listener(Request::UpdateBloom(filter.to_bits()));
        let ask = self.listened.ask(update, self.timeout);
        let ListenedCache { client, cache, .. } = &self.listened;
        match client.perform_at(cache, ask, &registration.target).await {
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

/// Builds the entry to cache. Entries with max-idle are not cached, because only reads at the server count as
/// uses.
fn kept(metadata: Metadata, value: &Bytes, now: Time) -> Option<NearEntry> {
    if metadata.max_idle.is_some() {
        return None;
    }
    let until = match metadata.lifespan {
        None => None,
        Some(Timed { since, seconds }) => {
            let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let age = unix.saturating_sub(Duration::from_millis(u64::try_from(since).unwrap_or(0)));
            // If the local clock is behind the server's, an entry lives no longer than its whole lifespan
            // from now.
            let left = Duration::from_secs(seconds.into()).checked_sub(age).filter(|left| !left.is_zero())?;
            Some(now + left)
        }
    };
    Some(NearEntry { metadata, value: Bytes::copy_from_slice(value), until })
}

/// A pending read, ended on drop.
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

/// The keys to invalidate when a write ends or is cancelled.
pub(crate) struct Invalidations<'a> {
    entries: &'a Entries,
    /// The keys; `None` for all.
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
    /// Looks up a key in the near cache, or reads and caches it. `None` if the near cache cannot serve it.
    pub(crate) async fn read_near(&self, key: &Bytes) -> Result<Option<Found>, ClientError> {
        let Some(near) = &self.near else { return Ok(None) };
        let entries = &*near.entries;
        let (target, read) = match entries.table.lookup(key, self.client.clock.now()) {
            Lookup::Hit(kept) => {
                count(&entries.counters.hits);
                return Ok(Some(Some((kept.metadata, kept.value))));
            }
            Lookup::Miss(target, read) => (target, read),
            Lookup::Off => {
                count(&entries.counters.misses);
                return Ok(None);
            }
        };
        count(&entries.counters.misses);
        let reading = Reading { entries, read: Some(read) };
        // Boxed, so that futures without a near cache stay small.
        Box::pin(self.read_and_keep(key, target, reading)).await
    }

    async fn read_and_keep(
        &self,
        key: &Bytes,
        target: ServerConnection,
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
        let answer = match self.client.perform_at(&self.state, ask, &target).await {
            Ok(answer) => answer,
            Err(NotExecuted::Failed(error)) => return Err(error),
            // A response of another server must not be cached.
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

    /// Returns the invalidation of these keys.
    pub(crate) fn forgotten<I: IntoIterator<Item = Bytes>>(
        &self,
        keys: impl FnOnce() -> I,
    ) -> Option<Invalidations<'_>> {
        let near = self.near.as_ref()?;
        Some(Invalidations { entries: &near.entries, keys: Some(keys().into_iter().collect()) })
    }

    /// Returns the invalidation of all keys.
    pub(crate) fn forgotten_all(&self) -> Option<Invalidations<'_>> {
        Some(Invalidations { entries: &self.near.as_ref()?.entries, keys: None })
    }

    /// Returns the statistics of this handle's near cache.
    pub fn near_stats(&self) -> Option<NearStats> {
        self.near.as_ref().map(|near| near.stats())
    }
}

impl<K, V, KE: Clone, VE: Clone> Cache<K, V, KE, VE> {
    /// Returns a handle with a near cache: [`Cache::get`] and [`Cache::get_with_metadata`] keep what they
    /// read until it changes. All such handles of a client share one near cache, which is dropped with the
    /// last of them.
    ///
    /// Writes through such handles invalidate the key before they return. Writes of other clients invalidate
    /// it when their event arrives, shortly after they return; until then reads return the old value. Writes
    /// with [`crate::Flags::SKIP_LISTENER_NOTIFICATION`] do not invalidate. Entries with max-idle are not
    /// cached.
    ///
    /// Reads on a miss go to one server for all keys, the one that sends the events. When its connection is
    /// lost, the near cache is emptied and stays off until another server sends events.
    ///
    /// # Errors
    ///
    /// [`ClientError::NearCacheConflict`] if handles of this client have a near cache with other settings; if
    /// no server is reachable in time, or the server refuses.
    pub async fn near(&self, near: NearCacheConfig) -> Result<Self, ClientError> {
        let timeout = self.options().timeout;
        let shared = NearCache::of(self.listened(), near, timeout)?;
        shared.started(timeout).await?;
        let mut handle = self.clone();
        handle.near = Some(shared);
        Ok(handle)
    }
}
