#![allow(unsafe_code)]

mod available_memory;
mod limit;
mod reserve;
mod thread_cache;

use libmimalloc_sys::{mi_option_set_default, mi_option_t};

pub(crate) use limit::Memory;
pub(crate) use reserve::{Reserve, amount, check};
pub(crate) use thread_cache::{begin as enable_thread_cache, end as disable_thread_cache, park, unpark};

/// Faster than the system's for small messages.
#[global_allocator]
static ALLOCATOR: thread_cache::RecyclingAllocator = thread_cache::RecyclingAllocator;

/// `mi_option_purge_delay` of mimalloc 3, which the bindings do not name: milliseconds until free memory goes
/// back to the system.
const PURGE_DELAY: mi_option_t = 15;

/// The allocator's default of 1 s costs 4 % of a member's time at 80 % reads: the kernel clears memory that is
/// taken anew.
const PURGE_DELAY_MS: libc::c_long = 10_000;

/// Unless `MIMALLOC_PURGE_DELAY` is set.
pub(crate) fn set_purge_delay() {
    // SAFETY: called before any thread is started, with an option that exists, as the function asks for; it changes a
    // number that the allocator looks at from time to time.
    unsafe { mi_option_set_default(PURGE_DELAY, PURGE_DELAY_MS) };
}

fn keep_memory() {
    limit::KEEPS_MEMORY.store(true, std::sync::atomic::Ordering::Relaxed);
    // SAFETY: as above; the caller has no other threads.
    unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY, -1) };
}

fn return_free_memory() {
    // SAFETY: it may be called at any time, from any thread.
    unsafe { libmimalloc_sys::mi_collect(true) };
}

/// An idle process needs this: the allocator itself checks only when memory is taken.
fn return_expired_memory() {
    // SAFETY: it may be called at any time, from any thread.
    unsafe { libmimalloc_sys::mi_collect(false) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn purge_delay_sets_the_allocators_option() {
        // SAFETY: as above; the option is only read.
        let usual = unsafe { libmimalloc_sys::mi_option_get(PURGE_DELAY) };
        assert!([1_000, PURGE_DELAY_MS].contains(&usual), "{usual}: another option, or another default");
        set_purge_delay();
        // SAFETY: as above.
        assert_eq!(unsafe { libmimalloc_sys::mi_option_get(PURGE_DELAY) }, PURGE_DELAY_MS);
    }
}
