//! What the queue is made of. The tests put loom's in its place.

pub(crate) use std::sync::Arc;
pub(crate) use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Loom's cell, as far as it is used: it is entered with a function, so that loom can see for how long.
#[derive(Debug)]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    pub(crate) fn with_mut<R>(&self, act: impl FnOnce(*mut T) -> R) -> R {
        act(self.0.get())
    }
}

/// The task that waits.
#[derive(Debug, Default)]
pub(crate) struct TaskWaker(atomic_waker::AtomicWaker);

impl TaskWaker {
    pub(crate) fn register(&self, waker: &std::task::Waker) {
        self.0.register(waker);
    }

    pub(crate) fn pop(&self) -> Option<std::task::Waker> {
        self.0.take()
    }
}
