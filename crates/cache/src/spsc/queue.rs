//! The queue: a ring of slots, each owned by one side at a time.
//!
//! `pushed` and `popped` only grow. The slots from `popped` to `pushed` are filled and the consumer's; the others are empty and
//! the producer's. Only the producer writes `pushed`, after filling a slot; only the consumer writes `popped`, after emptying
//! one. Writes use `Release` and the other side's reads `Acquire`, so that a side sees the contents of its slots.
#![allow(unsafe_code)]

use std::fmt;
use std::mem::MaybeUninit;
use std::task::Waker;

use super::sync::{Arc, AtomicBool, AtomicUsize, Ordering, TaskWaker, UnsafeCell};

struct Shared<T> {
    /// A power of two, so that counts may wrap around.
    slots: Box<[UnsafeCell<MaybeUninit<T>>]>,
    pushed: AtomicUsize,
    popped: AtomicUsize,
    done: AtomicUsize,
    /// The producer is notified and has not read the acknowledgements since.
    is_notified: AtomicBool,
    waker: TaskWaker,
}

// SAFETY: values move between threads, which `T: Send` allows. A slot is never owned by both sides (see
// above): there is one `Producer` and one `Consumer`, neither can be cloned, and each accesses slots with
// `&mut self` only.
unsafe impl<T: Send> Sync for Shared<T> {}
// SAFETY: as for `Sync`.
unsafe impl<T: Send> Send for Shared<T> {}

impl<T> Shared<T> {
    fn slot(&self, count: usize) -> &UnsafeCell<MaybeUninit<T>> {
        &self.slots[count & (self.slots.len() - 1)]
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        let (mut at, end) = (self.popped.load(Ordering::Acquire), self.pushed.load(Ordering::Acquire));
        while at != end {
            // SAFETY: both sides are dropped. The slots from `popped` to `pushed` are filled.
            self.slot(at).with_mut(|slot| unsafe { (*slot).assume_init_drop() });
            at = at.wrapping_add(1);
        }
    }
}

pub(crate) struct Producer<T> {
    shared: Arc<Shared<T>>,
    /// As in `shared`, which only this side writes.
    pushed: usize,
    done: usize,
}

pub(crate) struct Consumer<T> {
    shared: Arc<Shared<T>>,
    popped: usize,
    done: usize,
}

impl<T> fmt::Debug for Producer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "producer of {}", self.pushed)
    }
}

impl<T> fmt::Debug for Consumer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "consumer of {}", self.popped)
    }
}

/// Room is rounded up to a power of two.
pub(crate) fn channel<T>(room: usize) -> (Producer<T>, Consumer<T>) {
    let slots = (0..room.next_power_of_two()).map(|_| UnsafeCell::new(MaybeUninit::uninit())).collect();
    let shared = Arc::new(Shared {
        slots,
        pushed: AtomicUsize::new(0),
        popped: AtomicUsize::new(0),
        done: AtomicUsize::new(0),
        is_notified: AtomicBool::new(false),
        waker: TaskWaker::default(),
    });
    (Producer { shared: shared.clone(), pushed: 0, done: 0 }, Consumer { shared, popped: 0, done: 0 })
}

impl<T> Producer<T> {
    pub(crate) fn has_room(&self) -> bool {
        self.pushed.wrapping_sub(self.shared.popped.load(Ordering::Acquire)) < self.shared.slots.len()
    }

    /// Does not wake the consumer: see [`Producer::take_waker`].
    ///
    /// # Errors
    ///
    /// Returns the value if the queue is full.
    pub(crate) fn push(&mut self, value: T) -> Result<(), T> {
        if !self.has_room() {
            return Err(value);
        }
        // SAFETY: not all slots are filled, so this one is empty, and the consumer does not access it until
        // `pushed` includes it.
        self.shared.slot(self.pushed).with_mut(|slot| unsafe { (*slot).write(value) });
        self.pushed = self.pushed.wrapping_add(1);
        self.shared.pushed.store(self.pushed, Ordering::Release);
        Ok(())
    }

    /// Wake the waiting consumer after releasing locks.
    pub(crate) fn take_waker(&self) -> Option<Waker> {
        self.shared.waker.take()
    }

    /// Returns the acknowledgements since the last call. Call it after [`Consumer::ack`] returned true.
    pub(crate) fn take_acks(&mut self) -> usize {
        // Reset first: a consumer that finds the mark set relies on this read.
        self.shared.is_notified.swap(false, Ordering::AcqRel);
        self.poll_acks()
    }

    /// As [`Producer::take_acks`], but keeps the consumer's notification.
    pub(crate) fn poll_acks(&mut self) -> usize {
        let done = self.shared.done.load(Ordering::Acquire);
        done.wrapping_sub(std::mem::replace(&mut self.done, done))
    }
}

impl<T> Consumer<T> {
    pub(crate) fn pop(&mut self) -> Option<T> {
        if self.popped == self.shared.pushed.load(Ordering::Acquire) {
            return None;
        }
        // SAFETY: `pushed` includes the slot, so it is filled, and only this consumer empties it, once.
        let value = self.shared.slot(self.popped).with_mut(|slot| unsafe { (*slot).assume_init_read() });
        self.popped = self.popped.wrapping_add(1);
        self.shared.popped.store(self.popped, Ordering::Release);
        Some(value)
    }

    /// Wakes this task at a later push. Check for earlier values afterwards.
    pub(crate) fn register(&self, waker: &Waker) {
        self.shared.waker.register(waker);
    }

    /// Returns whether to notify the producer to call [`Producer::take_acks`]; false if a notification is
    /// pending.
    pub(crate) fn ack(&mut self) -> bool {
        self.ack_silently();
        !self.shared.is_notified.swap(true, Ordering::AcqRel)
    }

    pub(crate) fn ack_silently(&mut self) {
        self.done = self.done.wrapping_add(1);
        self.shared.done.store(self.done, Ordering::Release);
    }
}
