//! The entries that a member holds, by segment.
//!
//! Threads of the application read it directly; one writer, the member's state machine, writes. Behind each segment is a
//! lock that is held for a lookup or for a bounded part of a walk, and never across anything that waits.
//!
//! It promises:
//!
//! * A read gives the newest entry that was put, or nothing once that was removed or has expired. An entry that is
//!   handed out is a value: nothing that happens later changes it.
//! * What is kept of a key and a value is a copy of the right size; it does not keep the buffer that they came in.
//! * Walks give what is there throughout exactly once, see [`Cursor`].
//! * [`Container::len`] and [`Container::bytes`] are exact, for one writer, and cost two loads.
//! * The same calls in the same order give the same results.
//!
//! Memory is what [`Container::bytes`] says, per entry its key and its value in an allocation of a size that allocators have
//! (at most a quarter more than 8 bytes and both), [`ENTRY_OVERHEAD`], and for those with a lifetime
//! [`LIFETIME_OVERHEAD`], in a container that evicts [`BOUND_OVERHEAD`]. Those are what is asked of the allocator, measured
//! in the tests; what it adds by rounding up is its own matter. Slots of removed entries are used again, and given back by pages of 32 of which none
//! is left.

mod ahead;
mod arrivals;
mod bound;
mod cursor;
mod entry;
mod eviction;
mod index;
mod item;
mod memory;
#[cfg(test)]
mod model;
mod outcome;
mod part;
mod room;
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

pub use ahead::AHEAD_MAX;
pub(crate) use arrivals::Arrival;
pub use bound::{Full, Limit, MemoryBound, WhenFull};
pub use cursor::{Chunk, ChunkLimits, Cursor, SegmentGone};
pub use entry::{Entry, Lifetime};
pub use outcome::{Expired, Idle, Lookup, Put, Removed, Taken};
pub use stored::Visited;

use crate::{Segment, Version};
use cursor::Budget;
use item::Item;
use stored::Stored;
use table::{Ahead, KeyHash, Table, Walk};

/// What an entry takes besides the allocation of its key and its value: its slot and its place in the index.
pub const ENTRY_OVERHEAD: u64 = 82;

/// What an entry with a lifetime takes besides: its times and its deadline.
pub const LIFETIME_OVERHEAD: u64 = 76;

/// What an entry takes besides in a container that evicts: its place in a queue, and a fingerprint of one that went.
pub const BOUND_OVERHEAD: u64 = 36;

/// What a remembered removal takes besides its key.
pub const REMOVAL_OVERHEAD: u64 = 40;

/// No entry has a deadline.
const NEVER: u64 = u64::MAX;

/// How a container is made.
#[derive(Clone, Debug)]
pub struct ContainerSettings {
    /// Segments of the cache.
    pub segment_count: u16,
    /// How much it may hold; by default what memory there is.
    pub bound: Option<MemoryBound>,
    /// Whether there is a store that has, or gets, what has to make room: then only values go. What is left of such an
    /// entry is here as before, and does not count in the bound.
    pub is_backed: bool,
    /// Whether other members have copies, which are used there: then an entry that has not been used here for its
    /// `max_idle` may still live. It is neither read nor taken out, and who decides asks those members.
    pub is_shared: bool,
}

/// What this member has of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SegmentState {
    /// Nothing: reads find nothing, writes are a mistake.
    Absent,
    /// It is on its way: there may be more, and removals are remembered so that what is on its way does not undo them.
    Receiving,
    /// Everything.
    Owned,
}

/// The entries that a member holds. Shared by `Arc`: anybody may read, one writes.
///
/// # Panics
///
/// All that names a segment panics if the cache has no such segment. Writes panic in a segment that is
/// [`SegmentState::Absent`]: its writer knows what it owns.
pub struct Container {
    segments: Box<[Shard]>,
    hash: FixedState,
    bound: Option<MemoryBound>,
    /// The amount of the bound's limit, which may be changed.
    allowed: AtomicU64,
    len: AtomicU64,
    entry_bytes: AtomicU64,
    removal_bytes: AtomicU64,
    is_backed: bool,
    passive: AtomicU64,
    passive_bytes: AtomicU64,
    /// Where its bytes count, if it is not alone in its process.
    memory: Option<ProcessMemory>,
    /// Whether its writes are refused last.
    is_essential: bool,
    /// The segment that gives the next victim if the one that is written has none.
    evict_from: AtomicUsize,
    /// The segment at which the next expiry begins, so that none waits for ever behind a busy one.
    expire_from: AtomicUsize,
    /// Entries, or their values, that have made room for others.
    evictions: AtomicU64,
    /// Entries that were taken out because they had expired.
    expirations: AtomicU64,
}

struct Shard {
    table: Mutex<Table>,
    /// The next deadline of the table.
    next_expiry: AtomicU64,
}

impl Container {
    /// An empty container; all segments are absent. The seed decides where keys are put and nothing that shows; it should
    /// be one that those who choose keys do not know.
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

    /// The entry of a key, unless it has expired or its value is in the store. It counts as used. `now` is asked only if the entry has a lifetime, and
    /// under the lock: it must not call the container.
    #[inline]
    pub fn get(&self, segment: Segment, key: &[u8], now: impl FnOnce() -> Time) -> Option<Entry> {
        let hash = self.hash_of(key);
        let mut table = self.lock(segment);
        table.read(hash, key, now).here().map(Stored::entry)
    }

    /// The value of a key; else like [`Container::get`].
    #[inline]
    pub fn get_value(&self, segment: Segment, key: &[u8], now: impl FnOnce() -> Time) -> Option<Bytes> {
        let hash = self.hash_of(key);
        let mut table = self.lock(segment);
        table.read(hash, key, now).here().map(|stored| stored.item.value())
    }

    /// The entry of a key if its segment is read here ([`Container::set_readable`]); else like [`Container::get`]. Both are
    /// known under one lock, so nothing is read here that is written elsewhere by then.
    #[inline]
    pub fn look_up(&self, segment: Segment, key: &[u8], now: impl FnOnce() -> Time) -> Lookup<Entry> {
        let hash = self.hash_of(key);
        self.lock(segment).look_up(hash, key, now, |stored| stored.entry())
    }

    /// The value of a key; else like [`Container::look_up`].
    #[inline]
    pub fn look_up_value(&self, segment: Segment, key: &[u8], now: impl FnOnce() -> Time) -> Lookup<Bytes> {
        let hash = self.hash_of(key);
        self.lock(segment).look_up(hash, key, now, |stored| stored.item.value())
    }

    /// The entry of a key, also if it has expired (see [`Entry::is_expired`]) or is passive ([`Entry::is_passive`]). It does
    /// not count as used.
    pub fn peek(&self, segment: Segment, key: &[u8]) -> Option<Entry> {
        let hash = self.hash_of(key);
        self.lock(segment).peek(hash, key)
    }

    /// The newest version known of a key: of its entry or of its remembered removal; [`Version::NONE`] if neither.
    pub fn version_of(&self, segment: Segment, key: &[u8]) -> Version {
        let hash = self.hash_of(key);
        self.lock(segment).version_of(hash, key)
    }

    /// Goes on with a walk through a segment.
    ///
    /// # Errors
    ///
    /// [`SegmentGone`] if the segment is absent, or was dropped since the walk began. What this call found until then is
    /// dropped.
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

    /// The same for one who needs no copies. `give` is called under the lock: it must not call the container.
    ///
    /// # Errors
    ///
    /// As for [`Container::chunk`]; something may have been given before.
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
            match self.lock(segment).walk(&mut cursor, &mut budget, now, Ahead::Items, &mut give) {
                Walk::Spent => break,
                Walk::More => {}
                Walk::End => return Ok(None),
                Walk::Gone => return Err(SegmentGone(segment)),
            }
        }
        Ok(Some(cursor))
    }

    // Writes.

    /// Writes an entry, whatever was there.
    ///
    /// # Errors
    ///
    /// [`Full`] if there is no room for it and none can or may be made; nothing is changed.
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

    /// Writes an entry if nothing as new is known of its key, be it an entry or a remembered removal; none if not.
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

    /// An entry has its value again, if it is still of this version and passive. What had to make room is given.
    ///
    /// # Errors
    ///
    /// [`Full`] if there is no room for it; it stays as it is.
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

    /// Removes a key, whatever is there. In a segment that is received, the removal is remembered.
    pub fn remove(&self, segment: Segment, key: &[u8], version: Version, now: Time) -> Removed {
        let hash = self.hash_of(key);
        self.write(segment, |table| Removed { previous: table.remove(hash, key, version, now) })
    }

    /// Removes a key if nothing as new is known of it.
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

    /// Notes that an entry was used at a time, here or at another owner. Whether there is such an entry.
    pub fn touch(&self, segment: Segment, key: &[u8], at: Time) -> bool {
        let hash = self.hash_of(key);
        self.lock(segment).touch(hash, key, at)
    }

    // Segments.

    /// What this member has of a segment.
    pub fn state(&self, segment: Segment) -> SegmentState {
        self.lock(segment).state
    }

    /// Begins to receive a segment: from now on removals in it are remembered. What is there stays.
    pub fn receive(&self, segment: Segment) {
        self.lock(segment).receive();
    }

    /// The segment is complete: removals in it are no longer remembered. What is there stays.
    pub fn own(&self, segment: Segment) {
        self.update(segment, Table::own);
    }

    /// Says whether a segment is read here. Whoever changes it knows when [`Container::look_up`] ends that began before:
    /// it has by the time that this returns.
    pub fn set_readable(&self, segment: Segment, is_readable: bool) {
        self.lock(segment).is_readable = is_readable;
    }

    /// Gives a segment up with all that is in it, which is freed after the lock. It is not read here any more,
    /// and walks through it end with [`SegmentGone`].
    pub fn drop_segment(&self, segment: Segment) {
        let contents = self.update(segment, Table::drop_contents);
        drop(contents);
    }

    /// Removes everything in a segment that is here. It is read and written as before, and walks through it begin anew.
    pub fn clear_segment(&self, segment: Segment) {
        let contents = self.update(segment, Table::clear_contents);
        drop(contents);
    }

    // Expiry.

    /// Takes out what has expired. It looks at no more than `looks_max` entries whose deadline has come, of which those
    /// with a `max_idle` may turn out to have been used; call it again as long as [`Container::next_expiry`] is due.
    pub fn expire(&self, now: Time, looks_max: usize) -> Expired {
        self.expire_in(|_| true, now, looks_max)
    }

    /// The same for the wanted segments only: those whose primary this member is, say.
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

    /// The writer is about to remove an entry because it has expired.
    pub(crate) fn note_expiration(&self) {
        self.expirations.fetch_add(1, Ordering::Relaxed);
    }

    /// Forgets that a key was removed, or has expired, while its segment was received: others may have what was before.
    pub(crate) fn forget_removal(&self, segment: Segment, key: &[u8]) {
        self.update(segment, |table| table.forget_removal(key));
    }

    /// No entry expires before this; none if no entry has a lifetime. It costs a load per segment.
    pub fn next_expiry(&self) -> Option<Time> {
        self.next_expiry_in(|_| true)
    }

    /// The same for the wanted segments only.
    pub fn next_expiry_in(&self, is_wanted: impl Fn(Segment) -> bool) -> Option<Time> {
        let deadlines = self.segments.iter().map(|shard| shard.next_expiry.load(Ordering::Relaxed));
        // In this order: of the most segments that there may be, none is counted beyond the last.
        let wanted =
            deadlines.zip((0..).map(Segment)).filter(|&(next, segment)| next != NEVER && is_wanted(segment));
        wanted.map(|(next, _)| Time(next)).min()
    }

    // Counts.

    /// Entries, also those that have expired and are not taken out yet.
    pub fn len(&self) -> u64 {
        self.len.load(Ordering::Relaxed)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Entries of which only the store has the value.
    pub fn passive_len(&self) -> u64 {
        self.passive.load(Ordering::Relaxed)
    }

    /// Memory for what is left of them here. It is in [`Container::bytes`] and not in the bound.
    pub fn passive_bytes(&self) -> u64 {
        self.passive_bytes.load(Ordering::Relaxed)
    }

    /// Entries that have made room for others since the container was made; with a store, those whose values did.
    pub fn evictions(&self) -> u64 {
        self.evictions.load(Ordering::Relaxed)
    }

    /// Entries that were taken out here because they had expired, since the container was made.
    pub fn expirations(&self) -> u64 {
        self.expirations.load(Ordering::Relaxed)
    }

    /// Entries of a segment.
    pub fn segment_len(&self, segment: Segment) -> u64 {
        self.lock(segment).len() as u64
    }

    /// Memory for entries and remembered removals.
    pub fn bytes(&self) -> u64 {
        self.bounded_bytes() + self.passive_bytes()
    }

    fn bounded_bytes(&self) -> u64 {
        self.entry_bytes.load(Ordering::Relaxed) + self.removal_bytes.load(Ordering::Relaxed)
    }

    /// Memory of a segment.
    pub fn segment_bytes(&self, segment: Segment) -> u64 {
        let table = self.lock(segment);
        table.entry_bytes() + table.removal_bytes() + table.passive_bytes()
    }

    /// What keys and values of a segment take, about: what lifetimes, eviction and rounding take besides is
    /// counted, too.
    pub fn segment_content_bytes(&self, segment: Segment) -> u64 {
        let table = self.lock(segment);
        table.entry_bytes().saturating_sub(table.len() as u64 * ENTRY_OVERHEAD)
    }

    /// Removals that a segment remembers: no more than keys were removed while it is received.
    pub fn removal_count(&self, segment: Segment) -> u64 {
        self.lock(segment).removal_count() as u64
    }

    /// How many segments there are, absent ones too.
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
        // A panic under the lock is that of a closure of the reader, which cannot leave the table half changed.
        self.segments[usize::from(segment.0)].table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes a segment that is here.
    fn write<R>(&self, segment: Segment, change: impl FnOnce(&mut Table) -> R) -> R {
        self.update(segment, |table| {
            table.assert_present(segment);
            change(table)
        })
    }

    /// Changes a segment and keeps the sums.
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
