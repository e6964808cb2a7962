use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

use crate::entry::{Change, Entry, Segment};
use crate::error::StoreError;

/// An iterator over the entries of a segment.
pub type Entries = Box<dyn Iterator<Item = Result<Entry, StoreError>> + Send>;

/// Persistent storage of entries.
///
/// Calls block, and may come from several threads at once. A store does not use the clock: it returns entries,
/// expired or not, until [`purge`](Self::purge) removes them.
pub trait Store: Send + Sync + fmt::Debug {
    /// Returns the number of segments; others are refused.
    fn segments(&self) -> u16;

    /// Loads the entry of a key.
    fn load(&self, segment: Segment, key: &[u8]) -> Result<Option<Entry>, StoreError>;

    /// Applies changes in order, as durable as configured. On an error none was applied, unless the error says
    /// otherwise. A crash may leave some applied.
    fn store(&self, changes: &[Change]) -> Result<(), StoreError>;

    /// Iterates over a segment's entries as of the time of the call, each exactly once. Reads no other
    /// segment's entry.
    fn entries(&self, segment: Segment, part: Part) -> Result<Entries, StoreError>;

    /// Returns a segment's number of entries, without reading them.
    fn count(&self, segment: Segment) -> Result<u64, StoreError>;

    /// Removes all entries of a segment.
    fn remove_segment(&self, segment: Segment) -> Result<(), StoreError>;

    /// Removes all entries.
    fn clear(&self) -> Result<(), StoreError>;

    /// Removes up to `limit` entries expired at `now`, and passes each to `expired`. Entries are found at most
    /// 1 s late. Reads only expired entries.
    fn purge(&self, now: u64, limit: usize, expired: &mut dyn FnMut(Entry)) -> Result<usize, StoreError>;

    /// Maintains the files, reading and writing about `budget_bytes`. Returns whether more work is left.
    /// Without regular calls the files grow without bound.
    fn maintain(&self, budget_bytes: u64) -> Result<bool, StoreError>;

    /// Replaces the note; an empty note removes it. Earlier changes are at least as durable as the note.
    fn remember(&self, note: &[u8]) -> Result<(), StoreError>;

    /// Returns the note.
    fn recall(&self) -> Result<Option<Bytes>, StoreError>;

    /// Returns once all changes survive a power failure.
    fn flush(&self) -> Result<(), StoreError>;

    /// Flushes and closes the files. Later calls return [`StoreError::Closed`].
    fn close(&self) -> Result<(), StoreError>;

    /// Returns the statistics.
    fn stats(&self) -> Stats;
}

/// The part of an entry to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The whole entry.
    Whole,
    /// Key, version and times. The value is empty, and not checked for damage.
    Keys,
}

/// Statistics since the opening.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Entries read by `load`, `entries` and `purge`.
    pub entries_read: u64,
    /// Changes stored.
    pub changes: u64,
    /// Syncs of the disk.
    pub syncs: u64,
    /// Bytes read and written by `maintain`.
    pub maintained_bytes: u64,
    /// Current entries.
    pub entries: u64,
    /// Removals kept because the disk has older records of their keys.
    pub tombstones: u64,
    /// Bytes on the disk.
    pub disk_bytes: u64,
    /// Dead bytes on the disk.
    pub dead_bytes: u64,
    /// Bytes of the index, without the allocator's overhead.
    pub index_bytes: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) entries_read: AtomicU64,
    pub(crate) changes: AtomicU64,
    pub(crate) syncs: AtomicU64,
    pub(crate) maintained_bytes: AtomicU64,
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64, count: u64) {
        counter.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn stats(&self) -> Stats {
        Stats {
            entries_read: self.entries_read.load(Ordering::Relaxed),
            changes: self.changes.load(Ordering::Relaxed),
            syncs: self.syncs.load(Ordering::Relaxed),
            maintained_bytes: self.maintained_bytes.load(Ordering::Relaxed),
            ..Stats::default()
        }
    }
}

pub(crate) fn check_segment(segment: Segment, segments: u16) -> Result<(), StoreError> {
    if segment < segments { Ok(()) } else { Err(StoreError::NoSuchSegment { segment, segments }) }
}

pub(crate) fn without_value(entry: Entry) -> Entry {
    Entry { value: Bytes::new(), ..entry }
}
