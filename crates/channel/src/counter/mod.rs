//! Distributed atomic counters, as JGroups' CounterService; the stack of all members needs COUNTER.
//!
//! The coordinator holds the counters and carries out all operations. The members after it, as many as `num_backups`, get
//! each change. When another member becomes coordinator, it asks all members for their counters (RECONCILE), keeps the newest
//! versions, and asks for the operations without a response. Until then operations wait.
//!
//! **An operation whose coordinator crashes may be carried out twice**: the new coordinator cannot know whether a backup has got
//! the change if the caller has no response. As in JGroups, a deleted counter may be back after a change of coordinator, because
//! other members are not notified of the deletion. After a partition the newer version of a counter, which had more
//! changes, replaces the other one if the coordinator is a Consort member; a coordinator of JGroups keeps its own one.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use consort_channel::Channel;
//! use consort_channel::counter::CounterService;
//!
//! // The stack contains <COUNTER/>.
//! let channel = Channel::from_file("counters.xml")?.connect("cluster").await?;
//! let counters = CounterService::new(&channel)?;
//! let tickets = counters.get_or_create("tickets", 0).await?;
//! println!("ticket {}", tickets.increment_and_get().await?);
//! # Ok(())
//! # }
//! ```

mod error;
mod handler;
mod limits;
mod recent;
mod service;
mod state;
mod table;

#[cfg(test)]
mod tests;

pub(crate) use handler::CounterHandler;

pub use error::CounterError;
pub use limits::{NAME_BYTES_MAX, PENDING_MAX};
pub use service::{Counter, CounterService};
