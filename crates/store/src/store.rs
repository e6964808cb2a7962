//! What the grid asks of a store.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

use crate::entry::{Change, Entry, Segment};
use crate::error::StoreError;

/// Entries of a segment, one after the other.
pub type Entries = Box<dyn Iterator<Item = Result<Entry, StoreError>> + Send>;

/// Keeps entries beyond the life of a process.
///
/// Calls block: the grid writes to a store from one thread at a time ([`Writer`](crate::Writer)), and reads from threads that may
/// wait. All calls may come from several threads at once.
///
/// A store does not look at the clock. It gives what it holds, expired or not, until [`purge`](Self::purge) removes it.
pub trait Store: Send + Sync + fmt::Debug {
    /// Number of segments; all others are refused.
    fn segments(&self) -> u16;

    /// The entry of a key.
    fn load(&self, segment: Segment, key: &[u8]) -> Result<Option<Entry>, StoreError>;

    /// Makes all changes, in order. When it returns without error they are as safe as the store promises. With an error
    /// none of them has been made, unless the error says otherwise. A crash meanwhile may leave some of them made.
    fn store(&self, changes: &[Change]) -> Result<(), StoreError>;

    /// The entries of a segment as they were at the time of the call, each exactly once, whatever is written while they
    /// are fetched. No entry of another segment is touched.
    fn entries(&self, segment: Segment, part: Part) -> Result<Entries, StoreError>;

    /// Number of entries in a segment, without reading them.
    fn count(&self, segment: Segment) -> Result<u64, StoreError>;

    /// Removes all entries of a segment.
    fn remove_segment(&self, segment: Segment) -> Result<(), StoreError>;

    /// Removes all entries.
    fn clear(&self) -> Result<(), StoreError>;

    /// Removes up to `limit` entries that have expired at `now` and gives each of them to `expired`, once it is removed.
    /// Entries are found a second late at most. Only entries that have expired are read.
    fn purge(&self, now: u64, limit: usize, expired: &mut dyn FnMut(Entry)) -> Result<usize, StoreError>;

    /// Puts the store's files in order, reading and writing about `budget_bytes`. True: there is more to do. To be called
    /// again and again by whoever writes, or the files grow without end.
    fn maintain(&self, budget_bytes: u64) -> Result<bool, StoreError>;

    /// Keeps a note beside the entries, in place of the one before; none if it is empty. What was stored and removed before
    /// is as safe as this is, or safer.
    fn remember(&self, note: &[u8]) -> Result<(), StoreError>;

    /// The note that is kept.
    fn recall(&self) -> Result<Option<Bytes>, StoreError>;

    /// Returns when all that has been stored outlives a power failure.
    fn flush(&self) -> Result<(), StoreError>;

    /// Flushes and lets go of the files. Everything afterwards is refused as [`StoreError::Closed`].
    fn close(&self) -> Result<(), StoreError>;

    /// What the store has done so far.
    fn stats(&self) -> Stats;
}

/// What of an entry is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Everything.
    Whole,
    /// Key, version and times; the value is empty and is not read, nor is it checked for damage.
    Keys,
}

/// What a store has done since it was opened, and what it holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Entries read for `load`, `entries` and `purge`.
    pub entries_read: u64,
    /// Changes stored.
    pub changes: u64,
    /// Times that the disk was asked to make writes safe.
    pub syncs: u64,
    /// Bytes read and written by `maintain`.
    pub maintained_bytes: u64,
    /// Entries held.
    pub entries: u64,
    /// Removals remembered because an older record of their key is still on the disk.
    pub tombstones: u64,
    /// Bytes on the disk.
    pub disk_bytes: u64,
    /// Bytes on the disk that no longer count.
    pub dead_bytes: u64,
    /// Bytes of memory for finding entries, without the allocator's share.
    pub index_bytes: u64,
}

/// The counters behind [`Stats`].
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

/// Refuses a segment that a store of so many does not have.
pub(crate) fn check_segment(segment: Segment, segments: u16) -> Result<(), StoreError> {
    if segment < segments { Ok(()) } else { Err(StoreError::NoSuchSegment { segment, segments }) }
}

/// The entry without its value.
pub(crate) fn without_value(entry: Entry) -> Entry {
    Entry { value: Bytes::new(), ..entry }
}
