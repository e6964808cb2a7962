//! A store in files: append-only logs with a checksum per record ([`append`], [`record`], [`header`]), and an
//! index in memory ([`index`]).
//!
//! **Durability.** An acknowledged write survives a kill of the process at any instant, and with
//! [`Durability::Disk`] a power failure. So do removals: no removed entry comes back. A write in progress is
//! kept entirely or not at all; of a batch, a prefix may be kept.

mod append;
mod append_state;
mod compact;
mod compact_cursor;
mod header;
mod index;
mod note;
mod open;
mod position;
mod record;
mod reserve;
mod reserve_account;
mod scan;

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use bytes::Bytes;

use self::append::Keep;
use self::append_state::{Active, Append};
use self::compact::corrupt;
use self::header::log_name;
use self::index::{Index, Print};
use self::position::{Position, Safe, Tail};
use self::record::{Kind, Location, PUT_HEAD, Record, decode_put, put_len, remove_len, u32_at};
use self::reserve_account::Reserve;
use crate::disk::{DirectoryLock, Disk, DiskFile, RealDisk};
use crate::entry::{Change, Entry, Segment};
use crate::error::{Settings, StoreError};
use crate::store::{Counters, Entries, Part, Stats, Store, check_segment};

pub use self::open::{Lost, Opened, Torn};

/// Per call. Records are in memory twice; offsets stay within 32 bits.
const BATCH_BYTES_MAX: u64 = 1 << 30;

/// Per lock, so that other writes can run in between.
const PURGE_BATCH: usize = 256;

/// Below it, headers would dominate.
const FILE_BYTES_MIN: u32 = 4096;

/// The failures that an acknowledged write survives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// The process's death, but not a power failure, after which the store has a state since the last
    /// [`flush`](Store::flush). The default, because other members have the entry, too.
    #[default]
    Process,
    /// Also a power failure. Concurrent writes share a sync.
    Disk,
}

/// The treatment of damaged files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Recover {
    /// Fail, change nothing, and name file and offset.
    #[default]
    Refuse,
    /// Open with the intact records and report the loss ([`Opened::lost`]). Entries may be missing, outdated or
    /// undeleted. Intact records are moved to new files and damaged files removed.
    SkipCorrupt,
}

/// The configuration of a file store.
#[derive(Clone, Copy, Debug)]
pub struct FileStoreConfig {
    /// Fixed when the directory is created; default 256, as in the grid.
    pub segments: u16,
    /// The durability of acknowledged writes.
    pub durability: Durability,
    /// Size at which a log file is rolled; at most 1 GiB, default 64 MiB: a file is copied in 0.1 s.
    pub file_bytes_max: u32,
    /// Dead share from which on a file is compacted; default 0.5: the disk holds about twice the live data at
    /// most, and each entry is copied once on average.
    pub dead_share_max: f64,
    /// Bytes of key and value of an entry; default 512 MiB.
    pub entry_bytes_max: u64,
    /// The treatment of damaged files.
    pub recover: Recover,
}

impl Default for FileStoreConfig {
    fn default() -> Self {
        Self {
            segments: 256,
            durability: Durability::default(),
            file_bytes_max: 64 << 20,
            dead_share_max: 0.5,
            entry_bytes_max: 512 << 20,
            recover: Recover::default(),
        }
    }
}

/// A [`Store`] in a directory.
///
/// Locks are taken in the order of the fields and held only for changes of their data. `append` is also held
/// during a write and the sync of a full file; readers never wait for it.
#[derive(Debug)]
pub struct FileStore {
    disk: Arc<dyn Disk>,
    config: FileStoreConfig,
    opened: Opened,
    append: Mutex<Append>,
    is_syncing: Mutex<bool>,
    sync_ended: Condvar,
    index: RwLock<Index>,
    tail: Mutex<Tail>,
    safe: Safe,
    stopped: Mutex<Option<String>>,
    is_closed: AtomicBool,
    counters: Arc<Counters>,
    guard: Mutex<Option<Box<dyn Any + Send + Sync>>>,
}

impl FileStore {
    /// Opens or creates the store in this directory.
    pub fn open(directory: impl Into<PathBuf>, config: FileStoreConfig) -> Result<Self, StoreError> {
        let directory = directory.into();
        let name = directory.display().to_string();
        let disk = RealDisk::new(directory).map_err(|error| StoreError::io("make", &name, error))?;
        Self::open_on(Arc::new(disk), config)
    }

    /// As [`open`](Self::open), with a parent directory's lock until the store is closed.
    pub fn open_within(
        lock: Arc<DirectoryLock>,
        directory: impl Into<PathBuf>,
        config: FileStoreConfig,
    ) -> Result<Self, StoreError> {
        let directory = directory.into();
        let name = directory.display().to_string();
        let disk = RealDisk::within(directory, lock).map_err(|error| StoreError::io("make", &name, error))?;
        Self::open_on(Arc::new(disk), config)
    }

    /// Opens or creates the store on this disk.
    pub fn open_on(disk: Arc<dyn Disk>, mut config: FileStoreConfig) -> Result<Self, StoreError> {
        config.file_bytes_max = config.file_bytes_max.clamp(FILE_BYTES_MIN, 1 << 30);
        config.entry_bytes_max = config.entry_bytes_max.min(BATCH_BYTES_MAX - PUT_HEAD as u64);
        let guard = disk.lock().map_err(|error| StoreError::io("lock", &disk.name(), error))?;
        let guard = guard.ok_or_else(|| StoreError::Locked { directory: disk.name() })?;
        header::check_meta(&*disk, Settings { segments: config.segments })?;
        let replay = open::replay(&*disk, &config)?;
        let reserve = Reserve::found(&*disk);
        let mut store = Self {
            disk,
            config,
            opened: replay.opened,
            append: Mutex::new(Append::new(replay.next_file, replay.next_change, reserve)),
            is_syncing: Mutex::default(),
            sync_ended: Condvar::new(),
            index: RwLock::new(replay.index),
            tail: Mutex::default(),
            safe: Safe::default(),
            stopped: Mutex::default(),
            is_closed: AtomicBool::new(false),
            counters: Arc::default(),
            guard: Mutex::new(Some(guard)),
        };
        store.remove_files(replay.left_over.iter().copied());
        store.end_newest(replay.unsealed, replay.cut)?;
        for number in replay.damaged {
            if let Err(error) = store.copy_intact(number) {
                tracing::warn!(file = log_name(number), %error, "cannot copy the intact records; they stay in the damaged file");
            }
        }
        store.report();
        Ok(store)
    }

    /// Returns the findings of opening the store.
    pub fn opened(&self) -> &Opened {
        &self.opened
    }

    fn end_newest(&mut self, unsealed: Option<u32>, cut: Option<(u32, u32)>) -> Result<(), StoreError> {
        let name = |number| log_name(number);
        let index = read(&self.index);
        if let Some((number, at)) = cut {
            let file = &index.files[&number].file;
            file.truncate(u64::from(at)).map_err(|error| StoreError::io("cut", &name(number), error))?;
        }
        let Some(number) = unsealed else { return Ok(()) };
        let log = &index.files[&number];
        let active = Active { number, file: Arc::clone(&log.file), len: log.len };
        drop(index);
        *lock(&self.tail) =
            Tail::new(Position { file: number, offset: active.len }, Arc::clone(&active.file));
        let mut append = lock(&self.append);
        append.active = Some(active);
        match self.freeing(&mut append, |append| self.seal(append)) {
            // The file stays readable, and grows again when there is space.
            Err(StoreError::Full { .. }) => {
                if let Some(log) = write(&self.index).files.get_mut(&number) {
                    log.is_sealed = false;
                }
                Ok(())
            }
            sealed => sealed,
        }
    }

    fn report(&self) {
        let Opened { entries, files, bytes, torn, left_over, lost, .. } = &self.opened;
        let store = self.disk.name();
        tracing::info!(store, entries, files, bytes, left_over, "opened");
        if let Some(Torn { file, offset, bytes }) = torn {
            tracing::warn!(store, file, offset, bytes, "cut off a torn write at the end of the newest file");
        }
        if !lost.is_empty() {
            tracing::error!(store, lost.files, lost.places, lost.bytes, "opened without the damaged records");
        }
    }

    fn write<T>(
        &self,
        append: &mut Append,
        len: u64,
        encode: impl FnOnce(&mut record::Encoder<'_>, &mut u64) -> T,
        apply: impl FnOnce(&mut Index, T),
    ) -> Result<Position, StoreError> {
        self.make_room(append, len)?;
        let made = self.append(append, encode)?;
        apply(&mut write(&self.index), made);
        Ok(lock(&self.tail).written)
    }

    fn acknowledge(&self, at: Position) -> Result<(), StoreError> {
        match self.config.durability {
            Durability::Process => Ok(()),
            Durability::Disk => self.sync_to(at),
        }
    }

    /// Without removals of absent keys.
    fn plan<'a>(&self, changes: &'a [Change]) -> Vec<(&'a Change, Print)> {
        let index = read(&self.index);
        let mut last = HashMap::new();
        let prints: Vec<Print> = changes.iter().map(|change| index.print(change.key())).collect();
        if changes.len() > 1 {
            for (at, (change, print)) in changes.iter().zip(&prints).enumerate() {
                last.insert((change.segment(), *print), at);
            }
        }
        let is_last = |at: usize, change: &Change, print: &Print| {
            last.get(&(change.segment(), *print)).is_none_or(|&last| last == at)
        };
        let is_needed = |change: &Change, print: &Print| match change {
            Change::Put(_) => true,
            Change::Remove { segment, .. } => {
                index.slot(*segment, print).is_some_and(|slot| !slot.is_tombstone())
            }
        };
        let planned = changes.iter().zip(prints).enumerate();
        let planned =
            planned.filter(|(at, (change, print))| is_last(*at, change, print) && is_needed(change, print));
        planned.map(|(_, planned)| planned).collect()
    }

    fn check_size(&self, changes: &[Change]) -> Result<(), StoreError> {
        let mut total = 0;
        for change in changes {
            check_segment(change.segment(), self.config.segments)?;
            let (len, max) = (change.bytes_len() as u64, self.config.entry_bytes_max);
            if len > max {
                return Err(StoreError::TooLarge { len, max });
            }
            total += len + PUT_HEAD as u64;
        }
        if total > BATCH_BYTES_MAX {
            return Err(StoreError::TooLarge { len: total, max: BATCH_BYTES_MAX });
        }
        Ok(())
    }

    fn purge_batch(
        &self,
        now: u64,
        limit: usize,
    ) -> Result<(Vec<Entry>, Option<StoreError>, bool), StoreError> {
        let mut append = self.appending()?;
        let due = read(&self.index).expired(now, limit);
        let is_last = due.len() < limit;
        let (mut gone, mut damage) = (Vec::new(), None);
        for (segment, print) in due {
            let Some((file, at)) = self.locate(segment, &print) else { continue };
            match read_entry(&*file, at) {
                Ok(entry) => gone.push((entry, print)),
                Err(error) => {
                    // Otherwise each purge would find the entry first.
                    write(&self.index).give_up_expiry(segment, &print);
                    damage = Some(error);
                }
            }
        }
        Counters::add(&self.counters.entries_read, gone.len() as u64);
        if !gone.is_empty() {
            let len = gone.iter().map(|(entry, _)| remove_len(&entry.key)).sum();
            let encode = |encoder: &mut record::Encoder<'_>, change: &mut u64| {
                let mut encode = |(entry, _): &(Entry, Print)| {
                    *change += 1;
                    encoder.remove(*change - 1, entry.segment, &entry.key)
                };
                gone.iter().map(&mut encode).collect::<Vec<_>>()
            };
            let apply = |index: &mut Index, locations: Vec<Location>| {
                for ((entry, print), at) in gone.iter().zip(locations) {
                    index.remove(entry.segment, *print, at);
                }
            };
            let at = self.freeing(&mut append, |append| self.write(append, len, encode, apply))?;
            drop(append);
            self.acknowledge(at)?;
        }
        Ok((gone.into_iter().map(|(entry, _)| entry).collect(), damage, is_last))
    }

    fn locate(&self, segment: Segment, print: &Print) -> Option<(Arc<dyn DiskFile>, Location)> {
        let index = read(&self.index);
        let at = index.slot(segment, print).filter(|slot| !slot.is_tombstone())?.location();
        Some((Arc::clone(&index.files.get(&at.file)?.file), at))
    }
}

impl Store for FileStore {
    fn segments(&self) -> u16 {
        self.config.segments
    }

    fn load(&self, segment: Segment, key: &[u8]) -> Result<Option<Entry>, StoreError> {
        check_segment(segment, self.config.segments)?;
        self.check_open()?;
        let print = read(&self.index).print(key);
        let Some((file, at)) = self.locate(segment, &print) else { return Ok(None) };
        Counters::add(&self.counters.entries_read, 1);
        let entry = read_entry(&*file, at)?;
        if entry.key != key || entry.segment != segment {
            return Err(corrupt(at.file, at.offset, "the record belongs to another key"));
        }
        Ok(Some(entry))
    }

    fn store(&self, changes: &[Change]) -> Result<(), StoreError> {
        self.check_size(changes)?;
        let mut append = self.appending()?;
        let plan = self.plan(changes);
        Counters::add(&self.counters.changes, changes.len() as u64);
        let at = if plan.is_empty() {
            // The key may have been removed by a write that is not durable yet.
            lock(&self.tail).written
        } else {
            let record_len = |(change, _): &(&Change, Print)| match change {
                Change::Put(entry) => put_len(entry),
                Change::Remove { key, .. } => remove_len(key),
            };
            let len = plan.iter().map(record_len).sum();
            let encode = |encoder: &mut record::Encoder<'_>, change: &mut u64| {
                let mut encode = |planned: &(&Change, Print)| {
                    *change += 1;
                    match planned.0 {
                        Change::Put(entry) => encoder.put(*change - 1, entry),
                        Change::Remove { segment, key } => encoder.remove(*change - 1, *segment, key),
                    }
                };
                plan.iter().map(&mut encode).collect::<Vec<_>>()
            };
            let apply = |index: &mut Index, locations: Vec<Location>| {
                for ((change, print), at) in plan.iter().zip(locations) {
                    match change {
                        Change::Put(entry) => index.put(entry.segment, *print, at, &entry.times),
                        Change::Remove { segment, .. } => index.remove(*segment, *print, at),
                    }
                }
            };
            if plan.iter().any(|(change, _)| matches!(change, Change::Put(_))) {
                let written =
                    self.hold_reserve(&mut append).and_then(|()| self.write(&mut append, len, encode, apply));
                append.reserve.is_full = matches!(written, Err(StoreError::Full { .. }));
                written?
            } else {
                self.freeing(&mut append, |append| self.write(append, len, encode, apply))?
            }
        };
        drop(append);
        self.acknowledge(at)
    }

    fn entries(&self, segment: Segment, part: Part) -> Result<Entries, StoreError> {
        check_segment(segment, self.config.segments)?;
        self.check_open()?;
        let index = read(&self.index);
        let locations = index.locations(segment);
        // An open file stays readable after its removal.
        let mut files = BTreeMap::new();
        for at in &locations {
            if let Some(log) = index.files.get(&at.file) {
                files.entry(at.file).or_insert_with(|| Arc::clone(&log.file));
            }
        }
        drop(index);
        let counters = Arc::clone(&self.counters);
        Ok(Box::new(locations.into_iter().filter_map(move |at| {
            let file = files.get(&at.file)?;
            Counters::add(&counters.entries_read, 1);
            Some(match part {
                Part::Whole => read_entry(&**file, at),
                Part::Keys => read_key(&**file, at),
            })
        })))
    }

    fn count(&self, segment: Segment) -> Result<u64, StoreError> {
        check_segment(segment, self.config.segments)?;
        self.check_open()?;
        Ok(read(&self.index).count(segment) as u64)
    }

    fn remove_segment(&self, segment: Segment) -> Result<(), StoreError> {
        check_segment(segment, self.config.segments)?;
        let mut append = self.appending()?;
        let at = if read(&self.index).is_empty(segment) {
            lock(&self.tail).written
        } else {
            let encode = |encoder: &mut record::Encoder<'_>, change: &mut u64| {
                *change += 1;
                (*change - 1, encoder.mark(Kind::RemoveSegment, *change - 1, segment))
            };
            let apply = |index: &mut Index, (change, at): (u64, Location)| {
                index.mark_dead(at);
                index.remove_segment(segment, change);
            };
            let len = record::HEAD as u64;
            self.freeing(&mut append, |append| self.write(append, len, encode, apply))?
        };
        drop(append);
        self.acknowledge(at)
    }

    fn clear(&self) -> Result<(), StoreError> {
        let mut append = self.appending()?;
        self.freeing(&mut append, |append| self.begin_file(append, Keep::Nothing))
    }

    fn purge(&self, now: u64, limit: usize, expired: &mut dyn FnMut(Entry)) -> Result<usize, StoreError> {
        let (mut count, mut first_damage) = (0, None);
        while count < limit {
            let (gone, damage, is_last) = self.purge_batch(now, PURGE_BATCH.min(limit - count))?;
            count += gone.len();
            first_damage = first_damage.or(damage);
            gone.into_iter().for_each(&mut *expired);
            if is_last {
                break;
            }
        }
        first_damage.map_or(Ok(count), Err)
    }

    fn maintain(&self, budget_bytes: u64) -> Result<bool, StoreError> {
        self.write_out()?;
        if self.compact(budget_bytes)? {
            return Ok(true);
        }
        let mut append = self.appending()?;
        let is_more = self.seal_if_dead(&mut append)?;
        self.adapt_reserve(&mut append)?;
        Ok(is_more)
    }

    fn remember(&self, note: &[u8]) -> Result<(), StoreError> {
        let mut append = self.appending()?;
        self.sync_written()?;
        self.freeing(&mut append, |_| note::keep(&*self.disk, note))
    }

    fn recall(&self) -> Result<Option<Bytes>, StoreError> {
        self.check_open()?;
        note::read(&*self.disk)
    }

    fn flush(&self) -> Result<(), StoreError> {
        self.check_open()?;
        self.sync_written()
    }

    fn close(&self) -> Result<(), StoreError> {
        let mut append = lock(&self.append);
        self.check_open()?;
        let sealed = match self.freeing(&mut append, |append| self.seal(append)) {
            // An unsealed file is treated like that of a killed process.
            Err(StoreError::Full { .. }) => self.sync_written(),
            sealed => sealed,
        };
        self.is_closed.store(true, Ordering::Release);
        *lock(&self.guard) = None;
        sealed
    }

    fn stats(&self) -> Stats {
        let index = read(&self.index);
        let (entries, tombstones, index_bytes) = index.sizes();
        let disk_bytes = index.files.values().map(|file| u64::from(file.len)).sum();
        let dead_bytes = index.files.values().map(|file| file.dead).sum();
        Stats { entries, tombstones, disk_bytes, dead_bytes, index_bytes, ..self.counters.stats() }
    }
}

fn read_bytes(file: &dyn DiskFile, at: Location, len: usize) -> Result<Vec<u8>, StoreError> {
    let mut bytes = vec![0; len];
    let count = file
        .read_at(&mut bytes, u64::from(at.offset))
        .map_err(|error| StoreError::io("read", &log_name(at.file), error))?;
    if count < len {
        return Err(corrupt(at.file, at.offset, "the file ends within a record"));
    }
    Ok(bytes)
}

fn read_entry(file: &dyn DiskFile, at: Location) -> Result<Entry, StoreError> {
    let bytes = Bytes::from(read_bytes(file, at, at.len as usize)?);
    let record = Record::decode(&bytes, at.file, at.offset)
        .map_err(|flaw| corrupt(at.file, at.offset, flaw.describe()))?;
    if record.kind != Kind::Put {
        return Err(corrupt(at.file, at.offset, "the record is a removal"));
    }
    Ok(record.entry(&bytes))
}

fn read_key(file: &dyn DiskFile, at: Location) -> Result<Entry, StoreError> {
    /// Keys up to this length are read with the first access.
    const KEY_GUESS: usize = 60;
    let mut bytes = read_bytes(file, at, (PUT_HEAD + KEY_GUESS).min(at.len as usize))?;
    let bad = || corrupt(at.file, at.offset, "inconsistent lengths in a record");
    if bytes.len() < PUT_HEAD || bytes[8] != Kind::Put as u8 || u32_at(&bytes, 4) != at.len {
        return Err(bad());
    }
    let end = PUT_HEAD + u32_at(&bytes, 24) as usize;
    if end > at.len as usize {
        return Err(bad());
    }
    if end > bytes.len() {
        bytes = read_bytes(file, at, end)?;
    }
    let (version, times) = decode_put(&bytes);
    let segment = u16::from_le_bytes([bytes[10], bytes[11]]);
    let key = Bytes::copy_from_slice(&bytes[PUT_HEAD..end]);
    Ok(Entry { segment, key, value: Bytes::new(), version, times })
}

// After a panic with one of these locks held, at worst a write is missing in the index; opening again repairs
// that.

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}
