//! Near caches: local copies of read entries, invalidated by events (facts sections 2.12 and 9.1).
//!
//! A listener at one server reports changes (`near_listener`). Reads to cache use the same server and connection (`near_reads`),
//! so that responses and events are ordered, and the server's filter has their keys. Without the connection, the near cache is
//! empty and disabled until a new listener is registered.

mod table;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Waker;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use consort_hotrod::ops::event::EventData;
use consort_hotrod::{MediaType, Metadata, Timed};
use smallvec::SmallVec;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::clock::{Clock, Time};
use crate::connection::sinks::{ServerEvent, Sink};
use crate::error::ClientError;
use crate::server::ServerConnection;
use table::{Lookup, NearEntry, PendingRead, Table};

/// The configuration of a near cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NearCacheConfig {
    /// Maximum number of entries, by default 10,000; those least likely to be read are evicted.
    pub max_entries: usize,
    /// Maximum bytes of keys and values, plus about 128 per entry; default 64 MiB.
    pub max_bytes: usize,
    /// Whether servers report changes of cached keys only, by a Bloom filter, by default true; needs version 3.1.
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
    /// Whether a listener is registered; else the near cache is empty.
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

pub(crate) struct NearCache {
    pub(crate) config: NearCacheConfig,
    pub(crate) types: (MediaType, MediaType),
    pub(crate) entries: Arc<NearEntries>,
    /// The outcome of the listener's first registration.
    pub(crate) started: watch::Receiver<Option<Result<(), ClientError>>>,
    pub(crate) task: JoinHandle<()>,
}

impl Drop for NearCache {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub(crate) struct NearEntries {
    table: Table<ServerConnection>,
    counters: Counters,
    /// The server's filter has too many stale keys.
    is_stale: Notify,
    gone_max: u64,
}

impl NearEntries {
    pub(crate) fn new(config: &NearCacheConfig) -> Self {
        Self {
            table: Table::new(config.max_entries, config.max_bytes),
            counters: Counters::default(),
            is_stale: Notify::new(),
            // As in Java's client.
            gone_max: config.max_entries as u64 / 16 + 3,
        }
    }

    pub(crate) fn turn_on(&self, target: &ServerConnection) {
        self.table.turn_on(target);
    }

    pub(crate) fn turn_off(&self) {
        self.table.turn_off();
    }

    fn has_stale_filter(&self) -> bool {
        self.table.gone() >= self.gone_max
    }

    fn refresh_filter_if_stale(&self) {
        if self.has_stale_filter() {
            self.is_stale.notify_one();
        }
    }

    pub(crate) async fn stale_filter(&self) {
        loop {
            self.is_stale.notified().await;
            if self.has_stale_filter() {
                return;
            }
        }
    }

    pub(crate) fn begin_update(&self, key: impl FnMut(&[u8])) {
        self.table.begin_update(key);
    }

    pub(crate) fn end_update(&self) {
        self.table.end_update();
        count(&self.counters.updates);
    }
}

pub(crate) struct InvalidationSink {
    pub(crate) entries: Arc<NearEntries>,
    pub(crate) lost: Arc<Notify>,
    /// Whether the connection is lost.
    pub(crate) is_lost: Arc<AtomicBool>,
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
    pub(crate) fn lookup(&self, key: &Bytes, now: Time) -> NearLookup<'_> {
        let entries = &*self.entries;
        match entries.table.lookup(key, now) {
            Lookup::Hit(kept) => {
                count(&entries.counters.hits);
                NearLookup::Hit(kept.metadata, kept.value)
            }
            Lookup::Miss(target, read) => {
                count(&entries.counters.misses);
                NearLookup::Miss(target, Reading { entries, read: Some(read) })
            }
            Lookup::Off => {
                count(&entries.counters.misses);
                NearLookup::Off
            }
        }
    }

    pub(crate) fn invalidations(&self, keys: impl IntoIterator<Item = Bytes>) -> Invalidations<'_> {
        Invalidations { entries: &self.entries, keys: Some(keys.into_iter().collect()) }
    }

    pub(crate) fn invalidation_of_all(&self) -> Invalidations<'_> {
        Invalidations { entries: &self.entries, keys: None }
    }

    pub(crate) async fn started(&self, start_timeout: Duration) -> Result<(), ClientError> {
        let mut started = self.started.clone();
        match timeout(start_timeout, started.wait_for(Option::is_some)).await {
            Ok(Ok(outcome)) => outcome.clone().unwrap_or(Err(ClientError::Closed)),
            Ok(Err(_)) => Err(ClientError::Closed),
            Err(_) => Err(ClientError::TimedOut { after: start_timeout, is_outcome_unknown: false }),
        }
    }

    pub(crate) fn stats(&self) -> NearStats {
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

/// Entries with max-idle are not cached: only reads at the server count as uses.
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

pub(crate) enum NearLookup<'a> {
    Hit(Metadata, Bytes),
    /// Read the key on this connection.
    Miss(ServerConnection, Reading<'a>),
    /// Read the key as without a near cache.
    Off,
}

pub(crate) struct Reading<'a> {
    entries: &'a NearEntries,
    read: Option<PendingRead>,
}

impl Reading<'_> {
    /// Ends the read; the entry at the server may be cached.
    pub(crate) fn end(mut self, found: Option<(Metadata, &Bytes)>, clock: Clock) {
        if let Some(read) = self.read.take() {
            let kept = found.and_then(|(metadata, value)| kept(metadata, value, clock.now()));
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
    entries: &'a NearEntries,
    /// `None` for all.
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
