//! Linux network namespaces as hosts of one machine, with links that can be cut.
//!
//! ```no_run
//! use std::process::Command;
//!
//! use consort_netns::{Hosts, HostsError, Links};
//!
//! # fn example() -> Result<(), HostsError> {
//! let hosts = Hosts::start(3, Links { mtu: 1_500, limit: None })?;
//! let mut member: Command = hosts.all()[0].command("consort");
//! member.args(["server", "--cluster", "test"]);
//! hosts.cut(0)?;      // its packets are lost
//! hosts.heal(0)?;
//! # Ok(())
//! # }
//! ```
//!
//! Commands of util-linux and iproute2 do the work. A process without root needs a user namespace of its own: [`own_network`].

#![forbid(unsafe_code)]

mod hosts;
mod kill_on_drop;
mod network;

pub use hosts::{Host, Hosts, HostsError, Links};
pub use kill_on_drop::KillOnDrop;
pub use network::{Network, own_network};
