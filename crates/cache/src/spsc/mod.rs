//! A bounded lock-free queue from one thread to one task: the [`Producer`] pushes values and wakes the [`Consumer`], which
//! acknowledges them the same way. Neither side waits for the other. `tests/spsc_orders.rs` checks all interleavings with loom,
//! `tests/spsc_threads.rs` runs in Miri.

mod queue;
mod sync;

pub(crate) use queue::{Consumer, Producer, channel};
