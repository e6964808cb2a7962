//! An entry keeps its slot for life, so that an iteration by slot number finds every entry once, whatever is
//! added or removed meanwhile.

/// A page is allocated and freed as a whole: small enough for a nearly empty segment, large enough for the
/// page's own words not to matter.
const PAGE_SLOTS: usize = u32::BITS as usize;

pub(super) struct Slab<T> {
    pages: Vec<Page<T>>,
    /// Pages with a vacant slot; the last is filled first.
    open: Vec<u32>,
    len: usize,
}

struct Page<T> {
    occupied: u32,
    is_open: bool,
    slots: Vec<Option<T>>,
}

impl<T> Slab<T> {
    pub(super) const fn new() -> Self {
        Self { pages: Vec::new(), open: Vec::new(), len: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(super) fn get(&self, slot: u32) -> Option<&T> {
        let (page, place) = split(slot);
        self.pages.get(page)?.slots.get(place)?.as_ref()
    }

    #[inline]
    pub(super) fn get_mut(&mut self, slot: u32) -> Option<&mut T> {
        let (page, place) = split(slot);
        self.pages.get_mut(page)?.slots.get_mut(place)?.as_mut()
    }

    #[inline]
    pub(super) fn place(&self, slot: u32) -> Option<&Option<T>> {
        let (page, place) = split(slot);
        self.pages.get(page)?.slots.get(place)
    }

    /// # Panics
    ///
    /// If there are 2^32 values: half a terabyte in one segment.
    pub(super) fn insert(&mut self, value: T) -> u32 {
        let index = match self.open.last() {
            Some(&index) => index,
            None => self.open_page(),
        };
        let page = &mut self.pages[index as usize];
        let place = page.occupied.trailing_ones() as usize;
        if page.slots.capacity() == 0 && index > 0 {
            // Only the first page grows gradually: most segments of a small cache never fill it.
            page.slots.reserve_exact(PAGE_SLOTS);
        }
        if place < page.slots.len() {
            page.slots[place] = Some(value);
        } else {
            page.slots.push(Some(value));
        }
        page.occupied |= 1 << place;
        if page.occupied == u32::MAX {
            page.is_open = false;
            self.open.pop();
        }
        self.len += 1;
        index * PAGE_SLOTS as u32 + place as u32
    }

    fn open_page(&mut self) -> u32 {
        let index = u32::try_from(self.pages.len()).expect("fewer pages than slots");
        assert!(index < u32::MAX / PAGE_SLOTS as u32, "a segment holds 2^32 entries");
        self.pages.push(Page { occupied: 0, is_open: true, slots: Vec::new() });
        self.open.push(index);
        index
    }

    /// A page without values is freed.
    pub(super) fn remove(&mut self, slot: u32) -> Option<T> {
        let (index, place) = split(slot);
        let page = self.pages.get_mut(index)?;
        let value = page.slots.get_mut(place)?.take()?;
        page.occupied &= !(1 << place);
        self.len -= 1;
        if !page.is_open {
            page.is_open = true;
            self.open.push(index as u32);
        }
        if page.occupied == 0 && index > 0 {
            page.slots = Vec::new();
        }
        if self.len == 0 && self.pages.len() > 1 {
            *self = Self::new();
        }
        Some(value)
    }

    /// The first slot from `from` on with a value, before `until`, which begins a page.
    pub(super) fn next_occupied(&self, from: u32, until: u32) -> Next {
        let (mut index, place) = split(from);
        let mut mask = u32::MAX << place;
        let (end, _) = split(until);
        while index < end {
            let Some(page) = self.pages.get(index) else { return Next::End };
            let left = page.occupied & mask;
            if left != 0 {
                return Next::Slot(index as u32 * PAGE_SLOTS as u32 + left.trailing_zeros());
            }
            index += 1;
            mask = u32::MAX;
        }
        if index < self.pages.len() { Next::More(index as u32 * PAGE_SLOTS as u32) } else { Next::End }
    }
}

pub(super) fn pages_after(slot: u32, pages: u32) -> u32 {
    (slot / PAGE_SLOTS as u32).saturating_add(pages).saturating_mul(PAGE_SLOTS as u32)
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    Slot(u32),
    /// No value up to here; continue from this slot.
    More(u32),
    End,
}

fn split(slot: u32) -> (usize, usize) {
    (slot as usize / PAGE_SLOTS, slot as usize % PAGE_SLOTS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_keep_their_slots_while_others_come_and_go() {
        let mut slab = Slab::new();
        let slots: Vec<u32> = (0..1000).map(|value| slab.insert(value)).collect();
        for value in (0..1000).step_by(2) {
            assert_eq!(slab.remove(slots[value]), Some(value));
        }
        for value in 1000..3000 {
            slab.insert(value);
        }
        for value in (1..1000).step_by(2) {
            assert_eq!(slab.get(slots[value]), Some(&value));
        }
        assert_eq!(slab.len(), 2500);
    }

    #[test]
    fn vacant_slots_are_used_again_before_new_pages() {
        let mut slab = Slab::new();
        let slots: Vec<u32> = (0..320).map(|value| slab.insert(value)).collect();
        for &slot in &slots[64..128] {
            slab.remove(slot);
        }
        let again: Vec<u32> = (0..64).map(|value| slab.insert(value)).collect();
        assert!(again.iter().all(|slot| (64..128).contains(slot)), "{again:?}");
    }

    #[test]
    fn empty_pages_give_their_memory_back() {
        let mut slab = Slab::new();
        let kept = allocation_counter::measure(|| {
            let slots: Vec<u32> = (0..10_000u64).map(|value| slab.insert([value; 8])).collect();
            for slot in &slots[1..] {
                slab.remove(*slot);
            }
        })
        .bytes_current;
        assert!(kept < 32 * 72 + 10_000 / 32 * 72, "{kept} bytes for one value");
        slab.remove(0);
        assert_eq!(slab.pages.len(), 0);
    }

    #[test]
    fn walk_meets_every_value_and_looks_at_no_more_than_it_may() {
        let mut slab = Slab::new();
        let slots: Vec<u32> = (0..320).map(|value| slab.insert(value)).collect();
        for &slot in &slots[10..310] {
            slab.remove(slot);
        }
        assert_eq!(slab.next_occupied(0, pages_after(0, 1)), Next::Slot(0));
        assert_eq!(slab.next_occupied(10, pages_after(10, 3)), Next::More(96));
        assert_eq!(slab.next_occupied(10, pages_after(10, 100)), Next::Slot(310));
        assert_eq!(slab.next_occupied(320, pages_after(320, 100)), Next::End);
        assert_eq!(slab.next_occupied(u32::MAX, pages_after(u32::MAX, 1)), Next::End);
    }
}
