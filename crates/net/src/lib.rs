//! Edges of the stack: TCP and UDP sockets, TLS, interface selection, and the driver that turns a sans-IO stack into
//! a member.
//!
//! ```
//! use consort_net::{BindAddr, IpVersion};
//!
//! let selectors: BindAddr = "match-interface:no-such-interface,loopback".parse()?;
//! let interface = selectors.choose_of_host(IpVersion::V4)?;
//! assert!(interface.ip.is_loopback());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! One task per member owns the stack, the clock and all sockets (see [`Driver`]). [`BoundEdge::bind`] opens the
//! sockets, the stack gets their address, and [`Driver::spawn`] runs both.

mod attributes;
mod bind_addr;
mod bind_error;
mod bound_edge;
mod client_listener;
mod clock;
mod config;
#[cfg(feature = "jdbc")]
mod database;
#[cfg(test)]
mod database_settings;
#[cfg(feature = "dns")]
mod dns;
mod driver;
mod driver_waker;
mod edge;
mod effects;
mod groups;
mod inbox;
#[cfg(feature = "kubernetes")]
mod kubernetes;
mod shared_loopback;
mod signals;
mod stats;
mod tcp;
mod tunnel_edge;
mod udp;
mod warnings;

pub mod framing;

pub use bind_addr::{BindAddr, BindAddrError, HostNames, Interface, IpVersion, SystemNames};
pub use bind_error::{BindError, TlsError};
pub use bound_edge::BoundEdge;
pub use client_listener::listen;
pub use clock::Clock;
pub use config::{ClientAuth, DiagConfig, EdgeKind, TlsConfig, TransportConfig};
#[cfg(feature = "dns")]
pub use dns::query as query_dns;
pub use driver::{Application, Driver, DriverHandle, EdgeState, Submitter};
pub use driver_waker::DriverWaker;
pub use groups::DefaultGroups;
#[cfg(feature = "kubernetes")]
pub use kubernetes::{KubernetesError, list_pods};
pub use signals::{Command, StackCall, SubmitError};
pub use stats::EdgeStats;
#[cfg(feature = "tls")]
pub use tcp::key_exchange_tls::{KeyExchangeTls, ReadKeyExchangeTls};
pub use warnings::RateLimitedWarnings;
