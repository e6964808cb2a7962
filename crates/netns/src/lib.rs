#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod hosts;
mod kill_on_drop;
mod network;

pub use hosts::{Host, Hosts, HostsError, Links};
pub use kill_on_drop::KillOnDrop;
pub use network::{Network, own_network};
