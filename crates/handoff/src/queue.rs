//! The queue: a ring of slots, each of which belongs to one side at a time.
//!
//! `pushed` and `popped` only grow. The slots from `popped` to `pushed` hold something and belong to the taker, the others are
//! empty and belong to the giver. Only the giver writes `pushed`, after it has filled a slot, and only the taker writes
//! `popped`, after it has emptied one; each is written with `Release` and read by the other side with `Acquire`, so who sees
//! that a slot is its own sees what was done to it before.
#![allow(unsafe_code)]

use std::fmt;
use std::mem::MaybeUninit;
use std::task::Waker;

use crate::sync::{Arc, AtomicBool, AtomicUsize, Ordering, TaskWaker, UnsafeCell};

struct Shared<T> {
    /// A power of two, so that counts may wrap around.
    slots: Box<[UnsafeCell<MaybeUninit<T>>]>,
    pushed: AtomicUsize,
    popped: AtomicUsize,
    /// Of those taken, with how many the taker is done.
    done: AtomicUsize,
    /// Whether the taker has said so, and the giver has not looked since.
    is_notified: AtomicBool,
    waker: TaskWaker,
}

// SAFETY: values go from one thread to another, which `T: Send` allows. A slot is never with both at once (see above): there
// is one `Producer` and one `Consumer`, neither can be cloned, and each enters slots with `&mut self` only.
unsafe impl<T: Send> Sync for Shared<T> {}
// SAFETY: the same.
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
            // SAFETY: both sides are gone. What lies from `popped` to `pushed` was filled and not emptied.
            self.slot(at).with_mut(|slot| unsafe { (*slot).assume_init_drop() });
            at = at.wrapping_add(1);
        }
    }
}

/// The side that puts things in.
pub struct Producer<T> {
    shared: Arc<Shared<T>>,
    /// As in `shared`, which only it writes.
    pushed: usize,
    /// How far the taker was when it was looked at last.
    done: usize,
}

/// The side that takes things out, a task.
pub struct Consumer<T> {
    shared: Arc<Shared<T>>,
    /// As in `shared`, which only it writes.
    popped: usize,
    /// As in `shared`, which only it writes.
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

/// A queue with room for `room` things, or a few more: up to the next power of two.
pub fn channel<T>(room: usize) -> (Producer<T>, Consumer<T>) {
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
    /// Whether there is room for one more.
    pub fn has_room(&self) -> bool {
        self.pushed.wrapping_sub(self.shared.popped.load(Ordering::Acquire)) < self.shared.slots.len()
    }

    /// Puts something in. The taker is not woken by that: see [`Producer::take_waker`].
    ///
    /// # Errors
    ///
    /// There is no room; it is handed back.
    pub fn push(&mut self, value: T) -> Result<(), T> {
        if !self.has_room() {
            return Err(value);
        }
        // SAFETY: fewer than all slots hold something, so this one is empty, and the taker keeps off it until `pushed` says
        // that it is filled.
        self.shared.slot(self.pushed).with_mut(|slot| unsafe { (*slot).write(value) });
        self.pushed = self.pushed.wrapping_add(1);
        self.shared.pushed.store(self.pushed, Ordering::Release);
        Ok(())
    }

    /// Who is to be woken after something was put in, if the taker waits: for where locks are held in which nobody is woken.
    pub fn take_waker(&self) -> Option<Waker> {
        self.shared.waker.take()
    }

    /// With how many more the taker is done since this was asked last, after [`Consumer::ack`] has said that the giver is to be
    /// told.
    pub fn take_acks(&mut self) -> usize {
        // First: who finds it said counts on being heard.
        self.shared.is_notified.swap(false, Ordering::AcqRel);
        self.poll_acks()
    }

    /// The same, while the taker goes on thinking that the giver is told already.
    pub fn poll_acks(&mut self) -> usize {
        let done = self.shared.done.load(Ordering::Acquire);
        done.wrapping_sub(std::mem::replace(&mut self.done, done))
    }
}

impl<T> Consumer<T> {
    /// Takes what was put in first.
    pub fn pop(&mut self) -> Option<T> {
        if self.popped == self.shared.pushed.load(Ordering::Acquire) {
            return None;
        }
        // SAFETY: `pushed` says that the slot was filled, and nobody but this taker empties it, once.
        let value = self.shared.slot(self.popped).with_mut(|slot| unsafe { (*slot).assume_init_read() });
        self.popped = self.popped.wrapping_add(1);
        self.shared.popped.store(self.popped, Ordering::Release);
        Some(value)
    }

    /// This task is to be woken when something is put in from now on. What was put in before has to be looked for once more
    /// afterwards.
    pub fn register(&self, waker: &Waker) {
        self.shared.waker.register(waker);
    }

    /// It is done with one more. Gives whether the giver has to be told to [`Producer::take_acks`]: it was told otherwise, and has not
    /// listened yet.
    pub fn ack(&mut self) -> bool {
        self.ack_silently();
        !self.shared.is_notified.swap(true, Ordering::AcqRel)
    }

    /// The same for one with which nobody waits for it to be done.
    pub fn ack_silently(&mut self) {
        self.done = self.done.wrapping_add(1);
        self.shared.done.store(self.done, Ordering::Release);
    }
}
