//! JGroups on this machine, for tests and benches: its jar and our Java programs for it ([`Jar`]), and a network that
//! nothing leaves ([`own_network`]).

#![forbid(unsafe_code)]

mod jar;
mod network;

pub use jar::{Jar, JarError};
pub use network::{Network, own_network};
