//! The entries of one segment. Every function here runs under the segment's lock.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use consort_group::Time;

use super::cursor::{Budget, Cursor};
use super::entry::{Deadlines, Entry};
use super::eviction::Queues;
use super::field_index::{FieldIndex, IndexSize, IndexedFields};
use super::index::Index;
use super::item::{self, Item, Number};
use super::key_hash::KeyHash;
use super::prefetch::{SlotAddress, fetch};
use super::slab::{self, Next, Slab};
use super::stored::{Mortal, Stored, Visited};
use super::timers::Timers;
use super::{
    BOUND_OVERHEAD, ENTRY_OVERHEAD, Expired, Idle, LIFETIME_OVERHEAD, Lookup, REMOVAL_OVERHEAD, SegmentState,
};
use crate::{Segment, Version};

/// Pages of slots that an iteration examines before it releases the lock: a thousand slots, some ten microseconds.
const WALK_PAGES_MAX: u32 = 32;

/// Slots by which an iteration prefetches an item: with four an entry takes 15 % more time than with twelve
/// or sixteen, with twenty-four 3 %.
const WALK_AHEAD: u32 = 12;

pub(super) struct Table {
    pub(super) state: SegmentState,
    pub(super) is_readable: bool,
    is_shared: bool,
    contents: Contents,
    /// The number of the next insertion. It only grows, also when the segment is dropped and received again.
    inserted: u64,
    /// The value of `inserted` when the segment was last dropped: older cursors are void.
    dropped: u64,
}

pub(super) enum Read<'a> {
    /// Its value may be only in the store.
    Here(&'a Stored),
    /// The entry exceeded its max-idle time here, and perhaps not elsewhere.
    Idle,
    Absent,
}

impl<'a> Read<'a> {
    #[inline]
    pub(super) fn here(self) -> Option<&'a Stored> {
        match self {
            Self::Here(stored) if !stored.is_passive() => Some(stored),
            _ => None,
        }
    }
}

pub(super) struct Contents {
    index: Index,
    slab: Slab<Stored>,
    timers: Timers,
    queues: Option<Queues>,
    field_index: Option<Box<FieldIndex>>,
    /// Versions of removals while the segment is received, so that the transfer does not bring removed
    /// entries back: one per key removed and not written since, so at most one per write during a transfer.
    removals: BTreeMap<Box<[u8]>, Version>,
    entry_bytes: u64,
    removal_bytes: u64,
    /// Entries whose values only the store has. They are in no queue.
    passive: usize,
    passive_bytes: u64,
}

#[derive(Clone, Copy)]
pub(super) struct TableSize {
    /// Including passive ones.
    pub(super) len: u64,
    pub(super) entry_bytes: u64,
    pub(super) removal_bytes: u64,
    pub(super) passive: u64,
    pub(super) passive_bytes: u64,
    pub(super) index: IndexSize,
}

impl TableSize {
    pub(super) fn bytes(self) -> u64 {
        self.entry_bytes + self.removal_bytes + self.passive_bytes + self.index.bytes
    }
}

pub(super) fn cost(key_len: usize, value_len: usize, has_lifetime: bool, has_bound: bool) -> u64 {
    let lifetime = if has_lifetime { LIFETIME_OVERHEAD } else { 0 };
    let bound = if has_bound { BOUND_OVERHEAD } else { 0 };
    item::allocated(key_len, value_len) as u64 + ENTRY_OVERHEAD + lifetime + bound
}

impl Contents {
    fn new(has_bound: bool) -> Self {
        Self {
            index: Index::default(),
            slab: Slab::new(),
            timers: Timers::new(),
            queues: has_bound.then(Queues::new),
            field_index: None,
            removals: BTreeMap::new(),
            entry_bytes: 0,
            removal_bytes: 0,
            passive: 0,
            passive_bytes: 0,
        }
    }

    fn count(&mut self, cost: u64, is_passive: bool) {
        if is_passive {
            self.passive += 1;
            self.passive_bytes += cost;
        } else {
            self.entry_bytes += cost;
        }
    }

    fn discount(&mut self, cost: u64, is_passive: bool) {
        if is_passive {
            self.passive -= 1;
            self.passive_bytes -= cost;
        } else {
            self.entry_bytes -= cost;
        }
    }

    fn cost(&self, key_len: usize, value_len: usize, has_lifetime: bool) -> u64 {
        cost(key_len, value_len, has_lifetime, self.queues.is_some())
    }

    fn cost_of(&self, stored: &Stored) -> u64 {
        self.cost(stored.item.key().len(), stored.item.value_len(), stored.mortal.is_some())
    }

    #[inline]
    fn slot(&self, hash: KeyHash, key: &[u8]) -> Option<u32> {
        self.index.find(hash, |slot| self.slab.get(slot).is_some_and(|stored| stored.item.key() == key))
    }

    fn stored(&self, hash: KeyHash, key: &[u8]) -> Option<&Stored> {
        self.slab.get(self.slot(hash, key)?)
    }

    fn take(&mut self, hash: KeyHash, slot: u32) -> Option<Stored> {
        self.index.remove(hash, slot);
        let stored = self.slab.remove(slot)?;
        if let Some(mortal) = &stored.mortal {
            self.timers.cancel(slot, mortal.deadline);
        }
        if let Some(queues) = self.queues.as_mut().filter(|_| !stored.is_passive()) {
            queues.remove(slot);
        }
        if let Some(fields) = &mut self.field_index {
            fields.change(slot, Some(&stored.item), None);
        }
        self.discount(self.cost_of(&stored), stored.is_passive());
        self.index.shrink();
        Some(stored)
    }

    fn passivate(&mut self, slot: u32) -> Option<Stored> {
        let stored = self.slab.get_mut(slot)?;
        let was = stored.clone();
        stored.item = Item::passive(was.item.key()).numbered(was.item.number());
        if let Some(fields) = &mut self.field_index {
            fields.change(slot, Some(&was.item), Some(&stored.item));
        }
        if let Some(queues) = &mut self.queues {
            queues.remove(slot);
        }
        self.discount(self.cost_of(&was), false);
        self.count(self.cost(was.item.key().len(), 0, was.mortal.is_some()), true);
        Some(was)
    }

    fn index_new(&mut self, slot: u32) {
        if let Some(fields) = &mut self.field_index {
            fields.change(slot, None, self.slab.get(slot).map(|stored| &stored.item));
        }
    }

    fn remember_removal(&mut self, key: &[u8], version: Version) {
        match self.removals.get_mut(key) {
            Some(known) => *known = version.max(*known),
            None => {
                self.removals.insert(key.into(), version);
                self.removal_bytes += key.len() as u64 + REMOVAL_OVERHEAD;
            }
        }
    }

    fn forget_removal(&mut self, key: &[u8]) {
        if !self.removals.is_empty() && self.removals.remove(key).is_some() {
            self.removal_bytes -= key.len() as u64 + REMOVAL_OVERHEAD;
        }
    }
}

impl Table {
    pub(super) fn new(has_bound: bool, is_shared: bool) -> Self {
        Self {
            state: SegmentState::Absent,
            is_readable: false,
            is_shared,
            contents: Contents::new(has_bound),
            inserted: 0,
            dropped: 0,
        }
    }

    pub(super) fn assert_present(&self, segment: Segment) {
        assert!(self.state != SegmentState::Absent, "a write in segment {segment}, which is not here");
    }

    #[inline]
    pub(super) fn size(&self) -> TableSize {
        let contents = &self.contents;
        TableSize {
            len: contents.slab.len() as u64,
            entry_bytes: contents.entry_bytes,
            removal_bytes: contents.removal_bytes,
            passive: contents.passive as u64,
            passive_bytes: contents.passive_bytes,
            index: contents.field_index.as_ref().map_or_else(IndexSize::default, |fields| fields.size()),
        }
    }

    pub(super) fn removal_count(&self) -> usize {
        self.contents.removals.len()
    }

    pub(super) fn next_expiry(&self) -> Option<Time> {
        self.contents.timers.next()
    }

    #[inline]
    pub(super) fn read(&mut self, hash: KeyHash, key: &[u8], now: impl FnOnce() -> Time) -> Read<'_> {
        let Some(slot) = self.contents.slot(hash, key) else { return Read::Absent };
        if let Some(queues) = &mut self.contents.queues {
            queues.note_use(slot);
        }
        match self.contents.slab.get_mut(slot) {
            Some(stored) if stored.mortal.is_some() => Self::read_mortal(stored, self.is_shared, now()),
            Some(stored) => Read::Here(stored),
            None => Read::Absent,
        }
    }

    fn read_mortal(stored: &mut Stored, is_shared: bool, now: Time) -> Read<'_> {
        if !stored.is_expired(now) {
            stored.note_use(now);
            Read::Here(stored)
        } else if is_shared && !stored.is_over(now) {
            Read::Idle
        } else {
            Read::Absent
        }
    }

    pub(super) fn reserve(&mut self, entries: usize) {
        self.contents.index.reserve(entries);
    }

    pub(super) fn fetch_cell(&self, hash: KeyHash) {
        if let Some(cell) = self.contents.index.home(hash) {
            fetch(cell);
        }
    }

    /// Returns the slot's number.
    pub(super) fn fetch_slot(&self, hash: KeyHash) -> Option<u32> {
        let slot = self.contents.index.find(hash, |_| true)?;
        fetch(self.contents.slab.place(slot)?);
        Some(slot)
    }

    pub(super) fn fetch_item(&self, slot: u32) {
        if let Some(stored) = self.contents.slab.get(slot) {
            fetch(stored.item.first_bytes());
        }
    }

    #[inline]
    fn fetch_after(&self, slot: u32, prefetch: PrefetchScope) {
        let slab = &self.contents.slab;
        if let Some(place) = slab.place(slot.saturating_add(2 * WALK_AHEAD)) {
            fetch(place);
        }
        if prefetch == PrefetchScope::Items
            && let Some(later) = slab.get(slot.saturating_add(WALK_AHEAD))
        {
            fetch(later.item.first_bytes());
        }
    }

    #[inline]
    pub(super) fn look_up<T>(
        &mut self,
        hash: KeyHash,
        key: &[u8],
        now: impl FnOnce() -> Time,
        found: impl FnOnce(&Stored) -> T,
    ) -> Lookup<T> {
        if !self.is_readable {
            return Lookup::NotLocal;
        }
        match self.read(hash, key, now) {
            Read::Absent => Lookup::Miss,
            Read::Here(stored) if !stored.is_passive() => Lookup::Hit(found(stored)),
            Read::Here(_) | Read::Idle => Lookup::NotLocal,
        }
    }

    /// Returns whether the entry exists.
    pub(super) fn touch(&mut self, hash: KeyHash, key: &[u8], at: Time) -> bool {
        let Some(slot) = self.contents.slot(hash, key) else { return false };
        if let Some(stored) = self.contents.slab.get_mut(slot) {
            stored.note_use(at);
        }
        true
    }

    pub(super) fn peek(&self, hash: KeyHash, key: &[u8]) -> Option<Entry> {
        self.contents.stored(hash, key).map(Stored::entry)
    }

    pub(super) fn version_of(&self, hash: KeyHash, key: &[u8]) -> Version {
        let written = self.contents.stored(hash, key).map_or(Version::NONE, |stored| stored.version);
        let removed = self.contents.removals.get(key).copied().unwrap_or(Version::NONE);
        written.max(removed)
    }

    /// Unless the previous entry had expired, returns it.
    pub(super) fn put(&mut self, hash: KeyHash, item: Item, entry: &Entry, now: Time) -> Option<Entry> {
        let contents = &mut self.contents;
        contents.forget_removal(item.key());
        let expiry = entry.expiry();
        let mortal = expiry.map(|deadline| {
            Box::new(Mortal { lifetime: entry.lifetime, last_used: entry.last_used, deadline })
        });
        let is_passive = item.is_passive();
        contents.count(contents.cost(item.key().len(), item.value_len(), mortal.is_some()), is_passive);
        let found = contents.slot(hash, item.key());
        let (slot, previous) = match found {
            Some(slot) => {
                let has_bound = contents.queues.is_some();
                let stored = contents.slab.get_mut(slot).expect("the index knows slots that are occupied");
                let (previous, was_expired) = (stored.entry(), stored.is_expired(now));
                let before = cost(
                    stored.item.key().len(),
                    stored.item.value_len(),
                    stored.mortal.is_some(),
                    has_bound,
                );
                if let Some(queues) = &mut contents.queues {
                    match (previous.is_passive(), is_passive) {
                        (false, false) => queues.note_use(slot),
                        (true, false) => queues.insert(slot, hash),
                        (false, true) => queues.remove(slot),
                        (true, true) => {}
                    }
                }
                if let Some(mortal) = &stored.mortal {
                    contents.timers.cancel(slot, mortal.deadline);
                }
                contents.index.moved(hash, slot, SlotAddress::from_bytes(item.first_bytes()));
                if let Some(fields) = &mut contents.field_index {
                    fields.change(slot, Some(&stored.item), Some(&item));
                }
                stored.item = item.numbered(stored.item.number());
                stored.version = entry.version;
                stored.created = entry.created;
                stored.mortal = mortal;
                contents.discount(before, previous.is_passive());
                (slot, (!was_expired).then_some(previous))
            }
            None => {
                let item = item.numbered(Number::new(self.inserted));
                self.inserted += 1;
                let (version, created) = (entry.version, entry.created);
                let begin = SlotAddress::from_bytes(item.first_bytes());
                let slot = contents.slab.insert(Stored { item, version, created, mortal });
                contents.index_new(slot);
                contents.index.insert(hash, slot, begin);
                if let Some(queues) = contents.queues.as_mut().filter(|_| !is_passive) {
                    queues.insert(slot, hash);
                }
                (slot, None)
            }
        };
        if let Some(deadline) = expiry {
            contents.timers.set(slot, deadline);
        }
        previous
    }

    /// Unless the entry had expired.
    pub(super) fn remove(&mut self, hash: KeyHash, key: &[u8], version: Version, now: Time) -> Option<Entry> {
        let slot = self.contents.slot(hash, key);
        let stored = slot.and_then(|slot| self.contents.take(hash, slot));
        if self.state == SegmentState::Receiving {
            self.contents.remember_removal(key, version);
        }
        stored.filter(|stored| !stored.is_expired(now)).map(|stored| stored.entry())
    }

    pub(super) fn forget_removal(&mut self, key: &[u8]) {
        self.contents.forget_removal(key);
    }

    /// Removes expired entries. Examines at most `looks` deadlines, and returns how many it may still
    /// examine.
    pub(super) fn expire(
        &mut self,
        segment: Segment,
        now: Time,
        mut looks: usize,
        hash_of: impl Fn(&[u8]) -> KeyHash,
        expired: &mut Expired,
    ) -> usize {
        let contents = &mut self.contents;
        while looks > 0 {
            let Some(slot) = contents.timers.take_due(now) else { break };
            looks -= 1;
            let stored = contents.slab.get_mut(slot).expect("a deadline is of an entry");
            let end = stored.expiry().expect("an entry with a deadline ends");
            let is_idle = self.is_shared && end <= now && !stored.is_over(now);
            if is_idle {
                let key = Bytes::copy_from_slice(stored.item.key());
                expired.idle.push(Idle { segment, key, version: stored.version });
            }
            let mortal = stored.mortal.as_mut().expect("an entry with a deadline has a lifetime");
            mortal.deadline = if is_idle { mortal.lifetime.ask_again(stored.created, now) } else { end };
            contents.timers.set(slot, mortal.deadline);
            if mortal.deadline <= now {
                let hash = hash_of(stored.item.key());
                let taken = contents.take(hash, slot).expect("it was there").into_taken(segment);
                // The transfer may still deliver the previous entry.
                if self.state == SegmentState::Receiving {
                    contents.remember_removal(&taken.key, taken.entry.version);
                }
                expired.taken.push(taken);
            }
        }
        looks
    }

    pub(super) fn cost_of(&self, hash: KeyHash, key: &[u8]) -> Option<u64> {
        let stored = self.contents.stored(hash, key).filter(|stored| !stored.is_passive())?;
        Some(self.contents.cost_of(stored))
    }

    /// Restores the value of a passive entry that still has this version. Returns whether it does.
    pub(super) fn activate(&mut self, hash: KeyHash, key: &[u8], version: Version, value: Bytes) -> bool {
        let contents = &mut self.contents;
        let Some(slot) = contents.slot(hash, key) else { return false };
        let stored = contents.slab.get_mut(slot).expect("the index knows slots that are occupied");
        if stored.version != version || !stored.is_passive() {
            return false;
        }
        let has_bound = contents.queues.is_some();
        let cost_with = |len: usize| cost(key.len(), len, stored.mortal.is_some(), has_bound);
        let (before, after) = (cost_with(0), cost_with(value.len()));
        let number = stored.item.number();
        let passive = std::mem::replace(&mut stored.item, Item::new(key, value).numbered(number));
        if let Some(fields) = &mut contents.field_index {
            fields.change(slot, Some(&passive), Some(&stored.item));
        }
        contents.index.moved(hash, slot, SlotAddress::from_bytes(stored.item.first_bytes()));
        contents.discount(before, true);
        contents.count(after, false);
        if let Some(queues) = &mut contents.queues {
            queues.insert(slot, hash);
        }
        true
    }

    /// Evicts the entry of least worth, but not that of `kept`; with a store, only its value.
    pub(super) fn evict(
        &mut self,
        kept: Option<(KeyHash, &[u8])>,
        is_backed: bool,
        hash_of: impl Fn(&[u8]) -> KeyHash,
    ) -> Option<Stored> {
        let contents = &mut self.contents;
        let kept = kept.and_then(|(hash, key)| contents.slot(hash, key));
        let victim = contents.queues.as_mut()?.victim(kept)?;
        let hash = hash_of(contents.slab.get(victim.slot).expect("a victim is an entry").item.key());
        let stored = if is_backed {
            contents.passivate(victim.slot).expect("a victim is an entry")
        } else {
            contents.take(hash, victim.slot).expect("a victim is an entry")
        };
        if victim.is_from_small
            && let Some(queues) = &mut contents.queues
        {
            queues.remember(hash);
        }
        Some(stored)
    }

    pub(super) fn receive(&mut self) {
        self.state = SegmentState::Receiving;
    }

    pub(super) fn own(&mut self) {
        self.state = SegmentState::Owned;
        self.contents.removals = BTreeMap::new();
        self.contents.removal_bytes = 0;
    }

    /// The caller frees the contents without the lock.
    pub(super) fn drop_contents(&mut self) -> Contents {
        self.state = SegmentState::Absent;
        self.is_readable = false;
        self.inserted += 1;
        self.dropped = self.inserted;
        let mut emptied = Contents::new(self.contents.queues.is_some());
        emptied.field_index = self.contents.field_index.as_ref().map(|fields| Box::new(fields.emptied()));
        std::mem::replace(&mut self.contents, emptied)
    }

    pub(super) fn clear_contents(&mut self) -> Contents {
        let (state, is_readable) = (self.state, self.is_readable);
        let contents = self.drop_contents();
        (self.state, self.is_readable) = (state, is_readable);
        contents
    }

    /// Sets the indexed fields, and returns the previous index.
    pub(super) fn set_fields(&mut self, fields: Option<Arc<dyn IndexedFields>>) -> Option<Box<FieldIndex>> {
        let is_empty = self.contents.slab.len() == 0;
        let index = fields.map(|fields| Box::new(FieldIndex::new(fields, is_empty)));
        std::mem::replace(&mut self.contents.field_index, index)
    }

    pub(super) fn field_index(&self) -> Option<&FieldIndex> {
        self.contents.field_index.as_deref()
    }

    #[cfg(feature = "injected-bugs")]
    pub(super) fn inject_bug(&mut self, bug: crate::InjectedBug) {
        if let Some(fields) = &mut self.contents.field_index {
            fields.injected_bug = Some(bug);
        }
    }

    pub(super) fn build_index(&mut self, entries_max: usize) {
        let contents = &mut self.contents;
        if let Some(fields) = &mut contents.field_index {
            fields.build(&contents.slab, entries_max);
        }
    }

    /// Returns whether the segment is the one with which the cursor began.
    pub(super) fn begin_walk(&self, cursor: &mut Cursor) -> bool {
        if *cursor == Cursor::START {
            cursor.before = self.inserted;
        }
        self.state != SegmentState::Absent && cursor.before >= self.dropped
    }

    /// Passes on the entry of a slot, as an iteration with this cursor does. Returns whether the segment is still the same.
    pub(super) fn visit_slot(&self, mut cursor: Cursor, now: Time, give: impl FnOnce(Visited<'_>)) -> bool {
        let is_same = self.begin_walk(&mut cursor);
        let stored = self.contents.slab.get(cursor.slot).filter(|_| is_same);
        if let Some(stored) = stored.filter(|stored| self.is_given(stored, cursor.before, now)) {
            give(Visited(stored));
        }
        is_same
    }

    /// An entry that was only idle here is passed on, because another member may have used it.
    fn is_given(&self, stored: &Stored, before: u64, now: Time) -> bool {
        let is_gone = if self.is_shared { stored.is_over(now) } else { stored.is_expired(now) };
        stored.item.number().get() < before && !is_gone
    }

    /// Passes on entries that are not expired until the budget is spent or the examined slots reach the
    /// limit.
    pub(super) fn walk(
        &self,
        cursor: &mut Cursor,
        budget: &mut Budget,
        now: Time,
        prefetch: PrefetchScope,
        give: &mut impl FnMut(Visited<'_>),
    ) -> Walk {
        if !self.begin_walk(cursor) {
            return Walk::Gone;
        }
        let slab = &self.contents.slab;
        let until = slab::pages_after(cursor.slot, WALK_PAGES_MAX);
        loop {
            let slot = match slab.next_occupied(cursor.slot, until) {
                Next::End => return Walk::End,
                Next::More(slot) => {
                    cursor.slot = slot;
                    return Walk::More;
                }
                Next::Slot(slot) => slot,
            };
            cursor.slot = slot;
            self.fetch_after(slot, prefetch);
            let stored = slab.get(slot).expect("the slot is occupied");
            if self.is_given(stored, cursor.before, now) {
                if !budget.admit(stored.data_len()) {
                    return Walk::Spent;
                }
                give(Visited(stored));
            }
            cursor.slot += 1;
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum PrefetchScope {
    Slots,
    Items,
}

pub(super) enum Walk {
    Spent,
    /// The iteration releases the lock for other threads, then goes on.
    More,
    End,
    /// The segment is absent, or not the one with which the cursor began.
    Gone,
}
