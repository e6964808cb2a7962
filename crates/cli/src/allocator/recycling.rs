//! Blocks that a thread has just freed are the next that it takes.
//!
//! A member that writes takes memory for the new value and frees that of the old one, which lies anywhere. The allocator
//! puts a freed block back into its page, where others of its size are in use, and looks for a page with a free one for
//! the next: 7 % of a member's time at 80 % reads (docs/lab/2026-11-performance.md). So a thread that serves a member keeps
//! some of what it frees on shelves, by size, and takes from there first. Buffers that are read into and written from get
//! there too: the last one is still in the CPU's cache, and the allocator's next is not.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::ptr;

use libmimalloc_sys::mi_malloc;
use mimalloc::MiMalloc;

/// The allocator, behind the shelves of threads that have some.
pub(super) struct Recycling;

/// How blocks for the shelves are aligned: as the allocator aligns them anyway.
const ALIGN: usize = 16;

/// What every block is aligned to. Who asks for no more is spared the allocator's look at alignments: a walk that takes two
/// blocks for an entry is 8 % faster.
const WORD: usize = size_of::<usize>();

/// Smaller blocks the allocator finds quickly, as many lie in one page. The largest are what a connection is read into, with
/// a piece of a packet before it.
const SIZES: std::ops::RangeInclusive<usize> = 257..=256 * 1024;

const CLASSES: usize = 40;

/// What is asked of the allocator for each class of sizes: four to a doubling, which it has itself.
const LAYOUTS: [Layout; CLASSES] = {
    let mut layouts = [Layout::new::<u8>(); CLASSES];
    let mut class = 0;
    while class < CLASSES {
        layouts[class] = match Layout::from_size_align((5 + class % 4) << (6 + class / 4), ALIGN) {
            Ok(layout) => layout,
            Err(_) => panic!("no layout"),
        };
        class += 1;
    }
    layouts
};

/// The class whose blocks are the smallest that take this; none if it is not for the shelves.
#[inline]
fn class_of(layout: Layout) -> Option<usize> {
    let is_shelved = SIZES.contains(&layout.size()) && layout.align() <= ALIGN;
    is_shelved.then(|| {
        let last = layout.size() - 1;
        let doubling = last.ilog2() as usize;
        (doubling - 8) * 4 + (last >> (doubling - 2)) % 4
    })
}

/// Blocks of a class that a thread keeps: what writes frees about as often as it takes, so that few lie here at a time.
const BLOCKS_MAX: usize = 64;

/// Bytes of a class that it keeps: eight frames of a rebalance, as many as one of three givers has under way. If there are as
/// many of every class, they are 13 MB; a member uses a few.
const BYTES_MAX: usize = 512 * 1024;

const fn blocks_max(class: usize) -> usize {
    let blocks = BYTES_MAX / LAYOUTS[class].size();
    if blocks < BLOCKS_MAX { blocks } else { BLOCKS_MAX }
}

struct Shelf {
    count: usize,
    /// The first `count` are on it.
    blocks: [*mut u8; BLOCKS_MAX],
}

struct Shelves([Shelf; CLASSES]);

thread_local! {
    /// This thread's; null if it has none. It has no destructor, with which an allocator could not use it.
    static SHELVES: Cell<*mut Shelves> = const { Cell::new(ptr::null_mut()) };
}

/// This thread has shelves from now on.
pub(crate) fn begin() {
    if SHELVES.get().is_null() {
        let shelf = || Shelf { count: 0, blocks: [ptr::null_mut(); BLOCKS_MAX] };
        SHELVES.set(Box::into_raw(Box::new(Shelves(std::array::from_fn(|_| shelf())))));
    }
}

/// This thread gives back what it has kept, and keeps nothing any more. One that ends without takes it along.
pub(crate) fn end() {
    let shelves = SHELVES.replace(ptr::null_mut());
    if shelves.is_null() {
        return;
    }
    // SAFETY: it comes from `begin`, on this thread, and nobody gets at it any more.
    let shelves = unsafe { Box::from_raw(shelves) };
    for (shelf, layout) in shelves.0.iter().zip(LAYOUTS) {
        for &block in &shelf.blocks[..shelf.count] {
            // SAFETY: what lies on a shelf was allocated with its class's layout, and is nobody's.
            unsafe { MiMalloc.dealloc(block, layout) };
        }
    }
}

/// The shelf of a class, for as long as `act` takes, which neither allocates nor frees.
#[inline]
fn on_shelf<R>(class: usize, act: impl FnOnce(&mut Shelf) -> Option<R>) -> Option<R> {
    // SAFETY: null, or this thread's own, which stays until `end` is called on this thread. There is one reference at a
    // time: no `act` allocates, frees or calls this again.
    unsafe { SHELVES.get().as_mut() }.and_then(|shelves| act(&mut shelves.0[class]))
}

fn take(class: usize) -> Option<*mut u8> {
    on_shelf(class, |shelf| {
        shelf.count = shelf.count.checked_sub(1)?;
        Some(shelf.blocks[shelf.count])
    })
}

/// None if there is no room for it.
fn keep(class: usize, block: *mut u8) -> Option<()> {
    on_shelf(class, |shelf| {
        *shelf.blocks[..blocks_max(class)].get_mut(shelf.count)? = block;
        shelf.count += 1;
        Some(())
    })
}

// SAFETY: A layout that has a class gets a block of that class's layout, which is at least as large and as aligned, on every
// thread, with shelves or without. So whatever is freed with a layout of a class is a block of it, and may serve any other
// layout of that class. A block is on one shelf at most: it gets there when it is freed, and leaves when it is taken. All
// other layouts are the allocator's own, from the beginning to the end. Nothing here panics: a class is below `CLASSES`.
unsafe impl GlobalAlloc for Recycling {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match class_of(layout) {
            // SAFETY: none of the layouts is of size zero.
            Some(class) => take(class).unwrap_or_else(|| unsafe { MiMalloc.alloc(LAYOUTS[class]) }),
            // SAFETY: it takes any size, and aligns every block to a word.
            None if layout.align() <= WORD => unsafe { mi_malloc(layout.size()).cast() },
            // SAFETY: as the caller's.
            None => unsafe { MiMalloc.alloc(layout) },
        }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match class_of(layout) {
            Some(class) if keep(class, block).is_some() => {}
            // SAFETY: it was allocated with that layout, as above.
            Some(class) => unsafe { MiMalloc.dealloc(block, LAYOUTS[class]) },
            // SAFETY: as the caller's.
            None => unsafe { MiMalloc.dealloc(block, layout) },
        }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if class_of(layout).is_none() {
            // SAFETY: as the caller's.
            return unsafe { MiMalloc.alloc_zeroed(layout) };
        }
        // SAFETY: as the caller's; the block is at least as large.
        unsafe {
            let block = self.alloc(layout);
            if !block.is_null() {
                block.write_bytes(0, layout.size());
            }
            block
        }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller promises that it is one.
        let wanted = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        match (class_of(layout), class_of(wanted)) {
            // SAFETY: as the caller's, and the allocator's own.
            (None, None) => unsafe { MiMalloc.realloc(block, layout, size) },
            (before, after) if before == after => block,
            // SAFETY: both blocks are at least as large as their layouts, and are two.
            _ => unsafe {
                let moved = self.alloc(wanted);
                if !moved.is_null() {
                    ptr::copy_nonoverlapping(block, moved, layout.size().min(size));
                    self.dealloc(block, layout);
                }
                moved
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use consort_group::Rng;

    use super::*;

    /// A block that knows what stands in it.
    struct Block {
        at: *mut u8,
        layout: Layout,
        filled_with: u8,
    }

    // SAFETY: it owns what it points to.
    unsafe impl Send for Block {}

    fn layout(size: usize) -> Layout {
        Layout::from_size_align(size, 8).unwrap()
    }

    impl Block {
        fn new(size: usize, filled_with: u8) -> Self {
            let layout = layout(size);
            // SAFETY: the size is not zero, and what is written is what was asked for.
            let at = unsafe {
                let at = Recycling.alloc(layout);
                at.write_bytes(filled_with, size);
                at
            };
            assert!(at.addr().is_multiple_of(layout.align()));
            Self { at, layout, filled_with }
        }

        fn bytes(&self) -> &[u8] {
            // SAFETY: all of it was written.
            unsafe { std::slice::from_raw_parts(self.at, self.layout.size()) }
        }

        fn check(&self) {
            assert!(self.bytes().iter().all(|&byte| byte == self.filled_with));
        }

        fn resize(&mut self, size: usize) {
            let kept = self.layout.size().min(size);
            // SAFETY: it was allocated with this layout, and the size is not zero.
            self.at = unsafe { Recycling.realloc(self.at, self.layout, size) };
            self.layout = layout(size);
            // SAFETY: so much is there and was written; the rest is written then.
            unsafe {
                let before = std::slice::from_raw_parts(self.at, kept);
                assert!(before.iter().all(|&byte| byte == self.filled_with));
                self.at.write_bytes(self.filled_with, size);
            }
        }
    }

    impl Drop for Block {
        fn drop(&mut self) {
            self.check();
            // SAFETY: it was allocated with this layout.
            unsafe { Recycling.dealloc(self.at, self.layout) };
        }
    }

    fn kept(class: usize) -> usize {
        on_shelf(class, |shelf| Some(shelf.count)).unwrap_or(0)
    }

    #[test]
    fn class_takes_what_is_in_it_and_wastes_a_fifth_at_most() {
        for size in (1..10_000).chain((10_000..300_000).step_by(7)) {
            let Some(class) = class_of(layout(size)) else {
                assert!(!SIZES.contains(&size));
                continue;
            };
            let block = LAYOUTS[class].size();
            assert!(size <= block && block <= size * 5 / 4, "{size} in {block}");
            assert!(class == 0 || LAYOUTS[class - 1].size() < size, "{size} is too small for {block}");
        }
        assert_eq!(class_of(Layout::from_size_align(1_024, 32).unwrap()), None);
        let all = (0..CLASSES).map(|class| LAYOUTS[class].size() * blocks_max(class));
        assert_eq!(all.sum::<usize>(), 13_305_856);
    }

    #[test]
    fn what_was_freed_last_is_taken_first_by_those_who_have_shelves() {
        begin();
        let block = Block::new(1_000, 1);
        let at = block.at;
        drop(block);
        assert_eq!(Block::new(1_024, 2).at, at);
        end();
        assert!(SHELVES.get().is_null());
        assert_eq!(kept(class_of(layout(1_000)).unwrap()), 0);
    }

    #[test]
    fn no_more_are_kept_than_there_is_room_for() {
        begin();
        for (size, most) in [(3_500, BLOCKS_MAX), (60_000, 8), (200_000, 2)] {
            let class = class_of(layout(size)).unwrap();
            let blocks: Vec<Block> = (0..3 * BLOCKS_MAX).map(|n| Block::new(size, n as u8)).collect();
            drop(blocks);
            assert_eq!(kept(class), most, "{size}");
        }
        end();
    }

    #[test]
    fn recycled_memory_is_zero_where_that_is_asked_for() {
        begin();
        drop(Block::new(2_000, 0xff));
        let layout = layout(1_900);
        // SAFETY: the size is not zero; it is freed with the same layout.
        unsafe {
            let block = Recycling.alloc_zeroed(layout);
            assert!(std::slice::from_raw_parts(block, 1_900).iter().all(|&byte| byte == 0));
            Recycling.dealloc(block, layout);
        }
        end();
    }

    #[test]
    fn blocks_keep_what_is_written_to_them_whoever_frees_and_resizes_them() {
        let (give, given) = mpsc::channel::<Block>();
        // One with shelves and one without, which free each other's.
        let other = std::thread::spawn(move || {
            let mut held = Vec::new();
            for (n, block) in given.into_iter().enumerate() {
                block.check();
                held.push(Block::new(1 + n * 7 % 9_000, n as u8));
                if n % 2 == 0 {
                    held.push(block);
                }
                if held.len() > 100 {
                    held.drain(..50);
                }
            }
        });
        begin();
        let mut rng = Rng::new(7);
        let mut held: Vec<Block> = Vec::new();
        for round in 0..20_000_u32 {
            let size = 1 + rng.below(9_000) as usize;
            match rng.below(4) {
                0 if !held.is_empty() => {
                    let at = rng.below(held.len() as u64) as usize;
                    held[at].resize(size);
                }
                1 if !held.is_empty() => {
                    let at = rng.below(held.len() as u64) as usize;
                    give.send(held.swap_remove(at)).unwrap();
                }
                2 if held.len() > 200 => held.truncate(100),
                _ => held.push(Block::new(size, round as u8)),
            }
        }
        drop(give);
        other.join().unwrap();
        drop(held);
        end();
    }
}
