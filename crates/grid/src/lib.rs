//! The data grid: caches whose entries are distributed over the members of a cluster.
//!
//! A cache's keys belong to segments, its segments to owners ([`ConsistentHash`]). The owners change with the
//! members, from one [`Topology`] to the next. [`Node`] is a member as a state machine, [`Container`] holds its
//! entries.

mod ballot;
mod command;
mod config;
mod consistent_hash;
mod container;
mod coordinator;
mod event;
mod flags;
mod grouping;
mod guarded;
mod injected_bugs;
mod items;
mod member;
mod merge;
mod node;
mod operation;
mod past;
mod persistence;
mod placement;
mod publication;
mod topology;
mod version;
mod wire;

pub use ballot::Ballot;
pub use command::CacheId;
pub use config::{CacheConfig, CacheMode, OpenError, PartitionHandling};
pub use consistent_hash::{ConsistentHash, Owners, SEGMENT_COUNT, Segment, segment_of};
pub use container::{
    AHEAD_MAX, BOUND_OVERHEAD, Chunk, ChunkLimits, Container, ContainerSettings, Cursor, ENTRY_OVERHEAD,
    Entry, Expired, Full, Idle, LIFETIME_OVERHEAD, Lifetime, Limit, Lookup, MemoryBound, Put,
    REMOVAL_OVERHEAD, Removed, SegmentGone, SegmentState, Taken, Visited, WhenFull,
};
pub use event::{
    EVENT_BYTES_MAX, EVENTS_MAX, EntryEvent, Event, EventKind, Listen, ListenError, ListenerId, Previous,
    Replica, Scope,
};
pub use flags::Flags;
pub use grouping::{GroupFn, Grouper, Grouping};
#[cfg(feature = "injected-bugs")]
pub use injected_bugs::InjectedBug;
pub use items::{IntoItems, Item, ItemRef, ItemRefs, Items};
pub use member::{CacheMember, Capacity, Location, NamesMembers};
pub use merge::{MergeFn, MergePolicy, Parting, Side};
pub use node::{
    Computation, Computed, Counters, Frame, LISTENERS_BYTES_MAX, Load, Node, NodeEvent, Progress,
    ResponseLimits, ResponseLoad, SubmitOptions, TRANSFER_BUDGET, TakenEvents,
};
pub use operation::{Action, Change, Condition, OperationError, Outcome, ReadFrom, Stored, Write, Written};
pub use past::Line;
pub use persistence::{Backing, Loaded, Remembered, StoreFailure, StoreOrder, StoreRequest, Unreadable};
pub use publication::{
    BATCH, FETCH_BYTES, Guarantee, IterationError, IterationId, LANES_MAX, Next, Publication, ReduceFn,
    Transform, TransformFn, What,
};
pub use topology::{Availability, Interest, Listening, Membership, Phase, Topology};
pub use version::Version;
pub use wire::{FrameError, is_frame};
