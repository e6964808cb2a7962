//! Appends records to the newest file, rolls files, and syncs.
//!
//! **Order.** An append encodes, writes, then updates the index. After a failed write the file is truncated to
//! the index's state. If that fails, too, the store becomes read-only, because the disk's state is unknown.
//!
//! **Durability.** A file is synced before the next one begins, so only the newest can have a torn end. A
//! failed sync is never repeated: the system may have dropped the data and report success the second time.

use std::cell::Cell;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};

use super::append_state::{Active, Append};
use super::header::{Header, log_name};
use super::index::LogFile;
use super::position::{Position, Tail};
use super::record::{Encoder, HEAD, Kind};
use super::{FileStore, lock, read, write};
use crate::disk::DiskFile;
use crate::error::StoreError;
use crate::store::Counters;

thread_local! {
    /// Few threads write, but a process may have many stores.
    static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keep {
    All,
    Nothing,
}

const BUFFER_KEPT_MAX: usize = 4 << 20;

/// Rolling waits for a sync: with this bound about 20 ms at 400 MB/s.
const WRITE_OUT_BYTES: u32 = 8 << 20;

impl FileStore {
    pub(crate) fn appending(&self) -> Result<MutexGuard<'_, Append>, StoreError> {
        let append = lock(&self.append);
        self.check_open()?;
        match &*lock(&self.stopped) {
            Some(why) => Err(StoreError::Stopped { why: why.clone() }),
            None => Ok(append),
        }
    }

    pub(crate) fn stop(&self, why: &StoreError) {
        let mut stopped = lock(&self.stopped);
        if stopped.is_none() {
            tracing::error!(store = self.disk.name(), error = %why, "the store is read-only until it is opened again");
            *stopped = Some(why.to_string());
        }
    }

    pub(crate) fn make_room(&self, append: &mut Append, len: u64) -> Result<(), StoreError> {
        if let Some(active) = &append.active {
            let room = u64::from(self.config.file_bytes_max).saturating_sub(u64::from(active.len));
            if room >= len + HEAD as u64 {
                return Ok(());
            }
            self.seal(append)?;
        }
        self.begin_file(append, Keep::All)
    }

    pub(crate) fn append<T>(
        &self,
        append: &mut Append,
        encode: impl FnOnce(&mut Encoder<'_>, &mut u64) -> T,
    ) -> Result<T, StoreError> {
        let Append { active: Some(active), next_change, reserve, .. } = append else {
            unreachable!("make_room has begun a file");
        };
        if let Some(why) = &*lock(&self.stopped) {
            return Err(StoreError::Stopped { why: why.clone() });
        }
        let name = log_name(active.number);
        // Fails before writing if no descriptor is available, so that nothing has to be truncated.
        let _held = active.file.hold().map_err(|error| StoreError::io("open", &name, error))?;
        let safe = self.safe.offset_in(active.number);
        let mut buffer = BUFFER.take();
        let mut encoder = Encoder::new(&mut buffer, active.number, active.len, safe);
        let mut change = *next_change;
        let made = encode(&mut encoder, &mut change);
        let (written, len) = (active.file.write_at(&buffer, u64::from(active.len)), buffer.len());
        if buffer.capacity() <= BUFFER_KEPT_MAX {
            BUFFER.set(buffer);
        }
        if let Err(error) = written {
            let error = StoreError::io("write", &name, error);
            if active.file.truncate(u64::from(active.len)).is_err() {
                self.stop(&error);
            }
            return Err(error);
        }
        active.len += len as u32;
        reserve.spend(len);
        *next_change = change;
        if let Some(file) = write(&self.index).files.get_mut(&active.number) {
            file.len = active.len;
        }
        let mut tail = lock(&self.tail);
        tail.written = Position { file: active.number, offset: active.len };
        Ok(made)
    }

    /// Missing or invalid bytes in it are damage from then on.
    pub(crate) fn seal(&self, append: &mut Append) -> Result<(), StoreError> {
        let Some(active) = &append.active else { return Ok(()) };
        let number = active.number;
        // Sync the data before the seal record.
        self.sync_written()?;
        let at = self.append(append, |encoder, change| encoder.mark(Kind::Seal, *change, 0))?;
        self.sync_written()?;
        let mut index = write(&self.index);
        index.mark_dead(at);
        if let Some(file) = index.files.get_mut(&number) {
            file.is_sealed = true;
        }
        append.active = None;
        Ok(())
    }

    /// [`Keep::Nothing`] removes all older files.
    pub(crate) fn begin_file(&self, append: &mut Append, keep: Keep) -> Result<(), StoreError> {
        let number = append.next_file;
        let header = {
            let index = read(&self.index);
            let kept = index.files.iter().filter(|(_, file)| keep == Keep::All && !file.is_dropped);
            let files = kept.map(|(number, _)| *number).collect();
            let floors = if keep == Keep::All { index.floors() } else { Vec::new() };
            let boot = self.disk.boot().unwrap_or(0);
            Header { number, boot, next_change: append.next_change, files, floors }
        };
        append.next_file += 1;
        let bytes = header.encode();
        let name = log_name(number);
        let file = self.make_file(&name, &bytes).map_err(|error| {
            let error = StoreError::io("begin", &name, error);
            // Otherwise an intact header without records would count at the next opening.
            if self.disk.remove(&name).and_then(|()| self.disk.sync_names()).is_err() {
                self.stop(&error);
            }
            error
        })?;
        let len = bytes.len() as u32;
        append.reserve.spend(bytes.len());
        {
            let mut index = write(&self.index);
            let before = if keep == Keep::Nothing { index.clear() } else { Default::default() };
            index.files.insert(number, LogFile::new(Arc::clone(&file), len, len, false));
            drop(index);
            if keep == Keep::Nothing {
                append.cursor = None;
                append.reserve.gain(before.values().map(|file| u64::from(file.len)).sum());
                self.remove_files(before.keys().copied());
            }
        }
        append.active = Some(Active { number, file: Arc::clone(&file), len });
        let position = Position { file: number, offset: len };
        *lock(&self.tail) = Tail::new(position, file);
        self.safe.raise(position);
        let at = self.append(append, |encoder, change| encoder.mark(Kind::Begin, *change, 0));
        // Without its first record the file is valid; only a torn header cannot be told from a damaged one.
        if let Ok(at) = at {
            write(&self.index).mark_dead(at);
        }
        Ok(())
    }

    fn make_file(&self, name: &str, header: &[u8]) -> io::Result<Arc<dyn DiskFile>> {
        let file = self.disk.create(name)?;
        file.write_at(header, 0)?;
        file.sync()?;
        self.disk.sync_names()?;
        Counters::add(&self.counters.syncs, 1);
        Ok(file)
    }

    pub(crate) fn remove_files(&self, numbers: impl Iterator<Item = u32>) {
        for number in numbers {
            let name = log_name(number);
            if let Err(error) = self.disk.remove(&name) {
                tracing::warn!(store = self.disk.name(), file = name, %error, "cannot remove an obsolete file");
            }
        }
    }

    pub(crate) fn sync_written(&self) -> Result<(), StoreError> {
        let wanted = lock(&self.tail).written;
        self.sync_to(wanted)
    }

    /// Callers that arrive during a sync wait and usually share the next one.
    pub(crate) fn sync_to(&self, wanted: Position) -> Result<(), StoreError> {
        if self.safe.position() >= wanted {
            return Ok(());
        }
        let mut is_syncing = lock(&self.is_syncing);
        loop {
            if self.safe.position() >= wanted {
                return Ok(());
            }
            if let Some(why) = &*lock(&self.stopped) {
                return Err(StoreError::Stopped { why: why.clone() });
            }
            if !*is_syncing {
                break;
            }
            is_syncing = self.sync_ended.wait(is_syncing).unwrap_or_else(PoisonError::into_inner);
        }
        *is_syncing = true;
        drop(is_syncing);
        let result = self.sync_tail();
        *lock(&self.is_syncing) = false;
        self.sync_ended.notify_all();
        result
    }

    fn sync_tail(&self) -> Result<(), StoreError> {
        let (written, file) = {
            let tail = lock(&self.tail);
            (tail.written, tail.file().cloned())
        };
        let Some(file) = file else { return Ok(()) };
        Counters::add(&self.counters.syncs, 1);
        if let Err(error) = file.sync() {
            let error = StoreError::io("sync", &log_name(written.file), error);
            self.stop(&error);
            return Err(StoreError::Stopped { why: error.to_string() });
        }
        self.safe.raise(written);
        Ok(())
    }

    pub(crate) fn write_out(&self) -> Result<(), StoreError> {
        let (written, safe) = (lock(&self.tail).written, self.safe.position());
        let gathered =
            if written.file == safe.file { written.offset - safe.offset.min(written.offset) } else { 0 };
        if gathered > WRITE_OUT_BYTES { self.sync_to(written) } else { Ok(()) }
    }

    pub(crate) fn check_open(&self) -> Result<(), StoreError> {
        if self.is_closed.load(Ordering::Acquire) { Err(StoreError::Closed) } else { Ok(()) }
    }
}
