//! JGroups on this machine, for tests and benches: its jar and our Java programs for it ([`Jar`]), a network that
//! nothing leaves ([`own_network`]), several hosts in it ([`Hosts`]), and processes that end with whoever started them
//! ([`Killed`]).

#![forbid(unsafe_code)]

mod hosts;
mod jar;
mod killed;
mod network;

pub use hosts::{Host, Hosts, HostsError, Links};
pub use jar::{Jar, JarError};
pub use killed::Killed;
pub use network::{Network, own_network};
