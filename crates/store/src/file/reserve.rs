//! Reserved space for operations that free space.
//!
//! A removal is a record, so is a seal; compaction copies live records before it removes a file. None of that
//! fits on a full disk. So the store keeps a reserve file of meaningless bytes, and writes entries only while
//! it exists. Operations that free space (removals, segment removals, `clear`, purges, compaction, notes)
//! give the file up when the disk is full and retry. Entries are then refused until compaction has made room
//! for the file again.
//!
//! Removals use space before compaction frees it, and compaction copies live records. The store counts how
//! much of the reserve is left. While the disk is full it compacts files that are a quarter dead; once a
//! fifth of the reserve is spent, any file that frees space, because the largest file may need the rest. So
//! the reserve is a file and a quarter, in smaller stores half of the data.

use std::io;

use super::append::Append;
use super::{FileStore, read};
use crate::disk::Disk;
use crate::error::StoreError;

/// The name of the reserve file.
pub(crate) const RESERVE: &str = "RESERVE";

/// Minimum size unless log files are smaller than twice that: a thousand removals and a file header.
const RESERVE_BYTES_MIN: u64 = 64 * 1024;

/// Divisor of the log bytes for the reserve's size.
const RESERVE_SHARE: u64 = 2;

/// One in this many refused entries checks whether the disk has space again.
const LOOKS_EVERY: u32 = 8;

/// Dead share for compaction while the disk is full, if below the configured one: three bytes are copied per
/// freed byte.
const FULL_SHARE: f64 = 0.25;

/// Dead share for compaction when the reserve runs out.
const URGENT_SHARE: f64 = 1.0 / 16.0;

/// Bytes by which the reserve grows at a time, while writes wait.
const EXTENSION: u64 = 4 << 20;

/// Bytes per write to the reserve.
const PIECE: usize = 64 * 1024;

/// The state of the reserve.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reserve {
    /// The size of the file; 0 if there is none.
    bytes: u64,
    /// The file was given up or could not be created for lack of space.
    pub(crate) is_short: bool,
    /// The last entry was refused for lack of space.
    pub(crate) is_full: bool,
    /// The size of the file when it was given up.
    given_up: u64,
    /// What is left of it, plus the space freed since.
    free: u64,
    /// Entries refused since.
    refused: u32,
}

impl Reserve {
    /// Finds the reserve of an earlier process. Unknown counts start anew.
    pub(crate) fn found(disk: &dyn Disk) -> Self {
        let bytes = disk.open(RESERVE).and_then(|file| file.len()).unwrap_or(0);
        Self { bytes, ..Self::default() }
    }

    /// Notes written bytes.
    pub(crate) fn spend(&mut self, bytes: usize) {
        self.free = self.free.saturating_sub(bytes as u64);
    }

    /// Notes freed bytes.
    pub(crate) fn gain(&mut self, bytes: u64) {
        self.free += bytes;
    }

    /// Whether a file of `len` bytes with `dead` dead ones is worth compacting, where it normally is from
    /// `share` on.
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
    /// Runs an operation that frees space. If the disk is full, gives the reserve up and retries once.
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

    /// Ensures that a reserve exists before an entry is written.
    ///
    /// # Errors
    ///
    /// [`StoreError::Full`] if there is no space for it.
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
        // At least the size given up, so that entries do not use the space of later removals.
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

    /// Adapts the reserve to the size of the store. Called by maintenance.
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

    /// Gives the reserve up. Returns whether there was one.
    fn give_up_reserve(&self, append: &mut Append) -> bool {
        append.reserve.is_short = true;
        if append.reserve.bytes == 0 {
            return false;
        }
        (append.reserve.given_up, append.reserve.free) = (append.reserve.bytes, append.reserve.bytes);
        tracing::debug!(
            store = self.disk.name(),
            bytes = append.reserve.bytes,
            "the disk is full: giving up the reserve"
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

    /// Extends the reserve by `wanted` bytes, or leaves it unchanged.
    fn extend_reserve(&self, append: &mut Append, wanted: u64) -> Result<(), StoreError> {
        let before = append.reserve.bytes;
        let error = |error| StoreError::io("write", RESERVE, error);
        let file = if before == 0 { self.disk.create(RESERVE) } else { self.disk.open(RESERVE) };
        let file = file.map_err(error)?;
        // Random bytes, which file systems cannot compress or omit.
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
                // The free space is known exactly now.
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

/// A reserve that is too small is not an error of the operation.
fn pass_full(error: StoreError) -> Result<(), StoreError> {
    match error {
        StoreError::Full { .. } => Ok(()),
        error => Err(error),
    }
}
