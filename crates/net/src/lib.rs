//! Edges of the stack: TCP and UDP sockets, TLS, interface selection, and the driver that turns a sans-IO stack into
//! a member.
//!
//! One task per member owns the stack, the clock and all sockets (see [`Driver`]). [`BoundEdge::bind`] opens the
//! sockets, the stack is built with their address, and [`Driver::spawn`] runs both.

mod attributes;
mod driver_waker;
mod bind_addr;
mod clock;
mod warnings;
mod config;
mod driver;
mod edge;
mod groups;
mod inbox;
mod client_listener;
mod shared_loopback;
mod effects;
mod signals;
mod stats;
mod tcp;
mod tls;
mod udp;

pub mod framing;

pub use driver_waker::DriverWaker;
pub use bind_addr::{BindAddr, BindAddrError, HostNames, Interface, IpVersion, SystemNames};
pub use clock::Clock;
pub use warnings::RateLimitedWarnings;
pub use config::{ClientAuth, DiagConfig, EdgeKind, TlsConfig, TransportConfig};
pub use driver::{Application, Driver, DriverHandle, EdgeState, Submitter};
pub use edge::{BindError, BoundEdge};
pub use groups::DefaultGroups;
pub use client_listener::listen;
pub use signals::{Command, StackCall, SubmitError};
pub use stats::EdgeStats;
pub use tls::TlsError;
