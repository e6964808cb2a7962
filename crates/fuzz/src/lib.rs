//! Fuzz targets: every decoder of bytes that a peer or a user wrote, and whole stacks under mutated traffic.
//!
//! A target is a function of bytes that panics if a rule is broken; rules require more than the absence of other panics: a
//! decoded value encodes and decodes to the same value, computed sizes are the written sizes, memory stays in proportion to the
//! input, and a stack that received forged packets still takes in a new member.
//!
//! [`driver`] mutates real bytes from a seed on the stable toolchain (`cargo xtask fuzz`). The targets of cargo-fuzz in the
//! folder `fuzz` let libFuzzer search for new paths; inputs of one replay in the other.

#![forbid(unsafe_code)]

pub mod bounds;
pub mod driver;
pub mod mutate;
pub mod target;
pub mod vectors;

mod cluster;
mod edges;
mod grid;
mod hotrod;
mod identity;
mod key_store;
mod query;
mod records;
mod rounds;
mod sasl;
mod seen;
mod server;
mod server_connection;
mod store_files;
mod texts;
mod tools;
mod wire;

pub use seen::Seen;
pub use target::{TARGETS, Target, target};

/// Runs a target by its name, as cargo-fuzz' targets do; panics if a rule is broken, or there is no such target.
pub fn run(name: &str, bytes: &[u8]) {
    let target = target(name).unwrap_or_else(|| panic!("there is no target {name}"));
    (target.run)(bytes);
}
