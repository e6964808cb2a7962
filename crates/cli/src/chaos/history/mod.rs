//! Histories of operations for an independent checker: each client's requests and responses, with their times.
//!
//! A client writes a line before it sends an operation and another when the operation ends, to a file of its member's process,
//! so that `kill -9` loses no operation. [`collect()`] joins the files to one history. `docs/histories.md` describes the
//! format.

mod client;
mod collect;
mod driver;
mod member;
mod record;
mod target;

pub(super) use self::collect::collect;
pub(super) use self::driver::{OperationsDirectory, work};
pub(super) use self::member::{Servers, Setting, serve};
