//! Callbacks that are called one after the other, though one of them panics.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// The callbacks of one step of a writer. After one panics, the others are called all the same: their callers would wait for ever
/// otherwise.
#[derive(Default)]
pub(super) struct Callbacks {
    panic: Option<Box<dyn Any + Send>>,
}

impl Callbacks {
    /// None: it has panicked.
    pub(super) fn call<R>(&mut self, callback: impl FnOnce() -> R) -> Option<R> {
        let called = catch_unwind(AssertUnwindSafe(callback));
        called.map_err(|panic| self.panic.get_or_insert(panic)).ok()
    }

    pub(super) fn call_all<C: FnOnce()>(&mut self, callbacks: impl IntoIterator<Item = C>) {
        for callback in callbacks {
            self.call(callback);
        }
    }

    pub(super) const fn has_panicked(&self) -> bool {
        self.panic.is_some()
    }

    /// The first panic goes on, if there was one.
    pub(super) fn end(self) {
        if let Some(panic) = self.panic {
            resume_unwind(panic);
        }
    }
}
