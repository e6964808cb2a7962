//! Java JGroups members beside Consort's, for tests (`cargo xtask test --only interop`).
//!
//! A [`Member`] is a process that takes commands on its standard input, a JVM (`interop/java`) or a Consort member
//! (`consort-member` of this crate). Both answer to the same commands, so that a test says once what both kinds have
//! to do.

#![forbid(unsafe_code)]

pub mod cluster;
mod jgroups;
mod member;
mod network;
mod setting;
mod tool;

pub use consort_jgroups::Network;
pub use jgroups::java_program;
pub use member::{Kind, Member, built};
pub use network::{in_network, in_own_network};
pub use setting::Setting;
pub use tool::Tool;

/// How long a command may take unless it says otherwise.
pub const PATIENCE: std::time::Duration = std::time::Duration::from_secs(90);
