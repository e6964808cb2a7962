//! Where the entries of distributed caches live: segments, their owners, and how owners change with the members.
//!
//! All of it is values and pure functions: the same members give the same owners everywhere, without a vote.

#![forbid(unsafe_code)]

mod consistent_hash;
mod container;
mod member;
mod placement;
mod version;

pub use consistent_hash::{ConsistentHash, Owners, SEGMENT_COUNT, Segment};
pub use container::{
    BOUND_OVERHEAD, Chunk, ChunkLimits, Container, ContainerSettings, Cursor, ENTRY_OVERHEAD, Entry, Full,
    LIFETIME_OVERHEAD, Lifetime, Limit, MemoryBound, NotOwned, Put, REMOVAL_OVERHEAD, Removed, SegmentGone,
    SegmentState, Taken, WhenFull,
};
pub use member::{CacheMember, Capacity, Location};
pub use version::Version;
