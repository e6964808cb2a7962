//! Cursors of iterations through a segment that changes meanwhile.
//!
//! An entry keeps its slot for life. A cursor has the next slot and the number of the next insertion at its
//! beginning: later insertions are skipped. So an entry that is present throughout is returned exactly once,
//! and no key twice, even if it is removed and inserted again.

use bytes::Bytes;

use super::Entry;
use crate::Segment;

/// The position of an iteration through a segment. It needs no resources and may be dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cursor {
    /// The next slot.
    pub slot: u32,
    /// The first insertion that the iteration skips.
    pub before: u64,
}

impl Cursor {
    /// The beginning.
    pub const START: Self = Self { slot: 0, before: u64::MAX };
}

impl From<(u64, u64)> for Cursor {
    fn from((slot, before): (u64, u64)) -> Self {
        Self { slot: slot as u32, before }
    }
}

impl From<Cursor> for (u64, u64) {
    fn from(cursor: Cursor) -> Self {
        (cursor.slot.into(), cursor.before)
    }
}

/// The limits of one call, which returns at least one entry, if there is one, however large it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChunkLimits {
    /// Maximum number of entries.
    pub entries_max: usize,
    /// Maximum bytes of keys and values.
    pub bytes_max: usize,
}

/// A part of an iteration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Chunk {
    /// Keys and entries.
    pub entries: Vec<(Bytes, Entry)>,
    /// The next chunk's cursor; none at the end. That chunk may be empty.
    pub next: Option<Cursor>,
}

/// The segment is not here, or was dropped since the iteration began: the returned entries are incomplete.
/// The reader can begin anew at the segment's owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("segment {0} is not here, or was given up since the cursor began")]
pub struct SegmentGone(pub Segment);

pub(super) struct Budget {
    entries: usize,
    bytes: usize,
    is_untouched: bool,
}

impl Budget {
    pub(super) fn new(limits: ChunkLimits) -> Self {
        Self { entries: limits.entries_max.max(1), bytes: limits.bytes_max, is_untouched: true }
    }

    /// Whether an entry of this many bytes is within the limits, and then counts.
    pub(super) fn admit(&mut self, bytes: usize) -> bool {
        if self.entries == 0 || (bytes > self.bytes && !self.is_untouched) {
            return false;
        }
        self.entries -= 1;
        self.bytes = self.bytes.saturating_sub(bytes);
        self.is_untouched = false;
        true
    }

    pub(super) fn is_spent(&self) -> bool {
        self.entries == 0 || (self.bytes == 0 && !self.is_untouched)
    }
}
