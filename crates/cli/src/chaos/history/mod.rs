//! Histories of operations for an independent checker.
//!
//! A client appends a line to its process's file before it sends an operation and when the operation ends, so
//! that `kill -9` loses none. `docs/histories.md` describes the format.

mod client;
mod collect;
mod driver;
mod member;
mod record;
mod target;

pub(super) use self::collect::collect;
pub(super) use self::driver::{OperationsDirectory, work};
pub(super) use self::member::{Servers, Setting, serve};
