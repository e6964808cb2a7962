//! Limits of bytes that many connections and requests share.
//!
//! ```
//! use consort_memory::Budget;
//!
//! let process = Budget::new("process", 1_000);
//! let requests = process.child("requests", 600);
//! let request = requests.try_reserve(500)?;
//! assert!(requests.try_reserve(200).is_err());
//! drop(request);
//! assert_eq!(process.used(), 0);
//! # Ok::<(), consort_memory::Exceeded>(())
//! ```
//!
//! A limit per item (a request, a connection) does not bound memory, because the peer chooses the number of items. A
//! [`Budget`] bounds the sum: each holder keeps a [`Reservation`] for its bytes, which also counts in all budgets above.
//!
//! [`ProcessMemory`] decides whether writes may add entries, by the memory in use and its limit.

#![forbid(unsafe_code)]

mod budget;
mod limit;
mod process;
mod reservation;

pub use budget::{Budget, Usage};
pub use limit::Exceeded;
pub use process::{MemoryLimit, MemoryUsage, ProcessMemory, Shortage};
pub use reservation::Reservation;
