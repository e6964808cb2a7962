//! The entries that a member holds, by segment.
//!
//! Threads of the application read the container directly. One writer, the member's state machine, writes. Each
//! segment has a lock. A thread holds it for a lookup or for a bounded part of an iteration, and never while it
//! waits.
//!
//! Guarantees:
//!
//! * A read returns the newest entry that was put, or none if that entry was removed or has expired. A returned entry
//!   is a value that later writes do not change.
//! * The container stores copies of the exact size of keys and values. It does not keep the buffers in which they
//!   arrived.
//! * An iteration returns each entry that is present throughout exactly once, see [`Cursor`].
//! * [`Container::len`] and [`Container::bytes`] are exact, for one writer, and cost two loads.
//! * The same calls in the same order return the same results.
//!
//! [`Container::bytes`] counts per entry: its key and value in one allocation of a size class (at most a quarter more
//! than 8 bytes and both), [`ENTRY_OVERHEAD`], with a lifetime [`LIFETIME_OVERHEAD`], and in a container that evicts
//! [`BOUND_OVERHEAD`]. These are the sizes that the container requests from the allocator, as tests measure. The
//! allocator's own rounding is not included. Slots of removed entries are reused, and freed in pages of 32 once a
//! page is empty.

mod bound;
mod bulk_insert;
mod cursor;
mod entry;
mod eviction;
mod eviction_budget;
mod index;
mod item;
mod memory;
#[cfg(test)]
mod model;
mod outcome;
mod part;
mod prefetch;
mod slab;
mod stored;
mod table;
#[cfg(test)]
mod tests;
mod timers;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use consort_group::Time;
use consort_memory::ProcessMemory;
use foldhash::fast::FixedState;

pub use bound::{Full, Limit, MemoryBound, WhenFull};
pub(crate) use bulk_insert::NewEntry;
pub use cursor::{Chunk, ChunkLimits, Cursor, SegmentGone};
pub use entry::{Entry, Lifetime};
pub use outcome::{Expired, Idle, Lookup, Put, Removed, Taken};
pub use prefetch::PREFETCH_MAX;
pub use stored::Visited;

use crate::{Segment, Version};
use cursor::Budget;
use item::Item;
use stored::Stored;
use table::{KeyHash, PrefetchScope, Table, Walk};

/// Bytes of an entry besides the allocation of its key and value: its slot and its place in the index.
pub const ENTRY_OVERHEAD: u64 = 82;

/// Additional bytes of an entry with a lifetime: its times and its deadline.
pub const LIFETIME_OVERHEAD: u64 = 76;

/// Additional bytes of an entry in a container that evicts: its place in a queue, and a fingerprint of an evicted
/// entry.
pub const BOUND_OVERHEAD: u64 = 36;

/// Bytes of a remembered removal besides its key.
pub const REMOVAL_OVERHEAD: u64 = 40;

/// No entry has a deadline.
const NEVER: u64 = u64::MAX;

/// The settings of a container.
#[derive(Clone, Debug)]
pub struct ContainerSettings {
    /// Number of segments of the cache.
    pub segment_count: u16,
    /// Limit of its size; by default the available memory.
    pub bound: Option<MemoryBound>,
    /// Whether a store has the evicted entries, or gets them. Then eviction drops only the value. The rest of such an
    /// entry stays in memory and does not count in the bound.
    pub is_backed: bool,
    /// Whether other members have copies and use them. Then an entry that exceeded its `max_idle` here may still live
    /// elsewhere. Reads do not return it, expiry does not remove it, and the primary asks the other owners.
    pub is_shared: bool,
}

/// The state of a segment on this member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SegmentState {
    /// No data: reads find nothing, and writes are a mistake.
    Absent,
    /// State transfer is in progress: the segment may be incomplete. Removals are remembered, so that the transfer
    /// does not bring removed entries back.
    Receiving,
    /// The segment is complete.
    Owned,
}

/// The entries that a member holds. Shared by `Arc`: any thread may read, one thread writes.
///
/// # Panics
///
/// Methods that take a segment panic if the cache has no such segment. Writes panic in a segment that is
/// [`SegmentState::Absent`], because the writer knows which segments it owns.
pub struct Container {
    segments: Box<[Shard]>,
    hash: FixedState,
    bound: Option<MemoryBound>,
    /// The bound's current limit, which may change.
    allowed: AtomicU64,
    len: AtomicU64,
    entry_bytes: AtomicU64,
    removal_bytes: AtomicU64,
    is_backed: bool,
    passive: AtomicU64,
    passive_bytes: AtomicU64,
    /// Where the container counts its bytes, if it shares the memory of its process.
    memory: Option<ProcessMemory>,
    /// Whether its writes are the last to be refused.
    is_essential: bool,
    /// The segment from which the next victim is taken if the written segment has none.
    evict_from: AtomicUsize,
    /// The segment at which the next expiry begins, so that a busy segment does not starve others.
    expire_from: AtomicUsize,
    /// Number of entries or values that were evicted.
    evictions: AtomicU64,
    /// Number of entries that were removed because they had expired.
    expirations: AtomicU64,
}

struct Shard {
    table: Mutex<Table>,
    /// The next deadline of the table.
    next_expiry: AtomicU64,
}

impl Container {
    /// Creates an empty container; all segments are absent. The seed determines the positions of keys and has no
    /// visible effect. It should be unknown to clients that choose keys.
    ///
    /// # Panics
    ///
    /// If there are no segments.
    pub fn new(settings: &ContainerSettings, hash_seed: u64) -> Self {
        assert!(settings.segment_count > 0, "a cache has segments");
        let evicts = settings.bound.is_some_and(|bound| bound.when_full == WhenFull::Remove);
        let shard = || Shard {
            table: Mutex::new(Table::new(evicts, settings.is_shared)),
            next_expiry: AtomicU64::new(NEVER),
        };
        Self {
            segments: (0..settings.segment_count).map(|_| shard()).collect(),
            hash: FixedState::with_seed(hash_seed),
            len: AtomicU64::new(0),
            bound: settings.bound,
            allowed: AtomicU64::new(settings.bound.map_or(0, |bound| bound.limit.amount())),
            entry_bytes: AtomicU64::new(0),
            removal_bytes: AtomicU64::new(0),
            is_backed: settings.is_backed,
            passive: AtomicU64::new(0),
            passive_bytes: AtomicU64::new(0),
            memory: None,
            is_essential: false,
            evict_from: AtomicUsize::new(0),
            expire_from: AtomicUsize::new(0),
            evictions: AtomicU64::new(0),
            expirations: AtomicU64::new(0),
        }
    }

    // Reads.

    /// Returns the entry of a key, unless it has expired or its value is only in the store. The read counts as a use.
    /// `now` is called under the lock and only if the entry has a lifetime: it must not call the container.
    #[inline]
    pub fn get(&self, segment: Segment, key: &[u8], now: impl FnOnce() -> Time) -> Option<Entry> {
        let hash = self.hash_of(key);
        let mut table = self.lock(segment);
        table.read(hash, key, now).here().map(Stored::entry)
    }

    /// Returns the value of a key; else like [`Container::get`].
    #[inline]
    pub fn get_value(&self, segment: Segment, key: &[u8], now: impl FnOnce() -> Time) -> Option<Bytes> {
        let hash = self.hash_of(key);
        let mut table = self.lock(segment);
        table.read(hash, key, now).here().map(|stored| stored.item.value())
    }

    /// Returns the entry of a key if its segment is readable here ([`Container::set_readable`]); else like
    /// [`Container::get`]. One lock covers both, so that a read returns nothing that another member has written by
    /// then.
    #[inline]
    pub fn look_up(&self, segment: Segment, key: &[u8], now: impl FnOnce() -> Time) -> Lookup<Entry> {
        let hash = self.hash_of(key);
        self.lock(segment).look_up(hash, key, now, |stored| stored.entry())
    }

    /// Returns the value of a key; else like [`Container::look_up`].
    #[inline]
    pub fn look_up_value(&self, segment: Segment, key: &[u8], now: impl FnOnce() -> Time) -> Lookup<Bytes> {
        let hash = self.hash_of(key);
        self.lock(segment).look_up(hash, key, now, |stored| stored.item.value())
    }

    /// Returns the entry of a key, also if it has expired (see [`Entry::is_expired`]) or is passive
    /// ([`Entry::is_passive`]). The read does not count as a use.
    pub fn peek(&self, segment: Segment, key: &[u8]) -> Option<Entry> {
        let hash = self.hash_of(key);
        self.lock(segment).peek(hash, key)
    }

    /// Returns the newest known version of a key: of its entry or of its remembered removal; [`Version::NONE`] if it
    /// has neither.
    pub fn version_of(&self, segment: Segment, key: &[u8]) -> Version {
        let hash = self.hash_of(key);
        self.lock(segment).version_of(hash, key)
    }

    /// Returns the next chunk of an iteration through a segment.
    ///
    /// # Errors
    ///
    /// [`SegmentGone`] if the segment is absent, or was dropped since the iteration began. The entries of this call
    /// are discarded.
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
            match self.lock(segment).walk(&mut cursor, &mut budget, now, PrefetchScope::Items, &mut give) {
                Walk::Spent => break,
                Walk::More => {}
                Walk::End => return Ok(None),
                Walk::Gone => return Err(SegmentGone(segment)),
            }
        }
        Ok(Some(cursor))
    }

    // Writes.

    /// Writes an entry, whether the key is present or not.
    ///
    /// # Errors
    ///
    /// [`Full`] if there is no room for the entry and eviction cannot make room; nothing is changed.
    pub fn put(&self, segment: Segment, key: &[u8], mut entry: Entry, now: Time) -> Result<Put, Full> {
        let hash = self.hash_of(key);
        let evicted = match self.bound() {
            None => Vec::new(),
            Some(_) if entry.is_passive() => Vec::new(),
            Some(bound) => self.make_room(bound, segment, (hash, key), &entry)?,
        };
        let item = Item::new(key, std::mem::take(&mut entry.value));
        let previous = self.write(segment, |table| table.put(hash, item, &entry, now));
        Ok(Put { previous, evicted })
    }

    /// Writes an entry if no entry or remembered removal of its key is as new. Returns `None` otherwise.
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

    /// Restores the value of an entry, if it still has this version and is passive. Returns the evicted entries.
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
        let hash = self.hash_of(key);
        let Some(entry) = self.peek(segment, key) else { return Ok(Vec::new()) };
        if entry.is_passive() && entry.version == version {
            self.check_room_for_value(key, &value)?;
        }
        let evicted = match self.bound() {
            Some(bound) if entry.is_passive() && entry.version == version => {
                self.make_room(bound, segment, (hash, key), &Entry { value: value.clone(), ..entry })?
            }
            _ => Vec::new(),
        };
        self.write(segment, |table| table.activate(hash, key, version, value));
        Ok(evicted)
    }

    /// Removes a key, whatever its version. In a segment that is being received, the removal is remembered.
    pub fn remove(&self, segment: Segment, key: &[u8], version: Version, now: Time) -> Removed {
        let hash = self.hash_of(key);
        self.write(segment, |table| Removed { previous: table.remove(hash, key, version, now) })
    }

    /// Removes a key if no entry or removal of it is as new.
    pub fn remove_if_newer(
        &self,
        segment: Segment,
        key: &[u8],
        version: Version,
        now: Time,
    ) -> Option<Removed> {
        let hash = self.hash_of(key);
        self.write(segment, |table| {
            (table.version_of(hash, key) < version)
                .then(|| Removed { previous: table.remove(hash, key, version, now) })
        })
    }

    /// Records a use of an entry at a time, here or at another owner. Returns whether the entry exists.
    pub fn touch(&self, segment: Segment, key: &[u8], at: Time) -> bool {
        let hash = self.hash_of(key);
        self.lock(segment).touch(hash, key, at)
    }

    // Segments.

    /// Returns the state of a segment on this member.
    pub fn state(&self, segment: Segment) -> SegmentState {
        self.lock(segment).state
    }

    /// Begins to receive a segment: from now on removals in it are remembered. Its entries stay.
    pub fn receive(&self, segment: Segment) {
        self.lock(segment).receive();
    }

    /// Marks the segment as complete: removals in it are no longer remembered. Its entries stay.
    pub fn own(&self, segment: Segment) {
        self.update(segment, Table::own);
    }

    /// Sets whether a segment is readable here. Each [`Container::look_up`] that began before has ended when this
    /// function returns.
    pub fn set_readable(&self, segment: Segment, is_readable: bool) {
        self.lock(segment).is_readable = is_readable;
    }

    /// Drops a segment with its entries, which are freed after the lock is released. The segment is no longer
    /// readable, and iterations through it end with [`SegmentGone`].
    pub fn drop_segment(&self, segment: Segment) {
        let contents = self.update(segment, Table::drop_contents);
        drop(contents);
    }

    /// Removes all entries of a segment that is here. Reads and writes go on, and iterations through the segment
    /// begin anew.
    pub fn clear_segment(&self, segment: Segment) {
        let contents = self.update(segment, Table::clear_contents);
        drop(contents);
    }

    // Expiry.

    /// Removes expired entries. It examines at most `looks_max` entries whose deadline has come; those with a
    /// `max_idle` may turn out to have been used. Call it again as long as [`Container::next_expiry`] is due.
    pub fn expire(&self, now: Time, looks_max: usize) -> Expired {
        self.expire_in(|_| true, now, looks_max)
    }

    /// Like [`Container::expire`] for the wanted segments only, for example those whose primary this member is.
    pub fn expire_in(&self, is_wanted: impl Fn(Segment) -> bool, now: Time, looks_max: usize) -> Expired {
        let mut expired = Expired::default();
        let mut looks = looks_max;
        let count = self.segments.len();
        let start = self.expire_from.load(Ordering::Relaxed);
        for index in (start..count).chain(0..start) {
            if looks == 0 {
                self.expire_from.store(index, Ordering::Relaxed);
                break;
            }
            let segment = Segment(index as u16);
            if self.segments[index].next_expiry.load(Ordering::Relaxed) > now.0 || !is_wanted(segment) {
                continue;
            }
            looks = self.update(segment, |table| {
                let hash_of = |key: &[u8]| self.hash_of(key);
                table.expire(segment, now, looks, hash_of, &mut expired)
            });
        }
        if !expired.taken.is_empty() {
            self.expirations.fetch_add(expired.taken.len() as u64, Ordering::Relaxed);
        }
        expired
    }

    /// Counts the expiration of an entry that the writer is about to remove.
    pub(crate) fn note_expiration(&self) {
        self.expirations.fetch_add(1, Ordering::Relaxed);
    }

    /// Forgets that a key was removed, or has expired, while its segment was being received: others may have the
    /// previous entry.
    pub(crate) fn forget_removal(&self, segment: Segment, key: &[u8]) {
        self.update(segment, |table| table.forget_removal(key));
    }

    /// Returns the earliest time at which an entry may expire; none if no entry has a lifetime. It costs one load per
    /// segment.
    pub fn next_expiry(&self) -> Option<Time> {
        self.next_expiry_in(|_| true)
    }

    /// Like [`Container::next_expiry`] for the wanted segments only.
    pub fn next_expiry_in(&self, is_wanted: impl Fn(Segment) -> bool) -> Option<Time> {
        let deadlines = self.segments.iter().map(|shard| shard.next_expiry.load(Ordering::Relaxed));
        // In this order, because no segment is counted beyond the maximum number of segments.
        let wanted =
            deadlines.zip((0..).map(Segment)).filter(|&(next, segment)| next != NEVER && is_wanted(segment));
        wanted.map(|(next, _)| Time(next)).min()
    }

    // Counts.

    /// Number of entries, including expired ones that are not removed yet.
    pub fn len(&self) -> u64 {
        self.len.load(Ordering::Relaxed)
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of entries whose value is only in the store.
    pub fn passive_len(&self) -> u64 {
        self.passive.load(Ordering::Relaxed)
    }

    /// Bytes of the passive entries in memory. They count in [`Container::bytes`] and not in the bound.
    pub fn passive_bytes(&self) -> u64 {
        self.passive_bytes.load(Ordering::Relaxed)
    }

    /// Number of entries evicted since the container was created; with a store, of values evicted.
    pub fn evictions(&self) -> u64 {
        self.evictions.load(Ordering::Relaxed)
    }

    /// Number of expired entries removed here since the container was created.
    pub fn expirations(&self) -> u64 {
        self.expirations.load(Ordering::Relaxed)
    }

    /// Number of entries of a segment.
    pub fn segment_len(&self, segment: Segment) -> u64 {
        self.lock(segment).len() as u64
    }

    /// Bytes of entries and remembered removals.
    pub fn bytes(&self) -> u64 {
        self.bounded_bytes() + self.passive_bytes()
    }

    fn bounded_bytes(&self) -> u64 {
        self.entry_bytes.load(Ordering::Relaxed) + self.removal_bytes.load(Ordering::Relaxed)
    }

    /// Bytes of a segment.
    pub fn segment_bytes(&self, segment: Segment) -> u64 {
        let table = self.lock(segment);
        table.entry_bytes() + table.removal_bytes() + table.passive_bytes()
    }

    /// Approximate bytes of keys and values of a segment, including the overhead of lifetimes, eviction and rounding.
    pub fn segment_content_bytes(&self, segment: Segment) -> u64 {
        let table = self.lock(segment);
        table.entry_bytes().saturating_sub(table.len() as u64 * ENTRY_OVERHEAD)
    }

    /// Number of removals that a segment remembers: at most the number of keys removed while it is being received.
    pub fn removal_count(&self, segment: Segment) -> u64 {
        self.lock(segment).removal_count() as u64
    }

    /// Number of segments, including absent ones.
    pub fn segment_count(&self) -> u16 {
        self.segments.len() as u16
    }

    // Locks.

    #[inline]
    fn hash_of(&self, key: &[u8]) -> KeyHash {
        use std::hash::{BuildHasher, Hasher};
        let mut hasher = self.hash.build_hasher();
        hasher.write(key);
        KeyHash((hasher.finish() >> 32) as u32)
    }

    #[inline]
    fn lock(&self, segment: Segment) -> MutexGuard<'_, Table> {
        // A panic under the lock comes from a closure of the reader, which cannot leave the table half changed.
        self.segments[usize::from(segment.0)].table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes a segment that is here.
    fn write<R>(&self, segment: Segment, change: impl FnOnce(&mut Table) -> R) -> R {
        self.update(segment, |table| {
            table.assert_present(segment);
            change(table)
        })
    }

    /// Changes a segment and updates the sums.
    fn update<R>(&self, segment: Segment, change: impl FnOnce(&mut Table) -> R) -> R {
        let mut table = self.lock(segment);
        let (len, entries, removals) = (table.len() as u64, table.entry_bytes(), table.removal_bytes());
        let (passive, passive_bytes) = (table.passive_len() as u64, table.passive_bytes());
        let result = change(&mut table);
        let add = |sum: &AtomicU64, before: u64, after: u64| {
            if before != after {
                sum.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
            }
        };
        add(&self.len, len, table.len() as u64);
        add(&self.entry_bytes, entries, table.entry_bytes());
        add(&self.removal_bytes, removals, table.removal_bytes());
        if let Some(memory) = &self.memory {
            let after = table.entry_bytes() + table.removal_bytes() + table.passive_bytes();
            memory.count_entries(entries + removals + passive_bytes, after);
        }
        if self.is_backed {
            add(&self.passive, passive, table.passive_len() as u64);
            add(&self.passive_bytes, passive_bytes, table.passive_bytes());
        }
        let next_expiry = table.next_expiry().map_or(NEVER, |next| next.0);
        self.segments[usize::from(segment.0)].next_expiry.store(next_expiry, Ordering::Relaxed);
        result
    }
}
