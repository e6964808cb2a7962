//! Calls of the application's functions. What panics there ends what it was called for, and not the member that has called it:
//! the next owner would be asked for the same, and would end likewise.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// The application's function has panicked. What it said the panic hook has told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Panicked;

/// What a function gives. It works on copies of what the grid has, or on what nobody looks at after a panic.
pub(crate) fn guarded<R>(call: impl FnOnce() -> R) -> Result<R, Panicked> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|_| Panicked)
}
