//! A thread's recently freed blocks, which it allocates next.
//!
//! Without it, freeing an old value and searching a page for a free block take 7 % of a member's time at 80 %
//! reads (docs/lab/2026-11-performance.md). The last freed block is still in the CPU's cache.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::{Cell, UnsafeCell};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use libmimalloc_sys::mi_malloc;
use mimalloc::MiMalloc;

pub(super) struct RecyclingAllocator;

/// The allocator aligns blocks of the cached sizes so anyway.
const ALIGN: usize = 16;

/// The alignment of every block. Requests for no more avoid the allocator's check: iteration with two blocks
/// for each entry is 8 % faster.
const WORD: usize = size_of::<usize>();

/// The allocator finds smaller blocks quickly, because many lie in one page. The largest are read buffers of
/// connections with part of a packet before them.
const SIZES: std::ops::RangeInclusive<usize> = 257..=256 * 1024;

const CLASSES: usize = 40;

/// Four to a doubling, as in the allocator itself.
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

#[inline]
fn class_of(layout: Layout) -> Option<usize> {
    let is_cached = SIZES.contains(&layout.size()) && layout.align() <= ALIGN;
    is_cached.then(|| {
        let last = layout.size() - 1;
        let doubling = last.ilog2() as usize;
        (doubling - 8) * 4 + (last >> (doubling - 2)) % 4
    })
}

/// Writes free about as often as they allocate, so few blocks of a class lie here at a time.
const BLOCKS_MAX: usize = 64;

/// Eight frames of a rebalance, as many as one of three providers has under way.
const BYTES_MAX: usize = 512 * 1024;

/// The bound of all classes of a thread. Without it, two threads kept 26 MB of a cache with a `max-size` of 50
/// MB, and every block holds a page of the allocator, of up to 4 MiB.
const ALL_BYTES_MAX: usize = 2 * 1024 * 1024;

/// A sweep frees blocks that the thread has not needed meanwhile: values of changing sizes leave blocks that no
/// write allocates again.
const FREED_BETWEEN_SWEEPS: u32 = 1_024;

const fn blocks_max(class: usize) -> usize {
    let blocks = BYTES_MAX / LAYOUTS[class].size();
    if blocks < BLOCKS_MAX { blocks } else { BLOCKS_MAX }
}

struct SizeClass {
    count: usize,
    least: usize,
    /// The first `count` are blocks.
    blocks: [*mut u8; BLOCKS_MAX],
}

struct ThreadCache {
    bytes: usize,
    freed: u32,
    classes: [SizeClass; CLASSES],
}

impl ThreadCache {
    fn new() -> Self {
        let size_class = || SizeClass { count: 0, least: 0, blocks: [ptr::null_mut(); BLOCKS_MAX] };
        Self { bytes: 0, freed: 0, classes: std::array::from_fn(|_| size_class()) }
    }

    #[inline]
    fn take(&mut self, class: usize) -> Option<*mut u8> {
        let size_class = &mut self.classes[class];
        size_class.count = size_class.count.checked_sub(1)?;
        size_class.least = size_class.least.min(size_class.count);
        self.bytes -= LAYOUTS[class].size();
        Some(size_class.blocks[size_class.count])
    }

    #[inline]
    fn keep(&mut self, class: usize, block: *mut u8) -> Option<()> {
        self.freed += 1;
        if self.freed == FREED_BETWEEN_SWEEPS {
            self.sweep();
        }
        let bytes = self.bytes + LAYOUTS[class].size();
        if bytes > ALL_BYTES_MAX {
            return None;
        }
        let size_class = &mut self.classes[class];
        *size_class.blocks[..blocks_max(class)].get_mut(size_class.count)? = block;
        size_class.count += 1;
        self.bytes = bytes;
        Some(())
    }

    #[cold]
    fn sweep(&mut self) {
        self.freed = 0;
        for (size_class, layout) in self.classes.iter_mut().zip(LAYOUTS) {
            for &block in &size_class.blocks[..size_class.least] {
                // SAFETY: a block of a size class was allocated with the class's layout, and nothing else refers to it.
                unsafe { MiMalloc.dealloc(block, layout) };
            }
            size_class.blocks.copy_within(size_class.least..size_class.count, 0);
            size_class.count -= size_class.least;
            self.bytes -= size_class.least * layout.size();
            size_class.least = size_class.count;
        }
    }
}

impl Drop for ThreadCache {
    fn drop(&mut self) {
        // The first sweep may find blocks that were needed; the second frees them.
        self.sweep();
        self.sweep();
    }
}

/// Another thread may sweep it while this one waits for work.
struct Owner {
    is_parked: Mutex<bool>,
    cache: UnsafeCell<ThreadCache>,
}

// SAFETY: The cache is accessed by its thread while `is_parked` is false, and under the lock of `is_parked` while it is
// true. Only its thread changes `is_parked`, under the lock. The blocks in the cache may be freed by any thread.
unsafe impl Send for Owner {}
// SAFETY: as above.
unsafe impl Sync for Owner {}

impl Owner {
    fn set_parked(&self, is_parked: bool) {
        *self.is_parked.lock().unwrap_or_else(PoisonError::into_inner) = is_parked;
    }

    fn sweep_if_parked(&self) {
        let is_parked = self.is_parked.lock().unwrap_or_else(PoisonError::into_inner);
        if *is_parked {
            // SAFETY: the thread is parked, and stays so while the lock is held.
            unsafe { (*self.cache.get()).sweep() };
        }
    }
}

static OWNERS: Mutex<Vec<Arc<Owner>>> = Mutex::new(Vec::new());

thread_local! {
    /// Null if the thread has no cache or is parked. It has no destructor, because an allocator could not use it then.
    static CACHE: Cell<*mut ThreadCache> = const { Cell::new(ptr::null_mut()) };

    /// Set from [`begin`] to [`end`].
    static OWNER: Cell<*const Owner> = const { Cell::new(ptr::null()) };

    /// The last turn in which this thread collected blocks of its pages that other threads have freed.
    static COLLECTED_IN: Cell<u32> = const { Cell::new(0) };
}

static TURN: AtomicU32 = AtomicU32::new(0);

pub(crate) fn begin() {
    if OWNER.get().is_null() {
        let owner = Owner { is_parked: Mutex::new(false), cache: UnsafeCell::new(ThreadCache::new()) };
        let owner = Arc::new(owner);
        OWNER.set(Arc::as_ptr(&owner));
        let cache = owner.cache.get();
        OWNERS.lock().unwrap_or_else(PoisonError::into_inner).push(owner);
        CACHE.set(cache);
    }
}

/// A thread that ends without this call leaks its blocks and its cache.
pub(crate) fn end() {
    CACHE.set(ptr::null_mut());
    let owner = OWNER.replace(ptr::null());
    let mut owners = OWNERS.lock().unwrap_or_else(PoisonError::into_inner);
    let ended = owners.iter().position(|other| ptr::eq(Arc::as_ptr(other), owner));
    let ended = ended.map(|at| owners.swap_remove(at));
    drop(owners);
    drop(ended);
}

/// This thread waits for work: its blocks may be freed meanwhile. Once in a turn it collects its pages'
/// blocks that other threads have freed, because the allocator checks those only at an allocation of their
/// size.
pub(crate) fn park() {
    CACHE.set(ptr::null_mut());
    let turn = TURN.load(Ordering::Relaxed);
    if COLLECTED_IN.replace(turn) != turn {
        super::return_expired_memory();
    }
    // SAFETY: null, or this thread's own, which stays until `end` is called on this thread.
    if let Some(owner) = unsafe { OWNER.get().as_ref() } {
        owner.set_parked(true);
    }
}

pub(crate) fn unpark() {
    // SAFETY: as above.
    if let Some(owner) = unsafe { OWNER.get().as_ref() } {
        owner.set_parked(false);
        CACHE.set(owner.cache.get());
    }
}

/// Frees blocks that waiting threads have not needed since the last call.
pub(super) fn sweep_parked() {
    TURN.fetch_add(1, Ordering::Relaxed);
    let owners = OWNERS.lock().unwrap_or_else(PoisonError::into_inner).clone();
    owners.iter().for_each(|owner| owner.sweep_if_parked());
}

/// `act` calls the allocator below, not this one.
#[inline]
fn with_cache<R>(act: impl FnOnce(&mut ThreadCache) -> Option<R>) -> Option<R> {
    // SAFETY: null, or this thread's own, which stays until `end` is called on this thread. While it is not null no other
    // thread looks at it. There is one reference at a time: no `act` comes back here.
    unsafe { CACHE.get().as_mut() }.and_then(act)
}

fn take(class: usize) -> Option<*mut u8> {
    with_cache(|cache| cache.take(class))
}

fn keep(class: usize, block: *mut u8) -> Option<()> {
    with_cache(|cache| cache.keep(class, block))
}

// SAFETY: A layout that has a class gets a block of that class's layout, which is at least as large and as aligned, on every
// thread, with a cache or without. So a block that is freed with a layout of a class is one of the class, and may serve any other
// layout of that class. A block is in one cache at most: it gets there when it is freed, and leaves when it is taken. All
// other layouts are the allocator's own, from the beginning to the end. Nothing here panics: a class is below `CLASSES`.
unsafe impl GlobalAlloc for RecyclingAllocator {
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

    struct Block {
        at: *mut u8,
        layout: Layout,
        filled_with: u8,
    }

    // SAFETY: it owns the memory that it points to.
    unsafe impl Send for Block {}

    fn layout(size: usize) -> Layout {
        Layout::from_size_align(size, 8).unwrap()
    }

    impl Block {
        fn new(size: usize, filled_with: u8) -> Self {
            let layout = layout(size);
            // SAFETY: the size is not zero, and the bytes written are within the allocation.
            let at = unsafe {
                let at = RecyclingAllocator.alloc(layout);
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
            self.at = unsafe { RecyclingAllocator.realloc(self.at, self.layout, size) };
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
            unsafe { RecyclingAllocator.dealloc(self.at, self.layout) };
        }
    }

    fn kept(class: usize) -> usize {
        with_cache(|cache| Some(cache.classes[class].count)).unwrap_or(0)
    }

    #[test]
    fn class_fits_its_layouts_and_wastes_a_fifth_at_most() {
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
    fn block_freed_last_is_allocated_first() {
        begin();
        let block = Block::new(1_000, 1);
        let at = block.at;
        drop(block);
        assert_eq!(Block::new(1_024, 2).at, at);
        end();
        assert!(CACHE.get().is_null());
        assert_eq!(kept(class_of(layout(1_000)).unwrap()), 0);
    }

    #[test]
    fn blocks_beyond_the_capacity_of_a_class_are_freed() {
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
    fn blocks_of_all_classes_together_are_kept_up_to_a_bound_in_bytes() {
        begin();
        for (class, layout) in LAYOUTS.iter().enumerate() {
            drop((0..blocks_max(class)).map(|n| Block::new(layout.size(), n as u8)).collect::<Vec<_>>());
        }
        let kept: usize = (0..CLASSES).map(|class| kept(class) * LAYOUTS[class].size()).sum();
        assert_eq!(with_cache(|cache| Some(cache.bytes)), Some(kept));
        assert!((ALL_BYTES_MAX / 2..=ALL_BYTES_MAX).contains(&kept), "{kept}");
        end();
    }

    #[test]
    fn blocks_of_a_size_that_is_no_longer_taken_are_freed_while_others_are_used() {
        begin();
        let [rare, usual] = [20_000, 1_000].map(|size| class_of(layout(size)).unwrap());
        drop((0..20).map(|n| Block::new(20_000, n)).collect::<Vec<_>>());
        assert_eq!(kept(rare), 20);
        (0..2 * FREED_BETWEEN_SWEEPS).for_each(|n| drop(Block::new(1_000, n as u8)));
        assert_eq!((kept(rare), kept(usual)), (0, 1));
        end();
    }

    #[test]
    fn blocks_of_a_thread_that_waits_are_freed_by_another() {
        begin();
        let class = class_of(layout(20_000)).unwrap();
        let free = || drop((0..20).map(|n| Block::new(20_000, n)).collect::<Vec<_>>());
        let sweep =
            || std::thread::scope(|scope| drop(scope.spawn(|| (0..2).for_each(|_| sweep_parked())).join()));
        free();
        sweep();
        assert_eq!(kept(class), 20, "a thread that works keeps them");
        park();
        // Blocks that a thread allocates and frees while it is parked are not kept.
        free();
        sweep();
        unpark();
        assert_eq!(kept(class), 0);
        free();
        assert_eq!(kept(class), 20, "a thread that has work again keeps what it frees");
        end();
    }

    #[test]
    fn recycled_memory_is_zeroed_on_request() {
        begin();
        drop(Block::new(2_000, 0xff));
        let layout = layout(1_900);
        // SAFETY: the size is not zero; it is freed with the same layout.
        unsafe {
            let block = RecyclingAllocator.alloc_zeroed(layout);
            assert!(std::slice::from_raw_parts(block, 1_900).iter().all(|&byte| byte == 0));
            RecyclingAllocator.dealloc(block, layout);
        }
        end();
    }

    #[test]
    fn blocks_keep_their_bytes_when_other_threads_free_and_resize_them() {
        let (give, given) = mpsc::channel::<Block>();
        // One with a cache and one without, which free each other's.
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
