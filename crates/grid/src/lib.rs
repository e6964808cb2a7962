//! The data grid: caches whose entries are distributed over the members of a cluster.
//!
//! ```
//! use consort_grid::{ConsistentHash, SEGMENT_COUNT};
//! use consort_group::{Address, Rng};
//!
//! let mut random = Rng::new(7);
//! let members = (0..3).map(|_| Address::random(&mut random).into()).collect();
//! let hash = ConsistentHash::new(members, 2, SEGMENT_COUNT);
//! let segment = hash.segment_of(b"apples");
//! assert_eq!(hash.places(segment).len(), 2);
//! ```
//!
//! Keys belong to segments with owners ([`ConsistentHash`]), which change from one [`Topology`] to the
//! next. [`Node`] is a member as a state machine, [`Container`] holds its entries.

mod ballot;
mod catch_panic;
mod codec;
mod command;
mod config;
mod consistent_hash;
mod container;
mod coordinator;
mod cx;
mod encoded_entries;
mod event;
mod flags;
mod grouping;
mod history;
mod injected_bugs;
mod items;
mod member;
mod merge;
mod node;
mod operation;
mod persistence;
mod placement;
mod publication;
mod rebalancing;
mod replica;
mod topology;
mod version;
mod wire;

pub use ballot::Ballot;
pub use codec::FrameError;
pub use config::{CacheConfig, CacheId, CacheMode, MergePolicy, OpenError, PartitionHandling};
pub use consistent_hash::{ConsistentHash, SEGMENT_COUNT, Segment, segment_of};
pub use container::{
    BOUND_OVERHEAD, CANDIDATES_MAX, Chunk, ChunkLimits, Container, ContainerSettings, ContainerStatistics,
    Cursor, ENTRY_OVERHEAD, Entry, Expired, Expiry, FIELD_VALUE_BYTES, FieldIndexes, FieldLookup,
    FieldValues, Full, INDEX_ENTRY_BYTES, Idle, IndexLookup, IndexedFields, LIFETIME_OVERHEAD,
    LOOKUP_STEPS_MAX, Lifetime, Limit, Lookup, MemoryBound, PREFETCH_MAX, Put, REMOVAL_OVERHEAD, Removed,
    SegmentGone, SegmentState, Taken, VALUES_PER_ENTRY_MAX, Visited, WhenFull,
};
pub use event::{
    EVENT_BYTES_MAX, EVENTS_MAX, EntryEvent, Event, EventKind, ListenError, ListenOptions, ListenerId,
    Previous, ReplicaTracker, Scope,
};
pub use flags::Flags;
pub use grouping::{GroupFn, Grouper, Grouping};
pub use history::Lineage;
#[cfg(feature = "injected-bugs")]
pub use injected_bugs::InjectedBug;
pub use items::{IntoItems, Item, ItemRef, ItemRefs, Items};
pub use member::{CacheMember, CapacityFactor, Location, NamesMembers};
pub use merge::{MergeFn, PartitionSide, SplitPoint};
pub use node::{
    Computation, Computed, Counters, Frame, LISTENERS_BYTES_MAX, Load, Node, NodeEvent, NodeStats, Progress,
    ResponseLimits, ResponseLoad, SubmitOptions, TRANSFER_BUDGET, TakenEvents,
};
pub use operation::{
    Action, Change, Condition, OperationError, Outcome, ReadFrom, StoreFailure, Stored, Write, Written,
};
pub use persistence::{
    CorruptPersistedState, Loaded, PersistedState, StoreOrder, StoreRequest, StoreSettings,
};
pub use placement::Owners;
pub use publication::{
    BATCH, FETCH_BYTES, Guarantee, IterationError, IterationId, LANES_MAX, Next, Projection, Publication,
    ReduceFn, Transform, TransformFn,
};
pub use rebalancing::Rebalancing;
pub use topology::{Availability, Interest, Listening, Membership, Phase, Topology};
pub use version::Version;
pub use wire::is_frame;
