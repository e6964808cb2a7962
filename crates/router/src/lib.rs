//! A router for members that cannot discover or reach each other: JGroups' GossipRouter, with the same frames, so
//! that members and routers of both kinds work together.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> std::io::Result<()> {
//! use consort_router::{Router, RouterConfig};
//!
//! let router = Router::start(&RouterConfig { port: 0, ..RouterConfig::default() }).await?;
//! println!("members register at {}", router.local_addr());
//! assert_eq!(router.member_count(), 0);
//! router.close().await;
//! # Ok(())
//! # }
//! ```
//!
//! Members with TCPGOSSIP register with one or several routers and query them for other members. JGroups' members
//! with TUNNEL send all messages through one. A router has no persistent state: members register again after its
//! restart.
//!
//! [`Routes`] is its state, without sockets or a clock; [`Router`] serves it on a socket; [`list_members`] queries another
//! router for its members.

#![forbid(unsafe_code)]

mod connection;
mod outbox;
mod query;
mod router;
mod routes;
mod shared;

pub use query::{RouterQueryError, list_members};
pub use router::{Router, RouterConfig};
pub use routes::{Client, Delivery, GROUP_MEMBERS_MAX, MEMBERS_MAX, Routed, Routes, own_group_name};
