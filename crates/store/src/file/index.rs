//! The index of all entries, in memory.
//!
//! A slot has 128 bits of the key's hash instead of the key: SipHash with keys drawn by the process, so that
//! collisions cannot be forced; by chance they have odds of 2^-65 among 2^32 entries. A slot has 36 bytes; an
//! entry costs 42 to 83 with the table's free space, and about 40 more if it expires.
//!
//! **Older records.** A removal must stay on the disk while an older record of its key is there, or the key
//! would come back. So each slot counts its key's dead records on the disk, and a removed key keeps its slot as
//! a tombstone until the count is 0. Removing a segment drops its slots; the segment then counts the records
//! before the removal (its *floor*). The records in their order determine the index, by the same functions on
//! writes and on replay.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use hashbrown::HashTable;
use hashbrown::hash_table::Entry as TableEntry;

use super::record::Location;
use crate::disk::DiskFile;
use crate::entry::{Segment, Times};

/// Four 32-bit parts, so that a slot needs no padding.
pub(crate) type Print = [u32; 4];

#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    print: Print,
    file: u32,
    offset: u32,
    len: u32,
    /// The second of the epoch, or [`NEVER`].
    expires: u32,
    /// The key's dead records on the disk. The highest bit marks a tombstone.
    older: u32,
}

/// An expiry in or after 2106 counts as none.
const NEVER: u32 = u32::MAX;

const TOMBSTONE: u32 = 1 << 31;

impl Slot {
    pub(crate) fn location(&self) -> Location {
        Location { file: self.file, offset: self.offset, len: self.len }
    }

    pub(crate) fn is_tombstone(&self) -> bool {
        self.older & TOMBSTONE != 0
    }

    pub(crate) fn older(&self) -> u32 {
        self.older & !TOMBSTONE
    }

    fn set_older(&mut self, older: u32) {
        // A key with two billion dead records keeps its tombstone for ever, which is safe.
        self.older = (self.older & TOMBSTONE) | older.min(TOMBSTONE - 1);
    }

    fn set_location(&mut self, at: Location) {
        (self.file, self.offset, self.len) = (at.file, at.offset, at.len);
    }
}

#[derive(Debug)]
pub(crate) struct LogFile {
    pub(crate) file: Arc<dyn DiskFile>,
    pub(crate) start: u32,
    pub(crate) len: u32,
    pub(crate) dead: u64,
    pub(crate) is_sealed: bool,
    /// The file is removed once its drop record is durable.
    pub(crate) is_dropped: bool,
    /// Reading failed; the file is not compacted again.
    pub(crate) is_damaged: bool,
}

impl LogFile {
    pub(crate) fn new(file: Arc<dyn DiskFile>, start: u32, len: u32, is_sealed: bool) -> Self {
        Self { file, start, len, dead: u64::from(start), is_sealed, is_dropped: false, is_damaged: false }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Floor {
    change: u64,
    /// Earlier puts that are still on the disk.
    older: u64,
}

#[derive(Debug, Default)]
struct SegmentIndex {
    slots: HashTable<Slot>,
    tombstones: usize,
    puts: u64,
    floor: Option<Floor>,
}

#[derive(Debug)]
pub(crate) struct Index {
    segments: Vec<SegmentIndex>,
    pub(crate) files: BTreeMap<u32, LogFile>,
    expiring: BTreeSet<(u32, Segment, Print)>,
    keys: [RandomState; 2],
}

impl Index {
    pub(crate) fn new(segments: u16) -> Self {
        Self {
            segments: (0..segments).map(|_| SegmentIndex::default()).collect(),
            files: BTreeMap::new(),
            expiring: BTreeSet::new(),
            keys: [RandomState::new(), RandomState::new()],
        }
    }

    pub(crate) fn print(&self, key: &[u8]) -> Print {
        let [high, low] = [self.keys[0].hash_one(key), self.keys[1].hash_one(key)];
        [(high >> 32) as u32, high as u32, (low >> 32) as u32, low as u32]
    }

    pub(crate) fn slot(&self, segment: Segment, print: &Print) -> Option<&Slot> {
        self.segments[usize::from(segment)].slots.find(hash(print), |slot| slot.print == *print)
    }

    pub(crate) fn count(&self, segment: Segment) -> usize {
        let segment = &self.segments[usize::from(segment)];
        segment.slots.len() - segment.tombstones
    }

    pub(crate) fn locations(&self, segment: Segment) -> Vec<Location> {
        let slots = self.segments[usize::from(segment)].slots.iter();
        let mut locations: Vec<Location> =
            slots.filter(|slot| !slot.is_tombstone()).map(Slot::location).collect();
        locations.sort_unstable();
        locations
    }

    pub(crate) fn expired(&self, now: u64, limit: usize) -> Vec<(Segment, Print)> {
        let now = u32::try_from(now / 1000).unwrap_or(NEVER);
        self.expiring.iter().take_while(|due| due.0 <= now).take(limit).map(|due| (due.1, due.2)).collect()
    }

    pub(crate) fn put(&mut self, segment: Segment, print: Print, at: Location, times: &Times) {
        let expires = expiry_second(times);
        let index = &mut self.segments[usize::from(segment)];
        index.puts += 1;
        match index.slots.entry(hash(&print), |slot| slot.print == print, |slot| hash(&slot.print)) {
            TableEntry::Vacant(vacant) => {
                let (file, offset, len) = (at.file, at.offset, at.len);
                vacant.insert(Slot { print, file, offset, len, expires, older: 0 });
            }
            TableEntry::Occupied(mut occupied) => {
                let slot = occupied.get_mut();
                let before = *slot;
                if before.is_tombstone() {
                    index.tombstones -= 1;
                }
                let older = before.older() + u32::from(!before.is_tombstone());
                slot.set_location(at);
                slot.older = 0;
                slot.set_older(older);
                slot.expires = expires;
                forget_expiry(&mut self.expiring, segment, &before);
                mark_dead(&mut self.files, before.location());
            }
        }
        if expires != NEVER {
            self.expiring.insert((expires, segment, print));
        }
    }

    pub(crate) fn copied(&mut self, segment: Segment, print: &Print, at: Location) {
        let index = &mut self.segments[usize::from(segment)];
        if let Some(slot) = index.slots.find_mut(hash(print), |slot| slot.print == *print) {
            slot.set_location(at);
        }
    }

    pub(crate) fn remove(&mut self, segment: Segment, print: Print, at: Location) {
        let index = &mut self.segments[usize::from(segment)];
        let found = index.slots.entry(hash(&print), |slot| slot.print == print, |slot| hash(&slot.print));
        let TableEntry::Occupied(mut occupied) = found else {
            // The removal hides nothing on the disk.
            mark_dead(&mut self.files, at);
            return;
        };
        let slot = occupied.get_mut();
        let before = *slot;
        mark_dead(&mut self.files, before.location());
        slot.set_location(at);
        if !before.is_tombstone() {
            index.tombstones += 1;
            slot.older = TOMBSTONE;
            slot.set_older(before.older() + 1);
            slot.expires = NEVER;
            forget_expiry(&mut self.expiring, segment, &before);
        }
    }

    /// All earlier records of the segment are dead.
    pub(crate) fn remove_segment(&mut self, segment: Segment, change: u64) {
        let index = &mut self.segments[usize::from(segment)];
        for slot in index.slots.drain() {
            forget_expiry(&mut self.expiring, segment, &slot);
            mark_dead(&mut self.files, slot.location());
        }
        index.slots.shrink_to_fit(|slot| hash(&slot.print));
        index.tombstones = 0;
        // On replay a header may have announced a later removal already.
        let change = index.floor.map_or(change, |floor| floor.change.max(change));
        index.floor = Some(Floor { change, older: index.puts });
    }

    pub(crate) fn raise_floor(&mut self, segment: Segment, change: u64) {
        if let Some(index) = self.segments.get_mut(usize::from(segment)) {
            let floor = index.floor.get_or_insert_default();
            floor.change = floor.change.max(change);
        }
    }

    pub(crate) fn is_below_floor(&self, segment: Segment, change: u64) -> bool {
        self.segments[usize::from(segment)].floor.is_some_and(|floor| change < floor.change)
    }

    /// Its segment's removal has undone it.
    pub(crate) fn put_below_floor(&mut self, segment: Segment, at: Location) {
        let index = &mut self.segments[usize::from(segment)];
        index.puts += 1;
        if let Some(floor) = &mut index.floor {
            floor.older += 1;
        }
        mark_dead(&mut self.files, at);
    }

    /// A dead put without a copy is about to leave the disk.
    pub(crate) fn forget_put(&mut self, segment: Segment, print: &Print, change: u64) {
        let is_below_floor = self.is_below_floor(segment, change);
        let index = &mut self.segments[usize::from(segment)];
        index.puts = index.puts.saturating_sub(1);
        if is_below_floor {
            if let Some(floor) = &mut index.floor {
                floor.older = floor.older.saturating_sub(1);
            }
            return;
        }
        let Ok(mut found) = index.slots.find_entry(hash(print), |slot| slot.print == *print) else { return };
        let slot = found.get_mut();
        slot.set_older(slot.older().saturating_sub(1));
        if slot.is_tombstone() && slot.older() == 0 {
            let (slot, _) = found.remove();
            index.tombstones -= 1;
            mark_dead(&mut self.files, slot.location());
        }
    }

    pub(crate) fn give_up_expiry(&mut self, segment: Segment, print: &Print) {
        if let Some(slot) = self.slot(segment, print).copied() {
            forget_expiry(&mut self.expiring, segment, &slot);
        }
    }

    pub(crate) fn has_segment(&self, segment: Segment) -> bool {
        usize::from(segment) < self.segments.len()
    }

    pub(crate) fn is_empty(&self, segment: Segment) -> bool {
        self.segments[usize::from(segment)].puts == 0
    }

    /// At the end of the replay.
    pub(crate) fn forget_spent(&mut self) {
        let files = &mut self.files;
        for index in &mut self.segments {
            let mut gone = 0;
            index.slots.retain(|slot| {
                let is_spent = slot.is_tombstone() && slot.older() == 0;
                if is_spent {
                    gone += 1;
                    mark_dead(files, slot.location());
                }
                !is_spent
            });
            index.tombstones -= gone;
        }
        self.forget_spent_floors();
    }

    pub(crate) fn forget_spent_floors(&mut self) {
        for index in &mut self.segments {
            index.floor = index.floor.filter(|floor| floor.older > 0);
        }
    }

    pub(crate) fn floors(&self) -> Vec<(u16, u64)> {
        let segments = self.segments.iter().zip(0..);
        segments.filter_map(|(index, segment)| index.floor.map(|floor| (segment, floor.change))).collect()
    }

    pub(crate) fn mark_dead(&mut self, at: Location) {
        mark_dead(&mut self.files, at);
    }

    pub(crate) fn clear(&mut self) -> BTreeMap<u32, LogFile> {
        self.segments.iter_mut().for_each(|segment| *segment = SegmentIndex::default());
        self.expiring.clear();
        std::mem::take(&mut self.files)
    }

    pub(crate) fn sizes(&self) -> (u64, u64, u64) {
        let mut sizes = (0, 0, 0);
        for segment in &self.segments {
            sizes.0 += (segment.slots.len() - segment.tombstones) as u64;
            sizes.1 += segment.tombstones as u64;
            sizes.2 += segment.slots.allocation_size() as u64;
        }
        // A B-tree's nodes are about three quarters full.
        let expiring = self.expiring.len() * size_of::<(u32, Segment, Print)>() * 4 / 3;
        sizes.2 += expiring as u64;
        sizes
    }
}

fn mark_dead(files: &mut BTreeMap<u32, LogFile>, at: Location) {
    if let Some(file) = files.get_mut(&at.file) {
        file.dead += u64::from(at.len);
    }
}

fn forget_expiry(expiring: &mut BTreeSet<(u32, Segment, Print)>, segment: Segment, slot: &Slot) {
    if slot.expires != NEVER {
        expiring.remove(&(slot.expires, segment, slot.print));
    }
}

/// The first full second at which the entry has expired.
fn expiry_second(times: &Times) -> u32 {
    times.expires_at().map_or(NEVER, |at| u32::try_from(at.div_ceil(1000)).unwrap_or(NEVER))
}

/// The print is a hash already.
fn hash(print: &Print) -> u64 {
    u64::from(print[0]) << 32 | u64::from(print[1])
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Location = Location { file: 1, offset: 10, len: 100 };

    #[test]
    fn a_slot_has_36_bytes() {
        assert_eq!(size_of::<Slot>(), 36);
    }

    #[test]
    fn a_tombstone_stays_until_the_last_older_record_is_gone() {
        let mut index = Index::new(1);
        let print = index.print(b"k");
        index.put(0, print, AT, &Times::default());
        index.put(0, print, AT, &Times::default());
        index.remove(0, print, AT);
        assert_eq!((index.count(0), index.sizes().1), (0, 1));
        index.forget_put(0, &print, 1);
        assert_eq!(index.sizes().1, 1, "another older record remains");
        index.forget_put(0, &print, 2);
        assert_eq!(index.sizes().1, 0);
    }

    #[test]
    fn a_segments_removal_is_remembered_until_the_last_record_before_it_is_gone() {
        let mut index = Index::new(2);
        let print = index.print(b"k");
        index.put(1, print, AT, &Times::default());
        index.remove_segment(1, 5);
        index.put(1, print, AT, &Times::default());
        assert_eq!((index.count(1), index.floors()), (1, vec![(1, 5)]));
        index.forget_put(1, &print, 3);
        index.forget_spent_floors();
        assert_eq!((index.count(1), index.floors()), (1, vec![]));
    }

    #[test]
    fn expired_entries_are_found_in_order_and_overwritten_times_are_ignored() {
        let mut index = Index::new(1);
        let times = |lifespan| Times { lifespan: Some(lifespan), ..Times::default() };
        let [a, b] = [index.print(b"a"), index.print(b"b")];
        index.put(0, a, AT, &times(5_001));
        index.put(0, b, AT, &times(4_000));
        assert_eq!(index.expired(3_999, 10), vec![]);
        assert_eq!(index.expired(5_999, 10), vec![(0, b)]);
        assert_eq!(index.expired(6_000, 10), vec![(0, b), (0, a)]);
        assert_eq!(index.expired(6_000, 1), vec![(0, b)]);
        index.put(0, b, AT, &times(9_000));
        index.remove(0, a, AT);
        assert_eq!(index.expired(8_000, 10), vec![]);
    }
}
