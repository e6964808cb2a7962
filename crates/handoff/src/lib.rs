//! What one thread hands to a task, in order and without a lock: a [`Producer`] puts it into a bounded queue and wakes the
//! [`Consumer`], who says the same way with how much it is done.
//!
//! Whoever comes to the queue never waits, whatever the other one is doing. `tests/orders.rs` has loom try every order in
//! which two threads can meet there.

mod queue;
mod sync;

pub use queue::{Consumer, Producer, channel};
