//! The order of eviction in a full segment: S3-FIFO (Yang and others, SOSP 2023).
//!
//! New entries enter a small queue. An entry that was read more than once meanwhile moves to the main queue.
//! Others are evicted, and their fingerprints remembered: an entry that returns soon enters the main queue at
//! once. An entry of the main queue that was read gets another round. So a scan through many keys replaces
//! the small queue only.

use std::collections::VecDeque;

use hashbrown::HashTable;

use super::key_hash::KeyHash;

const NIL: u32 = u32::MAX;

/// More reads carry no information.
const FREQUENCY_MAX: u8 = 3;

/// Reads in the small queue that make an entry worth keeping: one may be the read after the write.
const FREQUENCY_KEPT: u8 = 2;

const SMALL_PART: usize = 10;

const GHOSTS_MIN: usize = 16;

/// Nodes are indexed by slot, beside the slab, so that an entry leaves its queue in one step.
pub(super) struct Queues {
    nodes: Vec<Node>,
    small: Queue,
    main: Queue,
    ghosts: Ghosts,
}

#[derive(Clone, Copy)]
struct Node {
    older: u32,
    newer: u32,
    frequency: u8,
    place: Place,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Nowhere,
    Small,
    Main,
}

struct Queue {
    oldest: u32,
    newest: u32,
    len: usize,
}

impl Queues {
    pub(super) fn new() -> Self {
        let queue = || Queue { oldest: NIL, newest: NIL, len: 0 };
        Self { nodes: Vec::new(), small: queue(), main: queue(), ghosts: Ghosts::new() }
    }

    pub(super) fn insert(&mut self, slot: u32, hash: KeyHash) {
        let index = slot as usize;
        if index >= self.nodes.len() {
            let nowhere = Node { older: NIL, newer: NIL, frequency: 0, place: Place::Nowhere };
            self.nodes.resize(index + 1, nowhere);
        }
        let place = if self.ghosts.take(hash) { Place::Main } else { Place::Small };
        self.nodes[index].frequency = 0;
        self.push(slot, place);
    }

    #[inline]
    pub(super) fn note_use(&mut self, slot: u32) {
        if let Some(node) = self.nodes.get_mut(slot as usize) {
            node.frequency = (node.frequency + 1).min(FREQUENCY_MAX);
        }
    }

    pub(super) fn remove(&mut self, slot: u32) {
        self.unlink(slot);
        if self.len() == 0 {
            self.nodes = Vec::new();
        }
    }

    /// If the evicted entry returns soon, it was worth keeping.
    pub(super) fn remember(&mut self, hash: KeyHash) {
        self.ghosts.push(hash, self.len().max(GHOSTS_MIN));
    }

    /// The next entry to evict, other than `kept`. Entries that were read get another round.
    pub(super) fn victim(&mut self, kept: Option<u32>) -> Option<Victim> {
        if self.len() <= usize::from(kept.is_some()) {
            return None;
        }
        loop {
            let is_small_due = self.small.len > 0 && self.small.len >= self.len() / SMALL_PART;
            if is_small_due || self.main.len == 0 {
                let slot = self.small.oldest;
                let frequency = self.nodes[slot as usize].frequency;
                if kept != Some(slot) && frequency < FREQUENCY_KEPT {
                    return Some(Victim { slot, is_from_small: true });
                }
                self.unlink(slot);
                self.nodes[slot as usize].frequency = 0;
                self.push(slot, Place::Main);
            } else {
                let slot = self.main.oldest;
                let node = &mut self.nodes[slot as usize];
                if kept != Some(slot) && node.frequency == 0 {
                    return Some(Victim { slot, is_from_small: false });
                }
                // The loop ends: every round decrements each frequency, and there is another entry besides the kept
                // one.
                node.frequency = node.frequency.saturating_sub(1);
                self.unlink(slot);
                self.push(slot, Place::Main);
            }
        }
    }

    fn len(&self) -> usize {
        self.small.len + self.main.len
    }

    fn queue(&mut self, place: Place) -> Option<&mut Queue> {
        match place {
            Place::Nowhere => None,
            Place::Small => Some(&mut self.small),
            Place::Main => Some(&mut self.main),
        }
    }

    fn push(&mut self, slot: u32, place: Place) {
        let Some(queue) = self.queue(place) else { return };
        let older = std::mem::replace(&mut queue.newest, slot);
        if older == NIL {
            queue.oldest = slot;
        }
        queue.len += 1;
        if let Some(node) = self.nodes.get_mut(older as usize) {
            node.newer = slot;
        }
        let node = &mut self.nodes[slot as usize];
        (node.older, node.newer, node.place) = (older, NIL, place);
    }

    fn unlink(&mut self, slot: u32) {
        let Node { older, newer, place, .. } = self.nodes[slot as usize];
        let Some(queue) = self.queue(place) else { return };
        queue.len -= 1;
        if older == NIL {
            queue.oldest = newer;
        }
        if newer == NIL {
            queue.newest = older;
        }
        if let Some(node) = self.nodes.get_mut(older as usize) {
            node.newer = newer;
        }
        if let Some(node) = self.nodes.get_mut(newer as usize) {
            node.older = older;
        }
        self.nodes[slot as usize].place = Place::Nowhere;
    }
}

pub(super) struct Victim {
    pub(super) slot: u32,
    /// The entry never reached the main queue, so its fingerprint is remembered.
    pub(super) is_from_small: bool,
}

/// Fingerprints of recently evicted entries: at most as many as there are entries.
struct Ghosts {
    order: VecDeque<u32>,
    known: HashTable<u32>,
}

impl Ghosts {
    fn new() -> Self {
        Self { order: VecDeque::new(), known: HashTable::new() }
    }

    fn push(&mut self, KeyHash(print): KeyHash, len_max: usize) {
        if self.known.find(KeyHash(print).spread(), |&known| known == print).is_some() {
            return;
        }
        while self.order.len() >= len_max {
            if let Some(oldest) = self.order.pop_front() {
                self.forget(oldest);
            }
        }
        self.order.push_back(print);
        self.known.insert_unique(KeyHash(print).spread(), print, |&print| KeyHash(print).spread());
    }

    /// Returns whether the fingerprint was known. Its place in the order stays, and later removes a
    /// fingerprint of the same key too early, which costs a hit at worst.
    fn take(&mut self, KeyHash(print): KeyHash) -> bool {
        self.forget(print)
    }

    fn forget(&mut self, print: u32) -> bool {
        let found = self.known.find_entry(KeyHash(print).spread(), |&known| known == print);
        found.map(|found| found.remove()).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evict(queues: &mut Queues) -> Option<u32> {
        let victim = queues.victim(None)?;
        queues.remove(victim.slot);
        if victim.is_from_small {
            queues.remember(KeyHash(victim.slot));
        }
        Some(victim.slot)
    }

    fn queues(slots: std::ops::Range<u32>) -> Queues {
        let mut queues = Queues::new();
        slots.for_each(|slot| queues.insert(slot, KeyHash(slot)));
        queues
    }

    #[test]
    fn entries_never_read_are_evicted_first_in_insertion_order() {
        let mut queues = queues(0..20);
        for slot in [0, 2, 4] {
            queues.note_use(slot);
            queues.note_use(slot);
        }
        let gone: Vec<Option<u32>> = (0..4).map(|_| evict(&mut queues)).collect();
        assert_eq!(gone, [Some(1), Some(3), Some(5), Some(6)]);
    }

    #[test]
    fn scan_evicts_only_unread_entries() {
        let mut queues = queues(0..100);
        for slot in 0..50 {
            (0..2).for_each(|_| queues.note_use(slot));
        }
        let mut gone = Vec::new();
        for slot in 100..1000 {
            gone.extend(evict(&mut queues));
            queues.insert(slot, KeyHash(slot));
        }
        assert!(gone.iter().all(|&slot| slot >= 50), "{gone:?}");
    }

    #[test]
    fn entry_that_comes_back_soon_goes_to_the_main_queue() {
        let mut queues = queues(0..20);
        assert_eq!(evict(&mut queues), Some(0));
        queues.insert(0, KeyHash(0));
        assert_eq!((queues.small.len, queues.main.len), (19, 1));
    }

    #[test]
    fn all_can_be_evicted_except_the_kept_one() {
        let mut queues = queues(0..50);
        (0..50).for_each(|slot| (0..3).for_each(|_| queues.note_use(slot)));
        for _ in 0..49 {
            let victim = queues.victim(Some(7)).unwrap();
            assert_ne!(victim.slot, 7);
            queues.remove(victim.slot);
        }
        assert!(queues.victim(Some(7)).is_none());
        assert_eq!(evict(&mut queues), Some(7));
        assert_eq!(evict(&mut queues), None);
    }

    #[test]
    fn entries_leave_from_anywhere_in_their_queue() {
        let mut queues = queues(0..10);
        for slot in [9, 0, 5, 4] {
            queues.remove(slot);
        }
        let gone: Vec<u32> = std::iter::from_fn(|| evict(&mut queues)).collect();
        assert_eq!(gone, [1, 2, 3, 6, 7, 8]);
    }

    #[test]
    fn fingerprints_are_no_more_than_their_bound() {
        let mut ghosts = Ghosts::new();
        (0..1000).for_each(|print| ghosts.push(KeyHash(print), 20));
        assert_eq!((ghosts.order.len(), ghosts.known.len()), (20, 20));
        assert!(ghosts.take(KeyHash(999)) && !ghosts.take(KeyHash(999)) && !ghosts.take(KeyHash(979)));
    }
}
