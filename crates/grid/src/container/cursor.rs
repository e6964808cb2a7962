//! Walking through the entries of a segment while they change.
//!
//! An entry keeps its slot for life, whatever is written to it, and its key's insertion has a number. A cursor is the
//! next slot and the number that the next insertion had when it began: what was inserted later is not given. So an entry
//! that is there all the time is given exactly once, and no key is given twice, not even one that is removed and comes
//! back.

use bytes::Bytes;

use super::Entry;
use crate::Segment;

/// Where a walk through a segment goes on. Plain data: it costs nothing between the calls and may be forgotten.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cursor {
    /// The next slot to look at.
    pub slot: u32,
    /// The number of the first insertion that it does not see.
    pub before: u64,
}

impl Cursor {
    /// The beginning of a walk, which is when it is first used.
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

/// How much one call may give. It gives one entry, if there is one, however large it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChunkLimits {
    /// Entries.
    pub entries_max: usize,
    /// Bytes of keys and values.
    pub bytes_max: usize,
}

/// A part of a walk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Chunk {
    /// Keys and entries.
    pub entries: Vec<(Bytes, Entry)>,
    /// Where to go on; none at the end. The next chunk may be empty.
    pub next: Option<Cursor>,
}

/// The segment is not here, or it was given up since the walk began: what the walk gave is not all there is. Nothing is
/// changed; whoever owns the segment now can be asked from the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("segment {0} is not here, or was given up since the cursor began")]
pub struct SegmentGone(pub Segment);

/// What is left of the limits of a call.
pub(super) struct Budget {
    entries: usize,
    bytes: usize,
    is_untouched: bool,
}

impl Budget {
    pub(super) fn new(limits: ChunkLimits) -> Self {
        Self { entries: limits.entries_max.max(1), bytes: limits.bytes_max, is_untouched: true }
    }

    /// Whether an entry of this many bytes may be given; if so it is counted.
    pub(super) fn admit(&mut self, bytes: usize) -> bool {
        if self.entries == 0 || (bytes > self.bytes && !self.is_untouched) {
            return false;
        }
        self.entries -= 1;
        self.bytes = self.bytes.saturating_sub(bytes);
        self.is_untouched = false;
        true
    }

    /// Whether no entry at all can follow.
    pub(super) fn is_spent(&self) -> bool {
        self.entries == 0 || (self.bytes == 0 && !self.is_untouched)
    }
}
