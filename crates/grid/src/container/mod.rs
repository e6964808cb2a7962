//! The entries that a member holds, by segment.
//!
//! Any thread reads the container directly; only the member's state machine writes. Each segment has a lock,
//! held for a lookup or a bounded part of an iteration, never while a thread waits.
//!
//! * A read returns the newest entry that was put, or none if it was removed or has expired. Later writes do
//!   not change a returned entry.
//! * Keys and values are copies of the exact size, not the buffers in which they arrived.
//! * An iteration returns each entry that is present throughout exactly once, see [`Cursor`].
//! * [`Container::len`] and [`Container::bytes`] are exact, for one writer, and cost two loads.
//! * The same calls in the same order return the same results.
//!
//! [`Container::bytes`] counts an entry's key and value in one allocation of a size class (at most a quarter
//! more than 8 bytes and both), [`ENTRY_OVERHEAD`], [`LIFETIME_OVERHEAD`] and [`BOUND_OVERHEAD`], without the
//! allocator's own rounding. Slots of removed entries are reused, and freed in pages of 32 once a page is
//! empty.

mod bound;
mod bulk_insert;
mod cursor;
mod entry;
mod eviction;
mod eviction_budget;
mod expiry;
mod field_index;
mod index;
mod item;
mod key_hash;
mod memory;
#[cfg(test)]
mod model;
mod outcome;
mod part;
mod prefetch;
mod shards;
mod slab;
mod statistics;
mod stored;
mod table;
#[cfg(test)]
mod tests;
mod timers;

use bytes::Bytes;
use consort_group::Time;

pub use bound::{Full, Limit, MemoryBound, WhenFull};
pub(crate) use bulk_insert::NewEntry;
pub use cursor::{Chunk, ChunkLimits, Cursor, SegmentGone};
pub use entry::{Entry, Lifetime};
pub use expiry::Expiry;
pub use field_index::{
    CANDIDATES_MAX, FIELD_VALUE_BYTES, FieldIndexes, FieldLookup, FieldValues, INDEX_ENTRY_BYTES,
    IndexLookup, IndexedFields, LOOKUP_STEPS_MAX, VALUES_PER_ENTRY_MAX,
};
pub use outcome::{Expired, Idle, Lookup, Put, Removed, Taken};
pub use prefetch::PREFETCH_MAX;
pub use statistics::ContainerStatistics;
pub use stored::Visited;

use crate::{Segment, Version};
use cursor::Budget;
use eviction_budget::Eviction;
use expiry::ExpiryStart;
use item::Item;
use shards::Shards;
use stored::Stored;
use table::{PrefetchScope, Table, Walk};

/// Bytes of an entry besides its key and value: its slot and its place in the index.
pub const ENTRY_OVERHEAD: u64 = 82;

/// Additional bytes of an entry with a lifetime.
pub const LIFETIME_OVERHEAD: u64 = 76;

/// Additional bytes of an entry in a container that evicts: its place in a queue, and a fingerprint of an evicted
/// entry.
pub const BOUND_OVERHEAD: u64 = 36;

/// Bytes of a remembered removal besides its key.
pub const REMOVAL_OVERHEAD: u64 = 40;

/// The settings of a container.
#[derive(Clone, Debug)]
pub struct ContainerSettings {
    /// Number of segments.
    pub segment_count: u16,
    /// Limit of its size; by default the available memory.
    pub bound: Option<MemoryBound>,
    /// Whether a store has or gets the evicted entries. Then eviction drops only the value; the rest of the
    /// entry stays in memory and does not count in the bound.
    pub is_backed: bool,
    /// Whether other members use copies. Then an entry that exceeded its `max_idle` here may live elsewhere:
    /// reads do not return it, expiry does not remove it, and the primary asks the other owners.
    pub is_shared: bool,
}

/// The state of a segment on this member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SegmentState {
    /// No data: reads find nothing, and writes are a mistake.
    Absent,
    /// State transfer is in progress. Removals are remembered, so that the transfer does not bring removed
    /// entries back.
    Receiving,
    /// The segment is complete.
    Owned,
}

/// The entries that a member holds.
///
/// # Panics
///
/// Methods that take a segment panic if the cache has no such segment. Writes panic in a segment that is
/// [`SegmentState::Absent`], because the writer knows which segments it owns.
pub struct Container {
    shards: Shards,
    eviction: Eviction,
    expiry_start: ExpiryStart,
    /// Whether its writes are the last to be refused.
    is_essential: bool,
}

impl Container {
    /// Creates an empty container; all segments are absent. The seed determines the positions of keys;
    /// clients that choose keys should not know it.
    ///
    /// # Panics
    ///
    /// If there are no segments.
    pub fn new(settings: &ContainerSettings, hash_seed: u64) -> Self {
        assert!(settings.segment_count > 0, "a cache has segments");
        let eviction = Eviction::new(settings.bound);
        let table = || Table::new(eviction.evicts(), settings.is_shared);
        Self {
            shards: Shards::new(settings.segment_count, hash_seed, settings.is_backed, table),
            eviction,
            expiry_start: ExpiryStart::default(),
            is_essential: false,
        }
    }

    // Reads.

    /// Returns the entry of a key, unless it has expired or its value is only in the store. The read counts
    /// as a use. `now` is called under the lock, only for an entry with a lifetime: it must not call the
    /// container.
    #[inline]
    pub fn get(&self, segment: Segment, key: &[u8], now: impl FnOnce() -> Time) -> Option<Entry> {
        let hash = self.shards.hash_of(key);
        let mut table = self.shards.lock(segment);
        table.read(hash, key, now).here().map(Stored::entry)
    }

    /// Like [`Container::get`], but returns the value.
    #[inline]
    pub fn get_value(&self, segment: Segment, key: &[u8], now: impl FnOnce() -> Time) -> Option<Bytes> {
        let hash = self.shards.hash_of(key);
        let mut table = self.shards.lock(segment);
        table.read(hash, key, now).here().map(|stored| stored.item.value())
    }

    /// Like [`Container::get`], if the segment is readable here ([`Container::set_readable`]). One lock
    /// covers both, so that a read returns nothing that another member has written by then.
    #[inline]
    pub fn look_up(&self, segment: Segment, key: &[u8], now: impl FnOnce() -> Time) -> Lookup<Entry> {
        let hash = self.shards.hash_of(key);
        self.shards.lock(segment).look_up(hash, key, now, |stored| stored.entry())
    }

    /// Like [`Container::look_up`], but returns the value.
    #[inline]
    pub fn look_up_value(&self, segment: Segment, key: &[u8], now: impl FnOnce() -> Time) -> Lookup<Bytes> {
        let hash = self.shards.hash_of(key);
        self.shards.lock(segment).look_up(hash, key, now, |stored| stored.item.value())
    }

    /// Returns the entry of a key, also if it is expired ([`Entry::is_expired`]) or passive
    /// ([`Entry::is_passive`]). This is no use of the entry.
    pub fn peek(&self, segment: Segment, key: &[u8]) -> Option<Entry> {
        let hash = self.shards.hash_of(key);
        self.shards.lock(segment).peek(hash, key)
    }

    /// Returns the version of a key's entry or remembered removal; [`Version::NONE`] if it has neither.
    pub fn version_of(&self, segment: Segment, key: &[u8]) -> Version {
        let hash = self.shards.hash_of(key);
        self.shards.lock(segment).version_of(hash, key)
    }

    /// Returns the next chunk of an iteration through a segment.
    ///
    /// # Errors
    ///
    /// [`SegmentGone`] if the segment is absent, or was dropped since the iteration began.
    pub fn chunk(
        &self,
        segment: Segment,
        cursor: Cursor,
        limits: ChunkLimits,
        now: Time,
    ) -> Result<Chunk, SegmentGone> {
        let mut entries = Vec::new();
        let next = self.visit(segment, cursor, limits, now, |visited| {
            entries.push((Bytes::copy_from_slice(visited.key()), visited.entry()));
        })?;
        Ok(Chunk { entries, next })
    }

    /// Like [`Container::chunk`], without copies. `give` is called under the lock: it must not call the container.
    ///
    /// # Errors
    ///
    /// As for [`Container::chunk`]; `give` may have been called before.
    pub fn visit(
        &self,
        segment: Segment,
        mut cursor: Cursor,
        limits: ChunkLimits,
        now: Time,
        mut give: impl FnMut(Visited<'_>),
    ) -> Result<Option<Cursor>, SegmentGone> {
        let mut budget = Budget::new(limits);
        while !budget.is_spent() {
            let table = self.shards.lock(segment);
            match table.walk(&mut cursor, &mut budget, now, PrefetchScope::Items, &mut give) {
                Walk::Spent => break,
                Walk::More => {}
                Walk::End => return Ok(None),
                Walk::Gone => return Err(SegmentGone(segment)),
            }
        }
        Ok(Some(cursor))
    }

    // Writes.

    /// Writes an entry.
    ///
    /// # Errors
    ///
    /// [`Full`] if eviction cannot make room for the entry; nothing is changed.
    pub fn put(&self, segment: Segment, key: &[u8], mut entry: Entry, now: Time) -> Result<Put, Full> {
        let hash = self.shards.hash_of(key);
        let evicted = match self.bound() {
            None => Vec::new(),
            Some(_) if entry.is_passive() => Vec::new(),
            Some(bound) => self.eviction.make_room(&self.shards, bound, segment, (hash, key), &entry)?,
        };
        let item = Item::new(key, std::mem::take(&mut entry.value));
        let previous = self.shards.write(segment, |table| table.put(hash, item, &entry, now));
        Ok(Put { previous, evicted })
    }

    /// Writes an entry, or returns `None` if an entry or remembered removal of its key is as new.
    ///
    /// # Errors
    ///
    /// As for [`Container::put`].
    pub fn put_if_newer(
        &self,
        segment: Segment,
        key: &[u8],
        entry: Entry,
        now: Time,
    ) -> Result<Option<Put>, Full> {
        if self.version_of(segment, key) >= entry.version {
            return Ok(None);
        }
        self.put(segment, key, entry, now).map(Some)
    }

    /// Restores the value of a passive entry that still has this version. Returns the evicted entries.
    ///
    /// # Errors
    ///
    /// [`Full`] if there is no room for the value; the entry stays passive.
    pub fn activate(
        &self,
        segment: Segment,
        key: &[u8],
        version: Version,
        value: Bytes,
    ) -> Result<Vec<Taken>, Full> {
        let hash = self.shards.hash_of(key);
        let Some(entry) = self.peek(segment, key) else { return Ok(Vec::new()) };
        if entry.is_passive() && entry.version == version {
            self.check_room_for_value(key, &value)?;
        }
        let evicted = match self.bound() {
            Some(bound) if entry.is_passive() && entry.version == version => {
                let active = Entry { value: value.clone(), ..entry };
                self.eviction.make_room(&self.shards, bound, segment, (hash, key), &active)?
            }
            _ => Vec::new(),
        };
        self.shards.write(segment, |table| table.activate(hash, key, version, value));
        Ok(evicted)
    }

    /// Removes a key, whatever its version.
    pub fn remove(&self, segment: Segment, key: &[u8], version: Version, now: Time) -> Removed {
        let hash = self.shards.hash_of(key);
        self.shards.write(segment, |table| Removed { previous: table.remove(hash, key, version, now) })
    }

    /// Removes a key if no entry or removal of it is as new.
    pub fn remove_if_newer(
        &self,
        segment: Segment,
        key: &[u8],
        version: Version,
        now: Time,
    ) -> Option<Removed> {
        let hash = self.shards.hash_of(key);
        self.shards.write(segment, |table| {
            (table.version_of(hash, key) < version)
                .then(|| Removed { previous: table.remove(hash, key, version, now) })
        })
    }

    /// Records a use of an entry, here or at another owner. Returns whether the entry exists.
    pub fn touch(&self, segment: Segment, key: &[u8], at: Time) -> bool {
        let hash = self.shards.hash_of(key);
        self.shards.lock(segment).touch(hash, key, at)
    }

    // Segments.

    /// Returns the state of a segment.
    pub fn state(&self, segment: Segment) -> SegmentState {
        self.shards.lock(segment).state
    }

    /// Begins to receive a segment. Its entries stay.
    pub fn receive(&self, segment: Segment) {
        self.shards.lock(segment).receive();
    }

    /// Marks the segment as complete. Its entries stay; remembered removals are forgotten.
    pub fn own(&self, segment: Segment) {
        self.shards.update(segment, Table::own);
    }

    /// Sets whether a segment is readable. Each [`Container::look_up`] that began before has ended when this
    /// function returns.
    pub fn set_readable(&self, segment: Segment, is_readable: bool) {
        self.shards.lock(segment).is_readable = is_readable;
    }

    /// Drops a segment with its entries, which are freed after the lock is released. It is no longer
    /// readable; iterations through it end with [`SegmentGone`].
    pub fn drop_segment(&self, segment: Segment) {
        let contents = self.shards.update(segment, Table::drop_contents);
        drop(contents);
    }

    /// Removes all entries of a segment. Iterations through it begin anew.
    pub fn clear_segment(&self, segment: Segment) {
        let contents = self.shards.update(segment, Table::clear_contents);
        drop(contents);
    }

    // Expiry.

    /// Returns the expiry of its entries.
    pub fn expiry(&self) -> Expiry<'_> {
        Expiry::new(&self.shards, &self.expiry_start)
    }

    /// Other owners may have the entry that was removed, or expired, while its segment was being received.
    pub(crate) fn forget_removal(&self, segment: Segment, key: &[u8]) {
        self.shards.update(segment, |table| table.forget_removal(key));
    }

    // Counts.

    /// Number of entries, including expired ones that are not removed yet.
    pub fn len(&self) -> u64 {
        self.statistics().len()
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns its counts.
    pub fn statistics(&self) -> &ContainerStatistics {
        self.shards.statistics()
    }

    /// Entries of a segment.
    pub fn segment_len(&self, segment: Segment) -> u64 {
        self.shards.lock(segment).size().len
    }

    /// Bytes of entries, remembered removals, and indexes by fields.
    pub fn bytes(&self) -> u64 {
        let statistics = self.statistics();
        statistics.bounded_bytes() + statistics.passive_bytes() + statistics.index_bytes()
    }

    /// Bytes of a segment.
    pub fn segment_bytes(&self, segment: Segment) -> u64 {
        self.shards.lock(segment).size().bytes()
    }

    /// Approximate bytes of keys and values of a segment, including lifetimes, eviction and rounding.
    pub fn segment_content_bytes(&self, segment: Segment) -> u64 {
        let size = self.shards.lock(segment).size();
        size.entry_bytes.saturating_sub(size.len * ENTRY_OVERHEAD)
    }

    /// Removals that a segment remembers: at most the number of keys removed while it is being received.
    pub fn removal_count(&self, segment: Segment) -> u64 {
        self.shards.lock(segment).removal_count() as u64
    }

    /// Number of segments, including absent ones.
    pub fn segment_count(&self) -> u16 {
        self.shards.count() as u16
    }
}
