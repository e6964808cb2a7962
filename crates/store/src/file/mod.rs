//! A store in files of its own: append-only logs with a checksum per record, and an index in memory that knows where
//! every entry stands ([`index`]).
//!
//! * A write appends records to the newest log file ([`append`]); an entry is read with one access of the disk.
//! * Opening reads all files ([`open`]), so it takes as long as reading the data.
//! * Files that are mostly dead are copied together, a few bytes at a time ([`compact`]).
//! * Space is kept for what frees space on a full disk ([`reserve`]).
//! * Formats: [`record`], [`header`].
//!
//! **What survives.** A write that was acknowledged survives the death of the process at any instant, and with
//! [`Durability::Disk`] the failure of the machine's power. Removals do, too: nothing that was removed comes back. A write
//! that was under way is there wholly or not at all; of a batch, the first changes may be there and the others not.

mod append;
mod compact;
mod header;
mod index;
mod note;
mod open;
mod record;
mod reserve;
mod scan;

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use bytes::Bytes;

use self::append::{Active, Append, Keep, Position, Safe, Tail};
use self::compact::corrupt;
use self::header::log_name;
use self::index::{Index, Print};
use self::record::{Kind, Location, PUT_HEAD, Record, decode_put, put_len, remove_len, u32_at};
use self::reserve::Reserve;
use crate::disk::{DirectoryLock, Disk, DiskFile, RealDisk};
use crate::entry::{Change, Entry, Segment};
use crate::error::{Settings, StoreError};
use crate::store::{Counters, Entries, Part, Stats, Store, check_segment};

pub use self::open::{Lost, Opened, Torn};

/// Bytes of records that are written at once, and so the most that one call may store. It is held in memory twice, and
/// keeps offsets in a file within 32 bits.
const BATCH_BYTES_MAX: u64 = 1 << 30;

/// Entries that are purged at once, between which others may write.
const PURGE_BATCH: usize = 256;

/// Log files are not made smaller than this: below, headers would be most of them.
const FILE_BYTES_MIN: u32 = 4096;

/// What an acknowledged write survives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// The death of the process, but not a power failure: the system has it, the disk perhaps not. After a power failure
    /// the store holds what it did at some moment after the last [`flush`](Store::flush). Other members of the cluster
    /// have the entry as well, so this is the default.
    #[default]
    Process,
    /// A power failure as well: the disk has it. Writes that come at the same time share the disk's time.
    Disk,
}

/// What to do about damaged files when a store is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Recover {
    /// Do not open, change nothing, and name file and offset.
    #[default]
    Refuse,
    /// Open with what is intact and say how much is not ([`Opened::lost`]). Entries may be missing, older than they were,
    /// or back although they had been removed, if the record of that is among what is lost. What is intact is moved to
    /// new files and the damaged ones are removed.
    SkipCorrupt,
}

/// How a file store works.
#[derive(Clone, Copy, Debug)]
pub struct FileStoreConfig {
    /// Number of segments. It is fixed when the directory is made. Default 256, as the grid has.
    pub segments: u16,
    /// What an acknowledged write survives.
    pub durability: Durability,
    /// Bytes of a log file after which the next one is begun; at most 1 GiB. Default 64 MiB: a file is copied in a tenth
    /// of a second.
    pub file_bytes_max: u32,
    /// Dead share of a file from which on it is compacted. Default 0.5: the disk holds at most about twice what counts,
    /// and an entry is copied once on average for every one written.
    pub dead_share_max: f64,
    /// Bytes of key and value that one entry may have. Default 512 MiB.
    pub entry_bytes_max: u64,
    /// What to do about damaged files.
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
/// Locks are taken in the order of the fields, each for as long as it takes to change what is behind it. `append` is also
/// held while the system takes a write, and while a file that is full is made safe; readers never wait for it.
#[derive(Debug)]
pub struct FileStore {
    disk: Arc<dyn Disk>,
    config: FileStoreConfig,
    opened: Opened,
    append: Mutex<Append>,
    /// Somebody has the disk make things safe.
    is_syncing: Mutex<bool>,
    sync_ended: Condvar,
    index: RwLock<Index>,
    tail: Mutex<Tail>,
    safe: Safe,
    /// Why nothing more is written.
    stopped: Mutex<Option<String>>,
    is_closed: AtomicBool,
    counters: Arc<Counters>,
    guard: Mutex<Option<Box<dyn Any + Send + Sync>>>,
}

impl FileStore {
    /// Opens the store in this directory, or makes one there.
    pub fn open(directory: impl Into<PathBuf>, config: FileStoreConfig) -> Result<Self, StoreError> {
        let directory = directory.into();
        let name = directory.display().to_string();
        let disk = RealDisk::new(directory).map_err(|error| StoreError::io("make", &name, error))?;
        Self::open_on(Arc::new(disk), config)
    }

    /// Opens the store in this directory, or makes one there. The lock of a directory above stands for the store's own, and is
    /// kept until the store is closed.
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

    /// Opens the store on this disk, or makes one there.
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
                tracing::warn!(file = log_name(number), %error, "what is intact stays in the damaged file");
            }
        }
        store.report();
        Ok(store)
    }

    /// What was found when the store was opened.
    pub fn opened(&self) -> &Opened {
        &self.opened
    }

    /// Cuts a torn write off the newest file and gives the file an end.
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
            // It can still be read, and goes on growing when there is space.
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
            tracing::error!(store, lost.files, lost.places, lost.bytes, "opened without what is damaged");
        }
    }

    /// Appends what `encode` makes, `len` bytes, and tells the index where it stands.
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

    /// What is promised when a write is acknowledged.
    fn acknowledge(&self, at: Position) -> Result<(), StoreError> {
        match self.config.durability {
            Durability::Process => Ok(()),
            Durability::Disk => self.sync_to(at),
        }
    }

    /// The last change of each key, without removals of what is not there.
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

    /// Purges up to `limit` entries at one go.
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
                    // It would be the first to be looked at for ever.
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

    /// The file and place of an entry.
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
            return Err(corrupt(at.file, at.offset, "the record of another key"));
        }
        Ok(Some(entry))
    }

    fn store(&self, changes: &[Change]) -> Result<(), StoreError> {
        self.check_size(changes)?;
        let mut append = self.appending()?;
        let plan = self.plan(changes);
        Counters::add(&self.counters.changes, changes.len() as u64);
        let at = if plan.is_empty() {
            // What is not there may have been removed by a write that is not safe yet.
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
        // Who has a file can read it even when it has been removed.
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
            // Without its end the file is taken for one of a process that was killed.
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

/// The entry whose record stands there.
fn read_entry(file: &dyn DiskFile, at: Location) -> Result<Entry, StoreError> {
    let bytes = Bytes::from(read_bytes(file, at, at.len as usize)?);
    let record = Record::decode(&bytes, at.file, at.offset)
        .map_err(|flaw| corrupt(at.file, at.offset, flaw.describe()))?;
    if record.kind != Kind::Put {
        return Err(corrupt(at.file, at.offset, "the record of a removal"));
    }
    Ok(record.entry(&bytes))
}

/// The entry whose record stands there, without the value, which is not read.
fn read_key(file: &dyn DiskFile, at: Location) -> Result<Entry, StoreError> {
    /// Keys up to this length are read at the first try.
    const KEY_GUESS: usize = 60;
    let mut bytes = read_bytes(file, at, (PUT_HEAD + KEY_GUESS).min(at.len as usize))?;
    let bad = || corrupt(at.file, at.offset, "a record whose lengths do not agree");
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

// A panic while one of these is held leaves at worst a write that is not told to the index, which opening again repairs.

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}
