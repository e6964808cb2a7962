//! Transactions: several keys of several caches change together, or not at all.
//!
//! A transaction has a record, and locks of keys. Both are entries of internal caches that all members have. The record is written
//! before the first lock; the commit is a change of the record. From then on any member can complete the transaction: it writes
//! each key on condition that the key still has the version at which it was locked, and then unlocks the keys. An undecided record
//! whose member is lost is removed, so that its commit fails, and then its locks are released. Local caches have records and locks
//! on their member.
//!
//! Single writes of transactional caches lock their key, too, so that locked keys do not change.
//!
//! | file | holds |
//! |---|---|
//! | `record`, `locks`, `id` | the two kinds of entries |
//! | `protocol` | how a record is changed and completed |
//! | `session` | a transaction of a member's program |
//! | `branches` | a transaction of a server's client, which arrives in parts |
//! | `reaper` | completion of lost members' transactions |
//! | `storage`, `cache_storage` | the operations of caches that the protocol needs, and those of a member |
//! | `simulation` | another storage, in virtual time, with faults and checkers |
//!
//! The protocol assumes that a write takes effect within 15 s after the last sign of its member
//! ([`TAKE_OVER_AFTER`](limits::TAKE_OVER_AFTER)), or never.

mod branches;
mod cache_storage;
mod error;
mod id;
pub mod limits;
mod locks;
mod manager;
mod options;
mod protocol;
mod reaper;
mod record;
mod session;
#[cfg(test)]
mod simulation;
mod storage;
#[cfg(test)]
mod tests;
mod transaction;

pub use branches::{NewBranch, Prepared, Seen};
pub use error::TransactionError;
pub use manager::Transactions;
pub use options::{ACQUIRE_TIMEOUT, Locking, TransactionOptions};
pub use protocol::InvolvedCaches;
pub use record::{Branch, Decision, Intent, Opened, Record, Scope, State, Value};
pub use transaction::{Committed, Transaction};
