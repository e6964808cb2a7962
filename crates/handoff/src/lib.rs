//! What one thread hands to a task, in order and without a lock: a [`Giver`] puts it into a bounded queue and wakes the
//! [`Taker`], who says the same way with how much it is done.
//!
//! Whoever comes to the queue never waits, whatever the other one is doing. `tests/orders.rs` has loom try every order in
//! which two threads can meet there.

mod queue;
mod sync;

pub use queue::{Giver, Taker, handoff};
