//! The index of a segment: cells of a hash and a slot, searched from the hash's position to the next empty
//! cell.
//!
//! Five cells are about one line of the CPU's cache. A search seldom leaves its first line and the next one,
//! so it waits for memory once; a table with separate tags waits twice, which is most of a read's time. A
//! cell also has the address of its slot's item, so that the CPU fetches both at once.

use super::key_hash::KeyHash;
use super::prefetch::{PrefetchHint, SlotAddress};

#[derive(Clone, Copy)]
pub(super) struct Cell {
    hash: KeyHash,
    /// The slot plus one; [`EMPTY`] for an empty cell.
    tag: u32,
    item: PrefetchHint,
}

const EMPTY: u32 = 0;

const VACANT: Cell = Cell { hash: KeyHash(0), tag: EMPTY, item: PrefetchHint::NOWHERE };

/// Two lines.
const CELLS_MIN: usize = 8;

#[derive(Default)]
pub(super) struct Index {
    cells: Box<[Cell]>,
    len: usize,
    /// The address of the item that was added or moved last.
    newest: SlotAddress,
}

const fn tag(slot: u32) -> u32 {
    slot.wrapping_add(1)
}

/// Fills a size class of allocators, four to a doubling, so that rounding up wastes nothing. At most four of
/// five cells are in use, so that searches stay short, and 64 of 100 after growing.
const fn cells_for(len: usize) -> usize {
    let wanted = len + len.div_ceil(4);
    let wanted = if wanted < CELLS_MIN { CELLS_MIN } else { wanted };
    let last = wanted * size_of::<Cell>() - 1;
    let quarter = 1 << (last.ilog2() - 2);
    (last / quarter + 1) * quarter / size_of::<Cell>()
}

#[inline]
const fn home(hash: KeyHash, cells: usize) -> usize {
    ((hash.0 as u64 * cells as u64) >> 32) as usize
}

impl Index {
    #[inline]
    pub(super) fn find(&self, hash: KeyHash, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        let mut at = home(hash, self.cells.len());
        loop {
            // Without cells the search ends here.
            let cell = self.cells.get(at)?;
            if cell.tag == EMPTY {
                return None;
            }
            if cell.hash == hash {
                self.newest.fetch(cell.item);
                let slot = cell.tag.wrapping_sub(1);
                if is_it(slot) {
                    return Some(slot);
                }
            }
            at = self.after(at);
        }
    }

    /// None if there are no cells.
    #[inline]
    pub(super) fn home(&self, hash: KeyHash) -> Option<&Cell> {
        self.cells.get(home(hash, self.cells.len()))
    }

    pub(super) fn reserve(&mut self, len: usize) {
        if cells_for(len) > self.cells.len() {
            self.resize(cells_for(len));
        }
    }

    pub(super) fn insert(&mut self, hash: KeyHash, slot: u32, item: SlotAddress) {
        self.reserve(self.len + 1);
        self.newest = item;
        self.put(Cell { hash, tag: tag(slot), item: item.hint() });
        self.len += 1;
    }

    /// Records the new address of a slot's item. Without it searches are right, and slower.
    pub(super) fn moved(&mut self, hash: KeyHash, slot: u32, item: SlotAddress) {
        if let Some(at) = self.at(hash, slot) {
            self.cells[at].item = item.hint();
            self.newest = item;
        }
    }

    #[inline]
    fn after(&self, at: usize) -> usize {
        if at + 1 == self.cells.len() { 0 } else { at + 1 }
    }

    fn distance(&self, from: usize, to: usize) -> usize {
        if to < from { to + self.cells.len() - from } else { to - from }
    }

    fn at(&self, hash: KeyHash, slot: u32) -> Option<usize> {
        let mut at = home(hash, self.cells.len());
        loop {
            match self.cells.get(at)?.tag {
                EMPTY => return None,
                other if other == tag(slot) => return Some(at),
                _ => at = self.after(at),
            }
        }
    }

    /// Whether the slot was present.
    pub(super) fn remove(&mut self, hash: KeyHash, slot: u32) -> bool {
        let Some(mut gap) = self.at(hash, slot) else { return false };
        // Later cells that a search would no longer reach move up.
        let mut at = gap;
        loop {
            at = self.after(at);
            let other = self.cells[at];
            if other.tag == EMPTY {
                break;
            }
            let begin = home(other.hash, self.cells.len());
            if self.distance(begin, at) >= self.distance(gap, at) {
                self.cells[gap] = other;
                gap = at;
            }
        }
        self.cells[gap] = VACANT;
        self.len -= 1;
        true
    }

    pub(super) fn shrink(&mut self) {
        if self.cells.len() > 8 * CELLS_MIN && self.len < self.cells.len() / 8 {
            self.resize(cells_for(2 * self.len));
        }
    }

    fn resize(&mut self, cells: usize) {
        let before = std::mem::replace(&mut self.cells, vec![VACANT; cells].into_boxed_slice());
        before.into_iter().filter(|cell| cell.tag != EMPTY).for_each(|cell| self.put(cell));
    }

    fn put(&mut self, cell: Cell) {
        let mut at = home(cell.hash, self.cells.len());
        while self.cells[at].tag != EMPTY {
            at = self.after(at);
        }
        self.cells[at] = cell;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use consort_group::Rng;

    use super::*;

    #[test]
    fn slots_are_found_whatever_else_comes_and_goes() {
        // Few hashes, so that many slots share one, and searches run past the end.
        for hashes in [1, 3, 100, 1 << 32] {
            let mut rng = Rng::new(hashes);
            let (mut index, mut known) = (Index::default(), BTreeMap::new());
            for round in 0..20_000_u32 {
                let grows = rng.chance(if round % 8_000 < 4_000 { 0.7 } else { 0.3 });
                if grows && known.len() < 500 {
                    // Hashes at the end of the table.
                    let hash = KeyHash(u32::MAX - rng.below(hashes) as u32);
                    index.insert(hash, round, SlotAddress::default());
                    index.moved(hash, round, SlotAddress::from_bytes(&[1]));
                    known.insert(round, hash);
                } else if let Some(slot) =
                    known.keys().nth(rng.below(known.len() as u64 + 1) as usize).copied()
                {
                    let hash = known.remove(&slot).unwrap();
                    assert!(index.remove(hash, slot));
                    assert!(!index.remove(hash, slot));
                    index.shrink();
                }
                let some = known.iter().nth(rng.below(known.len() as u64 + 1) as usize);
                if let Some((&slot, &hash)) = some {
                    assert_eq!(index.find(hash, |other| other == slot), Some(slot));
                    assert_eq!(index.find(hash, |other| other == slot + 1_000_000), None);
                }
                assert_eq!(index.len, known.len());
            }
            for (slot, hash) in known {
                assert_eq!(index.find(hash, |other| other == slot), Some(slot));
            }
        }
    }

    #[test]
    fn an_empty_one_has_nothing_and_takes_nothing() {
        let used = allocation_counter::measure(|| {
            let mut index = Index::default();
            assert_eq!(index.find(KeyHash(7), |_| true), None);
            assert!(!index.remove(KeyHash(7), 1));
        });
        assert_eq!(used.count_total, 0);
    }

    #[test]
    fn at_least_a_fifth_is_empty_and_at_least_half_are_in_use() {
        let mut index = Index::default();
        for slot in 0..10_000_u32 {
            index.insert(KeyHash(slot.wrapping_mul(0x9e37_79b9)), slot, SlotAddress::default());
            let cells = index.cells.len();
            assert!(index.len <= cells * 4 / 5 && (cells == CELLS_MIN || index.len >= cells / 2), "{slot}");
        }
    }

    #[test]
    fn index_with_room_does_not_grow_and_keeps_its_entries() {
        let mut index = Index::default();
        (0..100_u32).for_each(|slot| index.insert(KeyHash(slot << 20), slot, SlotAddress::default()));
        index.reserve(1_000);
        let cells = index.cells.len();
        (100..1_000_u32).for_each(|slot| index.insert(KeyHash(slot << 20), slot, SlotAddress::default()));
        index.reserve(10);
        assert_eq!(index.cells.len(), cells);
        assert!((0..1_000).all(|slot| index.find(KeyHash(slot << 20), |_| true) == Some(slot)));
    }

    #[test]
    fn a_cell_is_small() {
        assert_eq!(size_of::<Cell>(), 12);
    }

    #[test]
    fn memory_is_given_back() {
        let mut index = Index::default();
        (0..10_000).for_each(|slot| index.insert(KeyHash(slot), slot, SlotAddress::default()));
        for slot in 10..10_000 {
            index.remove(KeyHash(slot), slot);
            index.shrink();
        }
        assert!(index.cells.len() <= 128, "{}", index.cells.len());
        assert!((0..10).all(|slot| index.find(KeyHash(slot), |_| true) == Some(slot)));
    }
}
