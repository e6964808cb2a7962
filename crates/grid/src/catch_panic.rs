//! A panic of the application's function fails the request and not the member: otherwise the next owner would
//! get the same request, and would stop likewise.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// The panic hook has printed the message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Panicked;

/// The function uses copies of the grid's data, or data that is not read after a panic.
pub(crate) fn catch_panic<R>(call: impl FnOnce() -> R) -> Result<R, Panicked> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|_| Panicked)
}
