//! A bounded lock-free queue from one thread to one task: the [`Producer`] pushes values and wakes the
//! [`Consumer`], which acknowledges them the same way.
//!
//! Neither side ever waits for the other. `tests/orders.rs` checks all interleavings with loom.

mod queue;
mod sync;

pub use queue::{Consumer, Producer, channel};
