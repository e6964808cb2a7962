//! Where the entries of distributed caches live: segments, their owners, and how owners change with the members.
//!
//! All of it is values and pure functions: the same members give the same owners everywhere, without a vote.

#![forbid(unsafe_code)]

mod consistent_hash;
mod member;
mod placement;

pub use consistent_hash::{ConsistentHash, Owners, SEGMENT_COUNT, Segment};
pub use member::{CacheMember, Capacity, Location};
