//! A router for members that cannot discover or reach each other: JGroups' GossipRouter, with the same frames.
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
//! Members with TCPGOSSIP register with routers and query them. Members with TUNNEL send all messages through one. Members register again after a router's restart, because it keeps no state.
//!
//! [`Routes`] is the state, without sockets or clock; [`Router`] serves it on a socket; [`list_members`] queries a
//! router.

#![forbid(unsafe_code)]

mod connection;
mod outbox;
mod query;
mod router;
mod routes;
mod shared;
mod tls;

pub use query::{RouterQueryError, list_members, list_members_over_tls};
pub use router::{Router, RouterConfig};
pub use routes::{
    CLIENT_MEMBERS_MAX, Client, Delivery, GROUP_MEMBERS_MAX, MEMBERS_MAX, Routed, Routes, own_group_name,
};
pub use tls::{RouterClientTls, RouterTls};
