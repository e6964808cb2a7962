//! All callbacks are called even if one panics, because their callers would wait for ever.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

#[derive(Default)]
pub(super) struct Callbacks {
    panic: Option<Box<dyn Any + Send>>,
}

impl Callbacks {
    /// `None` if the callback panics.
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

    pub(super) fn end(self) {
        if let Some(panic) = self.panic {
            resume_unwind(panic);
        }
    }
}
