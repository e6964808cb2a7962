//! How a cache is kept on this member beyond its memory: settings, and opening the store.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use consort_grid::{CacheConfig, Container, Lifetime, Remembered, Segment, Stored, Version};
use consort_group::Time;
use consort_store::{
    Change, DirectoryLock, Durability, FileStore, FileStoreConfig, Mode, Part, Settings, Store, StoreError,
    Times, WriterConfig,
};

use crate::error::{OpenError, StoreFault};

/// Removals of what has expired that are stored at once while a store is opened.
const REMOVALS: usize = 1_024;

/// How much may wait for a store that is written behind. A write waits while there is no room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WriteBehind {
    /// Changes. Several of one key count as one. Default 65,536: what a disk that takes 100,000 a second works off in less
    /// than a second.
    pub changes_max: usize,
    /// Bytes of keys and values. Default 64 MiB, for the memory.
    pub bytes_max: usize,
}

impl Default for WriteBehind {
    fn default() -> Self {
        let WriterConfig { queue_changes_max, queue_bytes_max, .. } = WriterConfig::default();
        Self { changes_max: queue_changes_max, bytes_max: queue_bytes_max }
    }
}

#[derive(Clone, Debug)]
enum Place {
    Store(Arc<dyn Store>),
    Directory(PathBuf, FileStoreConfig),
}

/// A store for a cache on this member.
///
/// By default it is *written through*: a write is acknowledged when the stores of all owners that have one have taken it.
/// What a store does not take is told with [`OperationError::NotStored`](crate::OperationError::NotStored), which names the
/// member and the reason. When all members have ended, the cache is there again as soon as all of them are back.
///
/// Keys and versions of all entries stay in memory; what has to make room there ([`CacheBuilder::memory`]) is the values,
/// which are loaded when they are wanted.
///
/// [`CacheBuilder::memory`]: crate::CacheBuilder::memory
#[derive(Clone, Debug)]
pub struct Persistence {
    place: Place,
    /// The directory is one for several caches.
    is_parent: bool,
    /// The lock of a directory above.
    lock: Option<Arc<DirectoryLock>>,
    behind: Option<WriteBehind>,
    passivation: bool,
    preload: bool,
    purge_on_start: bool,
}

impl Persistence {
    fn at(place: Place) -> Self {
        Self {
            place,
            is_parent: false,
            lock: None,
            behind: None,
            passivation: false,
            preload: false,
            purge_on_start: false,
        }
    }

    /// In files of this directory, which belongs to this member and cache alone.
    pub fn directory(path: impl Into<PathBuf>) -> Self {
        Self::at(Place::Directory(path.into(), FileStoreConfig::default()))
    }

    /// In files of the directory in this one that has the cache's name. `path` belongs to this member alone.
    pub fn within(path: impl Into<PathBuf>) -> Self {
        Self { is_parent: true, ..Self::directory(path) }
    }

    /// In a store that is open. It is this cache's, and is closed with it.
    pub fn store(store: Arc<dyn Store>) -> Self {
        Self::at(Place::Store(store))
    }

    /// What an acknowledged write survives, in files: by default the death of the process.
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        if let Place::Directory(_, config) = &mut self.place {
            config.durability = durability;
        }
        self
    }

    /// How files are kept. The number of segments is the cache's in any case.
    #[must_use]
    pub fn files(mut self, files: FileStoreConfig) -> Self {
        if let Place::Directory(_, config) = &mut self.place {
            *config = files;
        }
        self
    }

    /// The directory is within one that this lock has, which stands for a lock of its own: caches that share one need fewer
    /// descriptors. The lock is kept until the cache is closed.
    #[must_use]
    pub fn locked_by(mut self, lock: Arc<DirectoryLock>) -> Self {
        self.lock = Some(lock);
        self
    }

    /// A write is acknowledged when it waits for the store. What waits is lost if the process dies.
    #[must_use]
    pub fn write_behind(mut self, bounds: WriteBehind) -> Self {
        self.behind = Some(bounds);
        self
    }

    /// The store has the values that memory has no room for, and nothing else until the cache is closed in order. What is
    /// in memory is lost if the process dies.
    #[must_use]
    pub fn passivation(mut self) -> Self {
        self.passivation = true;
        self
    }

    /// Values are in memory from the start, as far as there is room; else they are loaded when they are wanted. Not with
    /// passivation, where the store has only what memory has not.
    #[must_use]
    pub fn preload(mut self) -> Self {
        self.preload = true;
        self
    }

    /// What the store has from before is removed, unread.
    #[must_use]
    pub fn purge_on_start(mut self) -> Self {
        self.purge_on_start = true;
        self
    }

    /// Where the files of a cache are, unless its store was given.
    pub(crate) fn directory_of(&self, cache: &str) -> Option<PathBuf> {
        match &self.place {
            Place::Store(_) => None,
            Place::Directory(path, _) if self.is_parent => Some(path.join(cache)),
            Place::Directory(path, _) => Some(path.clone()),
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

    /// Opens the store and tells the container what it has. Takes as long as the disk does.
    pub(crate) fn open(
        self,
        config: &CacheConfig,
        container: &Container,
        now: Time,
    ) -> Result<(Arc<dyn Store>, Option<Remembered>), OpenError> {
        let cache = &config.name;
        let failed =
            |error: StoreError| OpenError::Store { cache: cache.clone(), error: StoreFault(Arc::new(error)) };
        if self.passivation && self.preload {
            let (setting, value) = ("preload".into(), "on with passivation".into());
            return Err(consort_grid::OpenError::Invalid { cache: cache.clone(), setting, value }.into());
        }
        let segments = config.segments;
        let directory = self.directory_of(cache);
        let store: Arc<dyn Store> = match self.place {
            Place::Store(store) => store,
            Place::Directory(path, files) => {
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
        let remembered = store.recall().map_err(failed)?.map(Remembered::decode).transpose();
        let remembered = remembered.map_err(|error| OpenError::Unreadable { cache: cache.clone(), error })?;
        if remembered.as_ref().is_some_and(|remembered| remembered.is_void) {
            store.clear().map_err(failed)?;
        }
        let count = load(&*store, container, now, self.preload).map_err(failed)?;
        if remembered.is_none() && count > 0 {
            return Err(OpenError::Foreign { cache: cache.clone(), entries: count });
        }
        Ok((store, remembered))
    }
}

/// Puts what a store has into the container, and gives how much that is.
fn load(store: &dyn Store, container: &Container, now: Time, is_whole: bool) -> Result<u64, StoreError> {
    let wall = wall_clock();
    let part = if is_whole { Part::Whole } else { Part::Keys };
    let mut expired = Vec::new();
    let mut count = 0;
    for segment in (0..store.segments()).map(Segment) {
        container.receive(segment);
        for found in store.entries(segment.0, part)? {
            let found = found?;
            let (key, entry) = (found.key.clone(), stored(&found, wall).into_entry(now));
            if entry.is_expired(now) {
                expired.push(Change::Remove { segment: segment.0, key });
                continue;
            }
            count += 1;
            let passive = entry.clone().passivated();
            // What memory refuses stays in the store alone.
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

/// Milliseconds since the epoch: what is stored must mean the same in another life.
pub(crate) fn wall_clock() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}

/// An entry as it is stored.
pub(crate) fn kept(segment: Segment, key: Bytes, stored: Stored, wall: u64) -> consort_store::Entry {
    let millis = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    let times = Times {
        created: wall.saturating_sub(millis(stored.age)),
        used: wall.saturating_sub(millis(stored.idle)),
        lifespan: stored.lifetime.lifespan.map(millis),
        max_idle: stored.lifetime.max_idle.map(millis),
    };
    consort_store::Entry { segment: segment.0, key, value: stored.value, version: stored.version.0, times }
}

/// An entry that was stored.
pub(crate) fn stored(kept: &consort_store::Entry, wall: u64) -> Stored {
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
