//! Space that is kept for what frees space.
//!
//! A removal is a record, and so is the end of a file; compaction copies what still counts before it removes a file. On a full
//! disk none of that fits. So the store keeps a file of bytes without a meaning, and writes entries only while it has that
//! file. Whatever removes (removals, the end of a segment, `clear`, a purge, compaction, a note) gives the file up when the
//! disk has no space, and tries once more. Entries are refused from then on until compaction has made room for the file again.
//!
//! Removals cost space before compaction gives it back, and compaction copies what of a file still counts. The store counts
//! what it has left of the reserve. While entries have no space it compacts files of which a quarter is dead; when a fifth of
//! the reserve is spent, whatever frees something, as the rest is what the largest file may need. So the reserve is as large
//! as a file and a quarter, in smaller stores half of their bytes.

use std::io;

use super::append::Append;
use super::{FileStore, read};
use crate::disk::Disk;
use crate::error::StoreError;

/// The file's name.
pub(crate) const RESERVE: &str = "RESERVE";

/// The least that is kept, unless log files are smaller than twice that: a thousand removals, and the header of a file.
const RESERVE_BYTES_MIN: u64 = 64 * 1024;

/// The part of the bytes in log files that is kept.
const RESERVE_SHARE: u64 = 2;

/// Of so many entries that find no space, the first looks whether another process has made some.
const LOOKS_EVERY: u32 = 8;

/// The dead share of a file from which on it is compacted while entries have no space, if the configured one is not smaller:
/// three bytes are copied for each that is freed.
const FULL_SHARE: f64 = 0.25;

/// The same when the space for removals runs out.
const URGENT_SHARE: f64 = 1.0 / 16.0;

/// Bytes by which a reserve grows at a time: writes wait meanwhile.
const EXTENSION: u64 = 4 << 20;

/// Bytes that are written to the reserve at once.
const PIECE: usize = 64 * 1024;

/// What is kept now.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reserve {
    /// Bytes of the file; 0 if there is none.
    bytes: u64,
    /// It was given up, or could not be made, for lack of space.
    pub(crate) is_short: bool,
    /// The last entry had no space.
    pub(crate) is_full: bool,
    /// Bytes that the reserve had when it was given up.
    given_up: u64,
    /// What is left of these, with what was freed since.
    free: u64,
    /// Entries that were refused since.
    refused: u32,
}

impl Reserve {
    /// The reserve that an earlier process has left. What cannot be told is made anew.
    pub(crate) fn found(disk: &dyn Disk) -> Self {
        let bytes = disk.open(RESERVE).and_then(|file| file.len()).unwrap_or(0);
        Self { bytes, ..Self::default() }
    }

    /// Bytes were written.
    pub(crate) fn spend(&mut self, bytes: usize) {
        self.free = self.free.saturating_sub(bytes as u64);
    }

    /// Bytes were freed.
    pub(crate) fn gain(&mut self, bytes: u64) {
        self.free += bytes;
    }

    /// Whether a file is worth compacting, of which so many bytes of `len` are dead, where that is worth it from `share` on.
    pub(crate) fn is_worth_compacting(&self, len: u64, dead: u64, share: f64) -> bool {
        let share = match self {
            Self { is_short: true, free, given_up, .. } if *free <= given_up / 5 * 4 => {
                URGENT_SHARE.min(share)
            }
            Self { is_short: true, .. } | Self { is_full: true, .. } => FULL_SHARE.min(share),
            _ => share,
        };
        dead as f64 >= share * len.max(1) as f64 && (!self.is_short || len.saturating_sub(dead) <= self.free)
    }
}

impl FileStore {
    /// Carries out what removes something or helps to. If there is no space for it, the reserve is given up, and it is tried
    /// once more.
    pub(crate) fn freeing<T>(
        &self,
        append: &mut Append,
        mut act: impl FnMut(&mut Append) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        match act(append) {
            Err(StoreError::Full { .. }) if self.give_up_reserve(append) => act(append),
            other => other,
        }
    }

    /// Makes sure that there is a reserve before an entry is written.
    ///
    /// # Errors
    ///
    /// [`StoreError::Full`] if there is no space for one.
    pub(crate) fn hold_reserve(&self, append: &mut Append) -> Result<(), StoreError> {
        if append.reserve.bytes > 0 && !append.reserve.is_short {
            return Ok(());
        }
        let reserve = &mut append.reserve;
        if reserve.is_short && reserve.free < reserve.given_up {
            let is_looked_for = reserve.refused.is_multiple_of(LOOKS_EVERY);
            reserve.refused += 1;
            if !is_looked_for {
                return Err(StoreError::Full { file: RESERVE.to_owned() });
            }
        }
        // All that was given up, so that entries do not take what the next removals need.
        let wanted = append.reserve.given_up.max(self.reserve_bytes_min());
        let held = self.extend_reserve(append, wanted);
        match &held {
            Ok(()) => {
                let bytes = append.reserve.bytes;
                append.reserve = Reserve { bytes, ..Reserve::default() };
            }
            Err(error) => {
                append.reserve.is_short |= matches!(error, StoreError::Full { .. });
                self.remove_reserve(append);
            }
        }
        held
    }

    /// The reserve grows with the store. To be called where it is looked after the files.
    pub(crate) fn adapt_reserve(&self, append: &mut Append) -> Result<(), StoreError> {
        let Reserve { bytes, is_short, given_up, free, .. } = append.reserve;
        let wanted = self.reserve_bytes();
        if is_short && free >= given_up {
            self.hold_reserve(append).or_else(pass_full)
        } else if bytes > 0 && bytes < wanted {
            self.extend_reserve(append, wanted.min(bytes + EXTENSION)).or_else(pass_full)
        } else {
            Ok(())
        }
    }

    /// True if there was one, whose bytes are free now.
    fn give_up_reserve(&self, append: &mut Append) -> bool {
        append.reserve.is_short = true;
        if append.reserve.bytes == 0 {
            return false;
        }
        (append.reserve.given_up, append.reserve.free) = (append.reserve.bytes, append.reserve.bytes);
        tracing::debug!(
            store = self.disk.name(),
            bytes = append.reserve.bytes,
            "gives up its reserve: the disk is full"
        );
        self.remove_reserve(append);
        true
    }

    fn remove_reserve(&self, append: &mut Append) {
        append.reserve.bytes = 0;
        match self.disk.remove(RESERVE) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(store = self.disk.name(), %error, "cannot remove the reserve");
            }
            _ => {}
        }
    }

    /// Writes as much more to the reserve as is wanted, or leaves it as it was.
    fn extend_reserve(&self, append: &mut Append, wanted: u64) -> Result<(), StoreError> {
        let before = append.reserve.bytes;
        let error = |error| StoreError::io("write", RESERVE, error);
        let file = if before == 0 { self.disk.create(RESERVE) } else { self.disk.open(RESERVE) };
        let file = file.map_err(error)?;
        // File systems that compress, or leave out zeros, have to take these bytes.
        let mut random = wanted | 1;
        let mut piece = Vec::with_capacity(PIECE);
        let mut at = before;
        while at < wanted {
            piece.clear();
            while piece.len() < PIECE.min((wanted - at) as usize) {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                piece.extend_from_slice(&random.to_le_bytes());
            }
            piece.truncate((wanted - at) as usize);
            if let Err(failed) = file.write_at(&piece, at) {
                // Now it is known how much is free.
                append.reserve.free = append.reserve.free.min(at - before);
                let _ = file.truncate(before);
                return Err(error(failed));
            }
            at += piece.len() as u64;
        }
        append.reserve.bytes = at.max(before);
        Ok(())
    }

    fn reserve_bytes_min(&self) -> u64 {
        RESERVE_BYTES_MIN.min(u64::from(self.config.file_bytes_max) / 2)
    }

    fn reserve_bytes_max(&self) -> u64 {
        let file = u64::from(self.config.file_bytes_max);
        file + file / 4
    }

    fn reserve_bytes(&self) -> u64 {
        let disk_bytes: u64 = read(&self.index).files.values().map(|file| u64::from(file.len)).sum();
        (disk_bytes / RESERVE_SHARE).clamp(self.reserve_bytes_min(), self.reserve_bytes_max())
    }
}

/// A reserve that cannot be as large as it should be is no failure of what was asked for.
fn pass_full(error: StoreError) -> Result<(), StoreError> {
    match error {
        StoreError::Full { .. } => Ok(()),
        error => Err(error),
    }
}
