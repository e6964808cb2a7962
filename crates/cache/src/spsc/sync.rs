//! Loom's primitives replace these in tests.

pub(crate) use std::sync::Arc;
pub(crate) use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The used part of loom's cell: with a closure loom can track the access.
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

#[derive(Debug, Default)]
pub(crate) struct TaskWaker(atomic_waker::AtomicWaker);

impl TaskWaker {
    pub(crate) fn register(&self, waker: &std::task::Waker) {
        self.0.register(waker);
    }

    pub(crate) fn take(&self) -> Option<std::task::Waker> {
        self.0.take()
    }
}
