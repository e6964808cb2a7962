//! A bounded lock-free queue from one thread to one task. Neither side waits for the other.
//! `tests/spsc_orders.rs` checks all interleavings with loom, `tests/spsc_threads.rs` runs in Miri.

mod queue;
mod sync;

pub(crate) use queue::{Consumer, Producer, channel};
