//! A router for members that cannot find each other, or cannot reach each other: what JGroups calls a GossipRouter, and the
//! frames are its own (facts 26), so that members of either kind use either.
//!
//! Members with TCPGOSSIP register with one or several routers and ask them where the others are. JGroups' members with TUNNEL
//! send everything through one. Nothing that a router knows outlives it: members register again with one that comes back.
//!
//! [`Routes`] is what it knows, without sockets or a clock; [`Router`] is that on a socket, and [`ask`] asks another one who
//! is registered there.

#![forbid(unsafe_code)]

mod asking;
mod connection;
mod outbox;
mod router;
mod routes;

pub use asking::{AskError, ask};
pub use router::{Router, RouterConfig};
pub use routes::{Client, Delivery, GROUP_MEMBERS_MAX, MEMBERS_MAX, Routed, Routes, group_of_all};
