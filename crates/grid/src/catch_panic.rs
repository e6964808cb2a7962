//! Calls of the application's functions. A panic there fails the request, and does not stop the member. Otherwise the
//! next owner would get the same request, and would stop likewise.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// The error of an application's function that has panicked. The panic hook has printed its message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Panicked;

/// Calls a function and catches its panic. The function uses copies of the grid's data, or data that is not read
/// after a panic.
pub(crate) fn catch_panic<R>(call: impl FnOnce() -> R) -> Result<R, Panicked> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|_| Panicked)
}
