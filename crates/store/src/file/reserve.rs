//! Reserved space for operations that free space.
//!
//! Removals and seals are records, and compaction copies live records before it removes a file: none of that
//! fits on a full disk. So the store keeps a reserve file, and writes entries only while it exists. Operations
//! that free space (removals, `clear`, purges, compaction, notes) give the file up when the disk is full and
//! retry.
//!
//! While the disk is full, files that are a quarter dead are compacted; once a fifth of the reserve is spent,
//! any file that frees space, because the largest file may need the rest. So the reserve is a file and a
//! quarter, in smaller stores half of the data.

use std::io;

use super::append_state::Append;
use super::reserve_account::{RESERVE, Reserve};
use super::{FileStore, read};
use crate::error::StoreError;

/// A thousand removals and a file header. Less if log files are smaller than twice that.
const RESERVE_BYTES_MIN: u64 = 64 * 1024;

const RESERVE_SHARE: u64 = 2;

/// One in this many refused entries checks whether the disk has space again.
const LOOKS_EVERY: u32 = 8;

const EXTENSION: u64 = 4 << 20;

const PIECE: usize = 64 * 1024;

impl FileStore {
    /// Retries once if the disk is full.
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

    /// By `wanted` bytes, or not at all.
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
