//! A bounded lock-free queue from one thread to one task: the [`Producer`] pushes values and wakes the
//! [`Consumer`], which acknowledges them the same way.
//!
//! ```
//! let (mut producer, mut consumer) = consort_handoff::channel(8);
//! assert_eq!(producer.push("a"), Ok(()));
//! assert_eq!(consumer.pop(), Some("a"));
//! consumer.ack();
//! assert_eq!(producer.take_acks(), 1);
//! ```
//!
//! Neither side ever waits for the other. `tests/orders.rs` checks all interleavings with loom.

mod queue;
mod sync;

pub use queue::{Consumer, Producer, channel};
