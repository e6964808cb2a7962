use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use consort_cache::{CacheError, CacheManager, CacheMode, Lifetime, RawCache, Topology, Write, Written};
use consort_hotrod::{CacheTopology, Flags};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::catalog::compute::KeyLocks;
use crate::catalog::definition;
use crate::catalog::entity_index::EntityIndex;
use crate::catalog::schemas::Schemas;
use crate::media::{Encoding, Types};
use crate::memory::remote_values;
use crate::metrics::cache_stats::Stats;
use crate::transactions::Transactions;

/// In milliseconds; 0 is without limit.
#[derive(Default)]
pub(crate) struct DefaultLifetime {
    lifespan: AtomicU64,
    max_idle: AtomicU64,
}

impl DefaultLifetime {
    fn set(&self, lifetime: Lifetime) {
        let millis = |span: Option<Duration>| {
            span.map_or(0, |span| u64::try_from(span.as_millis()).unwrap_or(u64::MAX).max(1))
        };
        self.lifespan.store(millis(lifetime.lifespan), Ordering::Relaxed);
        self.max_idle.store(millis(lifetime.max_idle), Ordering::Relaxed);
    }

    fn get(&self) -> Lifetime {
        let span = |millis: &AtomicU64| match millis.load(Ordering::Relaxed) {
            0 => None,
            millis => Some(Duration::from_millis(millis)),
        };
        Lifetime { lifespan: span(&self.lifespan), max_idle: span(&self.max_idle) }
    }
}

pub(crate) struct ServedCache {
    pub(crate) cache: RawCache,
    /// For reads of keys whose large values need a reservation ([`crate::memory::remote_values`]).
    pub(crate) limited: RawCache,
    pub(crate) stats: Stats,
    pub(crate) key_locks: KeyLocks,
    pub(crate) encoding: Encoding,
    pub(crate) transactions: Option<Arc<Transactions>>,
    pub(crate) schemas: Option<Schemas>,
    pub(crate) index: Option<EntityIndex>,
    /// In the form that servers exchange; empty for internal caches.
    pub(crate) definition: RwLock<Bytes>,
    pub(crate) lifespans: DefaultLifetime,
    pub(crate) directory: Option<PathBuf>,
    pub(crate) topology: Option<watch::Receiver<Option<Topology>>>,
    /// With the topology id and the endpoint age from which it was made.
    pub(crate) sent_topology: Mutex<Option<(u32, u64, Arc<CacheTopology>)>>,
}

impl ServedCache {
    pub(crate) fn lifetime(&self) -> Lifetime {
        self.lifespans.get()
    }

    pub(crate) fn definition(&self) -> Bytes {
        self.definition.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn apply_definition(&self, text: &Bytes) -> bool {
        let mut own = self.definition.write().unwrap_or_else(PoisonError::into_inner);
        let read =
            |text: &Bytes| definition::from_stored(self.cache.name(), &String::from_utf8_lossy(text)).ok();
        let (Some((before, place)), Some((after, other))) = (read(&own), read(text)) else { return false };
        if place != other || definition::check_alteration(&before, &after).is_err() {
            return false;
        }
        self.lifespans.set(after.lifetime);
        if let Some(bound) = after.memory {
            self.cache.set_memory_limit(bound.limit);
        }
        *own = text.clone();
        true
    }

    /// Returns the task that builds the index, if its schemas have changed or this is forced.
    pub(crate) fn refresh_index(&self, types: &Types, is_forced: bool) -> Option<JoinHandle<()>> {
        self.index.as_ref()?.refresh(self.cache.name(), types, is_forced)
    }

    pub(crate) const fn is_local(&self) -> bool {
        self.topology.is_none()
    }

    pub(crate) fn with_topology<T>(&self, look: impl FnOnce(&Topology) -> T) -> Option<T> {
        self.topology.as_ref()?.borrow().as_ref().map(look)
    }

    pub(crate) fn of(manager: &CacheManager, cache: RawCache, encoding: Encoding) -> Self {
        let is_local = cache.config().mode == CacheMode::Local;
        let topology = manager.watch_topology(cache.name()).filter(|_| !is_local);
        let (stats, key_locks) = (Stats::new(), KeyLocks::default());
        let (definition, directory, sent_topology) = (RwLock::default(), None, Mutex::default());
        let (transactions, schemas, lifespans) = (None, None, DefaultLifetime::default());
        lifespans.set(cache.options().lifetime);
        Self {
            limited: remote_values::limited(&cache),
            cache,
            stats,
            key_locks,
            encoding,
            transactions,
            schemas,
            index: None,
            definition,
            lifespans,
            directory,
            topology,
            sent_topology,
        }
    }

    /// Without transactions and schemas, the cache itself writes keys.
    pub(crate) const fn is_plain(&self) -> bool {
        self.transactions.is_none() && self.schemas.is_none()
    }

    /// Waits until no transaction holds the key. Writes a schema together with its errors.
    pub(crate) async fn write(&self, key: Bytes, write: Write, flags: Flags) -> Result<Written, CacheError> {
        match self.silent(flags) {
            None => self.write_by(&self.cache, key, write).await,
            // Boxed, because few requests need it and it would enlarge the state of all.
            Some(silent) => Box::pin(async move { self.write_by(&silent, key, write).await }).await,
        }
    }

    async fn write_by(&self, cache: &RawCache, key: Bytes, write: Write) -> Result<Written, CacheError> {
        match (&self.transactions, &self.schemas) {
            // A transactional cache locks the key.
            (None, None) | (Some(_), _) => cache.write(key, write).await,
            (None, Some(schemas)) => Box::pin(schemas.write(cache, key, write)).await,
        }
    }

    /// For writes without events, if the client requests that. Changes of schemas always cause events, on which other servers
    /// depend.
    pub(crate) fn silent(&self, flags: Flags) -> Option<RawCache> {
        let is_silent = flags.contains(Flags::SKIP_LISTENER_NOTIFICATION) && self.schemas.is_none();
        let silent = || {
            let own = self.cache.options().flags;
            self.cache.with_flags(own | consort_cache::Flags::SKIP_LISTENERS)
        };
        is_silent.then(silent)
    }
}
