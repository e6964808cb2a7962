//! The counts of a container.

use std::sync::atomic::{AtomicU64, Ordering};

use super::table::TableSize;

/// The counts of a container's entries, bytes and own removals. Each costs one load. They are exact, for one
/// writer.
#[derive(Default)]
pub struct ContainerStatistics {
    len: AtomicU64,
    entry_bytes: AtomicU64,
    removal_bytes: AtomicU64,
    passive: AtomicU64,
    passive_bytes: AtomicU64,
    evictions: AtomicU64,
    expirations: AtomicU64,
    index_entries: AtomicU64,
    index_bytes: AtomicU64,
    indexed_walks: AtomicU64,
    scanned_walks: AtomicU64,
}

impl ContainerStatistics {
    pub(super) fn len(&self) -> u64 {
        self.len.load(Ordering::Relaxed)
    }

    /// Entries whose value is only in the store.
    pub fn passive_len(&self) -> u64 {
        self.passive.load(Ordering::Relaxed)
    }

    /// Bytes of the passive entries in memory. They count in [`Container::bytes`](super::Container::bytes) and not in the
    /// bound.
    pub fn passive_bytes(&self) -> u64 {
        self.passive_bytes.load(Ordering::Relaxed)
    }

    /// Entries evicted so far; with a store, values.
    pub fn evictions(&self) -> u64 {
        self.evictions.load(Ordering::Relaxed)
    }

    /// Expired entries removed here so far.
    pub fn expirations(&self) -> u64 {
        self.expirations.load(Ordering::Relaxed)
    }

    /// Values in the indexes by fields, and entries with unknown ones.
    pub fn index_entries(&self) -> u64 {
        self.index_entries.load(Ordering::Relaxed)
    }

    /// Bytes of the indexes by fields. They count in [`Container::bytes`](super::Container::bytes) and not in the bound.
    pub fn index_bytes(&self) -> u64 {
        self.index_bytes.load(Ordering::Relaxed)
    }

    /// Parts of iterations through segments that an index has answered so far.
    pub fn indexed_walks(&self) -> u64 {
        self.indexed_walks.load(Ordering::Relaxed)
    }

    /// Parts of iterations with functions that have scanned segments with an index so far.
    pub fn scanned_walks(&self) -> u64 {
        self.scanned_walks.load(Ordering::Relaxed)
    }

    pub(super) fn note_walk(&self, is_indexed: bool) {
        let walks = if is_indexed { &self.indexed_walks } else { &self.scanned_walks };
        walks.fetch_add(1, Ordering::Relaxed);
    }

    /// Bytes that count in the bound: of entries with values in memory and of remembered removals.
    pub(super) fn bounded_bytes(&self) -> u64 {
        self.entry_bytes.load(Ordering::Relaxed) + self.removal_bytes()
    }

    pub(super) fn removal_bytes(&self) -> u64 {
        self.removal_bytes.load(Ordering::Relaxed)
    }

    pub(super) fn note_eviction(&self) {
        self.evictions.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn note_expirations(&self, count: usize) {
        self.expirations.fetch_add(count as u64, Ordering::Relaxed);
    }

    /// Only a container whose evicted entries a store has has passive entries.
    pub(super) fn note_change(&self, before: TableSize, after: TableSize, is_backed: bool) {
        let add = |sum: &AtomicU64, before: u64, after: u64| {
            if before != after {
                sum.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
            }
        };
        add(&self.len, before.len, after.len);
        add(&self.entry_bytes, before.entry_bytes, after.entry_bytes);
        add(&self.removal_bytes, before.removal_bytes, after.removal_bytes);
        add(&self.index_entries, before.index.entries, after.index.entries);
        add(&self.index_bytes, before.index.bytes, after.index.bytes);
        if is_backed {
            add(&self.passive, before.passive, after.passive);
            add(&self.passive_bytes, before.passive_bytes, after.passive_bytes);
        }
    }
}
