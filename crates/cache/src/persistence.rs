use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use consort_grid::{CacheConfig, Container, Lifetime, PersistedState, Segment, Stored, Version};
use consort_group::Time;
use consort_store::{
    Change, DirectoryLock, Durability, FileStore, FileStoreConfig, Mode, Part, Settings, Store, StoreError,
    Times, WriterConfig,
};

use crate::error::{OpenError, StoreFault};

const REMOVALS: usize = 1_024;

/// The limits of queued changes with write-behind. Without room a write waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WriteBehind {
    /// Changes; several of a key count as one. Default 65,536: under a second for a disk with 100,000 changes
    /// a second.
    pub changes_max: usize,
    /// Bytes of keys and values; default 64 MiB.
    pub bytes_max: usize,
}

impl Default for WriteBehind {
    fn default() -> Self {
        let WriterConfig { queue_changes_max, queue_bytes_max, .. } = WriterConfig::default();
        Self { changes_max: queue_changes_max, bytes_max: queue_bytes_max }
    }
}

#[derive(Clone, Debug)]
enum StoreLocation {
    Store(Arc<dyn Store>),
    Directory(PathBuf, FileStoreConfig),
}

/// The settings of a cache's store here.
///
/// By default it is *write-through*: a write is acknowledged when the stores of all owners with one have accepted it. If a store
/// does not, the write fails with [`OperationError::StoreWriteFailed`](crate::OperationError::StoreWriteFailed), which names the
/// member and the reason. After all members have ended, the cache is available again once all are back.
///
/// Keys and versions stay in memory. Eviction ([`CacheBuilder::memory`]) drops values, which are loaded on demand.
///
/// [`CacheBuilder::memory`]: crate::CacheBuilder::memory
#[derive(Clone, Debug)]
pub struct Persistence {
    location: StoreLocation,
    is_parent: bool,
    lock: Option<Arc<DirectoryLock>>,
    behind: Option<WriteBehind>,
    passivation: bool,
    preload: bool,
    purge_on_start: bool,
}

impl Persistence {
    fn at(location: StoreLocation) -> Self {
        Self {
            location,
            is_parent: false,
            lock: None,
            behind: None,
            passivation: false,
            preload: false,
            purge_on_start: false,
        }
    }

    /// Stores the cache in files of this directory, which only this member and cache use.
    pub fn directory(path: impl Into<PathBuf>) -> Self {
        Self::at(StoreLocation::Directory(path.into(), FileStoreConfig::default()))
    }

    /// Stores the cache in `path`'s subdirectory of its name. Only this member uses `path`.
    pub fn within(path: impl Into<PathBuf>) -> Self {
        Self { is_parent: true, ..Self::directory(path) }
    }

    /// Stores the cache in an open store, closed with it.
    pub fn store(store: Arc<dyn Store>) -> Self {
        Self::at(StoreLocation::Store(store))
    }

    /// Sets the failures that an acknowledged write survives, with files; default: the death of the process.
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        if let StoreLocation::Directory(_, config) = &mut self.location {
            config.durability = durability;
        }
        self
    }

    /// Sets the files' configuration. The number of segments is the cache's.
    #[must_use]
    pub fn files(mut self, files: FileStoreConfig) -> Self {
        if let StoreLocation::Directory(_, config) = &mut self.location {
            *config = files;
        }
        self
    }

    /// Uses a parent directory's lock until the cache is closed, so that its caches need fewer descriptors.
    #[must_use]
    pub fn locked_by(mut self, lock: Arc<DirectoryLock>) -> Self {
        self.lock = Some(lock);
        self
    }

    /// Acknowledges a write when it is queued. The process's death loses queued changes.
    #[must_use]
    pub fn write_behind(mut self, bounds: WriteBehind) -> Self {
        self.behind = Some(bounds);
        self
    }

    /// Stores only values that memory has no room for, and the rest at an orderly close. The process's death
    /// loses entries in memory.
    #[must_use]
    pub fn passivation(mut self) -> Self {
        self.passivation = true;
        self
    }

    /// Loads values into memory at the start, as far as there is room; else on demand. Not with passivation, where the store has
    /// only the values that memory lacks.
    #[must_use]
    pub fn preload(mut self) -> Self {
        self.preload = true;
        self
    }

    /// Discards the store's entries at the start, unread.
    #[must_use]
    pub fn purge_on_start(mut self) -> Self {
        self.purge_on_start = true;
        self
    }

    /// `None` for a given store.
    pub(crate) fn directory_of(&self, cache: &str) -> Option<PathBuf> {
        match &self.location {
            StoreLocation::Store(_) => None,
            StoreLocation::Directory(path, _) if self.is_parent => Some(path.join(cache)),
            StoreLocation::Directory(path, _) => Some(path.clone()),
        }
    }

    pub(crate) fn is_passivation(&self) -> bool {
        self.passivation
    }

    pub(crate) fn writer(&self) -> WriterConfig {
        let config = WriterConfig::default();
        match self.behind {
            None => config,
            Some(WriteBehind { changes_max, bytes_max }) => WriterConfig {
                mode: Mode::WriteBehind,
                queue_changes_max: changes_max.max(1),
                queue_bytes_max: bytes_max.max(1),
                ..config
            },
        }
    }

    pub(crate) fn open(
        self,
        config: &CacheConfig,
        container: &Container,
        now: Time,
    ) -> Result<(Arc<dyn Store>, Option<PersistedState>), OpenError> {
        let cache = &config.name;
        let failed =
            |error: StoreError| OpenError::Store { cache: cache.clone(), error: StoreFault(Arc::new(error)) };
        if self.passivation && self.preload {
            let (setting, value) = ("preload".into(), "on with passivation".into());
            return Err(consort_grid::OpenError::Invalid { cache: cache.clone(), setting, value }.into());
        }
        let segments = config.segments;
        let directory = self.directory_of(cache);
        let store: Arc<dyn Store> = match self.location {
            StoreLocation::Store(store) => store,
            StoreLocation::Directory(path, files) => {
                let path = directory.unwrap_or(path);
                let files = FileStoreConfig { segments, ..files };
                let opened = match self.lock {
                    Some(lock) => FileStore::open_within(lock, path, files),
                    None => FileStore::open(path, files),
                };
                Arc::new(opened.map_err(failed)?)
            }
        };
        if store.segments() != segments {
            let (ours, theirs) = (Settings { segments }, Settings { segments: store.segments() });
            return Err(failed(StoreError::WrongSettings { ours, theirs }));
        }
        if self.purge_on_start {
            store.clear().and_then(|()| store.remember(&[])).map_err(failed)?;
        }
        let remembered = store.recall().map_err(failed)?.map(PersistedState::decode).transpose();
        let remembered = remembered.map_err(|error| OpenError::Unreadable { cache: cache.clone(), error })?;
        if remembered.as_ref().is_some_and(|remembered| remembered.is_void) {
            store.clear().map_err(failed)?;
        }
        let count = load(&*store, container, now, self.preload).map_err(failed)?;
        if remembered.is_none() && count > 0 {
            return Err(OpenError::UnknownStoreOrigin { cache: cache.clone(), entries: count });
        }
        Ok((store, remembered))
    }
}

fn load(store: &dyn Store, container: &Container, now: Time, is_whole: bool) -> Result<u64, StoreError> {
    let wall = wall_clock();
    let part = if is_whole { Part::Whole } else { Part::Keys };
    let mut expired = Vec::new();
    let mut count = 0;
    for segment in (0..store.segments()).map(Segment) {
        container.receive(segment);
        for found in store.entries(segment.0, part)? {
            let found = found?;
            let (key, entry) = (found.key.clone(), from_store_entry(&found, wall).into_entry(now));
            if entry.is_expired(now) {
                expired.push(Change::Remove { segment: segment.0, key });
                continue;
            }
            count += 1;
            let passive = entry.clone().passivated();
            // A value that memory has no room for stays only in the store.
            let has_room = is_whole && container.check_room_for_value(&key, &entry.value).is_ok();
            if !has_room || container.put(segment, &key, entry, now).is_err() {
                let _ = container.put(segment, &key, passive, now);
            }
        }
    }
    for removals in expired.chunks(REMOVALS) {
        store.store(removals)?;
    }
    Ok(count)
}

/// Milliseconds since the epoch: a stored time must be valid after a restart.
pub(crate) fn wall_clock() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}

pub(crate) fn to_store_entry(
    segment: Segment,
    key: Bytes,
    stored: Stored,
    wall: u64,
) -> consort_store::Entry {
    let millis = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    let times = Times {
        created: wall.saturating_sub(millis(stored.age)),
        used: wall.saturating_sub(millis(stored.idle)),
        lifespan: stored.lifetime.lifespan.map(millis),
        max_idle: stored.lifetime.max_idle.map(millis),
    };
    consort_store::Entry { segment: segment.0, key, value: stored.value, version: stored.version.0, times }
}

pub(crate) fn from_store_entry(kept: &consort_store::Entry, wall: u64) -> Stored {
    let Times { created, used, lifespan, max_idle } = kept.times;
    let since = |at: u64| Duration::from_millis(wall.saturating_sub(at));
    Stored {
        value: kept.value.clone(),
        version: Version(kept.version),
        lifetime: Lifetime {
            lifespan: lifespan.map(Duration::from_millis),
            max_idle: max_idle.map(Duration::from_millis),
        },
        age: since(created),
        idle: since(used),
    }
}
