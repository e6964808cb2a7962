//! Caches that span the members of a cluster: the asynchronous face of the grid.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use consort_cache::CacheManager;
//!
//! let manager = CacheManager::from_file("tcp.xml")?.name("A").connect("shop").await?;
//! let stock = manager.cache::<String, u32>("stock").await?;
//! stock.put("apples", &3).await?;
//! assert_eq!(stock.get("apples").await?, Some(3));
//! let left = stock.compute("apples", |apples| apples.map(|count| count - 1)).await?;
//! assert_eq!(left, Some(2));
//! manager.close().await?;
//! # Ok(())
//! # }
//! ```
//!
//! A [`CacheManager`] is a member of a cluster on its own channel. A [`Cache`] is a typed handle of a cache that is open there,
//! with options for every operation ([`CacheOptions`]). A [`CacheConfig`] has the settings that all members must share:
//!
//! ```no_run
//! # async fn example(manager: consort_cache::CacheManager) -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//!
//! use consort_cache::{CacheConfig, CacheMode, Lifetime, ReadFrom};
//!
//! let config = CacheConfig { mode: CacheMode::Distributed { owners: 3 }, ..CacheConfig::new("sessions") };
//! let sessions = manager.open(config).raw().await?;
//! let hour = Lifetime { lifespan: Some(Duration::from_secs(3_600)), max_idle: None };
//! sessions.with_lifetime(hour).put(&b"id"[..], &b"Ada"[..]).await?;
//! let newest = sessions.with_read_from(ReadFrom::Primary).get(&b"id"[..]).await?;
//! # Ok(())
//! # }
//! ```
//!
//! A cache with a store on each member is available again after a restart of all members:
//!
//! ```no_run
//! # async fn example(manager: consort_cache::CacheManager) -> Result<(), Box<dyn std::error::Error>> {
//! use consort_cache::{CacheConfig, Persistence};
//!
//! let kept = Persistence::directory("/var/lib/shop/stock");
//! let stock = manager.open(CacheConfig::new("stock")).persistence(kept).raw().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Embedded or remote
//!
//! A handle of `consort-client` has the same operations. A function over [`BasicCache`] works with either, so that a
//! program moves its data to servers by the line that makes the handle:
//!
//! ```
//! use consort_cache::{BasicCache, CacheManager};
//!
//! async fn deliver<C: BasicCache<str, u32>>(stock: &C) -> Result<Option<u32>, C::Error> {
//!     stock.put_if_absent("apples", &3).await?;
//!     stock.merge("apples", &10, |old, new| Some(old + new)).await
//! }
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let text = "<config><SHARED_LOOPBACK/><SHARED_LOOPBACK_PING/><NAKACK2/><UNICAST3/><STABLE/>
//! #     <GMS join_timeout='100'/><UFC/><MFC/><FRAG4/></config>";
//! # let stack = consort_conf::parse_stack("in-process.xml", text, &consort_conf::Variables::new())?;
//! # let channel = consort_cache::Channel::from_config(stack.config);
//! let manager = CacheManager::from_channel(channel).name("A").connect("shop").await?;
//! let stock = manager.cache::<String, u32>("stock").await?;
//! assert_eq!(deliver(&stock).await?, Some(13));
//! # Ok(manager.close().await?)
//! # }
//! ```
//!
//! # Guarantees
//!
//! A write has succeeded when every owner of its key has it. Later reads on any member return it or a newer write as long as one
//! owner lives; with [`ReadFrom::Primary`] reads are linearizable. A write that fails with
//! [`OperationError::TimedOut`] or [`OperationError::Uncertain`] may have been or still be applied; after other
//! errors nothing was changed.
//!
//! Errors name members by logical name and address ([`Member`]). A panic in a transform, reduction or merge policy fails only its
//! request.
//!
//! A dropped future ends the wait, not the operation. No operation takes longer than its handle's timeout ± 250 ms. No call
//! blocks a thread for longer than a step of the member's state machine.

mod adaptive_spin;
mod backpressure;
mod bulk;
mod cache;
mod compute;
mod encoded;
mod error;
mod file;
mod file_attributes;
mod file_persistence;
mod function_registration;
mod functions;
mod handler;
mod in_process;
mod indexes;
mod iteration;
mod iterations;
mod listeners;
mod manager;
mod manager_events;
mod observed;
mod open_cache;
mod operation;
mod options;
mod persistence;
mod rebalances;
mod spsc;
mod store_driver;
pub mod transactions;
mod waiters;
mod watched_store;
mod workers;

pub use cache::{Cache, Entry, RawCache};
pub use consort_channel::{Address, Channel, ChannelBuilder, Member, PhysAddr, View};
#[cfg(feature = "json")]
pub use consort_encoding::Json;
pub use consort_encoding::{
    BasicCache, Contention, Decode, Encode, EncodeBorrowed, Encoded, Encoding, EncodingError, Exchange,
    Postcard, Raw, VersionedValue,
};
/// An entry at an owner, for transforms and reductions ([`Cache::register_transform`]).
pub use consort_grid::Entry as HeldEntry;
pub use consort_grid::{
    Availability, BATCH, CacheConfig, CacheMode, CapacityFactor, Change, Condition, Counters, EntryEvent,
    Event, EventKind, FETCH_BYTES, FieldLookup, FieldValues, Flags, GroupFn, Grouper, Grouping, Guarantee,
    IndexedFields, ItemRef, ItemRefs, IterationError, LANES_MAX, Lifetime, Limit, ListenError, Location,
    Lookup, MemoryBound, MergeFn, MergePolicy, OperationError, PREFETCH_MAX, PartitionHandling, Phase,
    Previous, Progress, ReadFrom, ResponseLoad, Segment, Stored, TRANSFER_BUDGET, Topology, Version,
    WhenFull, Write, Written,
};
pub use consort_group::StackCount;
pub use consort_memory::{MemoryLimit, MemoryUsage, ProcessMemory, Shortage};
/// Measures this process's memory ([`ManagerBuilder::process_memory`]).
pub use consort_procstat::memory::watch as watch_memory;
/// Stores of your own ([`Store`], [`Persistence::store`]).
pub use consort_store as store;
pub use consort_store::{
    DirectoryLock, Durability, FileStore, FileStoreConfig, MemoryStore, Recover, Stats as StoreStats, Store,
    StoreError,
};
pub use error::{CacheError, HandoverTimeout, KeyError, ManagerError, OpenError, StoreFault};
pub use file::CacheSettings;
pub use handler::Traffic;
pub use indexes::CacheIndex;
pub use iteration::{Batch, EntryStream};
pub use listeners::{Events, ListenBuilder};
pub use manager::{
    CacheBuilder, CacheManager, LEAVE_DEGRADED_TIMEOUT, LEAVE_TIMEOUT, ManagerBuilder, OPEN_TIMEOUT,
};
pub use manager_events::{ManagerEvent, ManagerEvents};
pub use operation::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
pub use options::{CacheOptions, TIMEOUT};
pub use persistence::{Persistence, WriteBehind};
pub use rebalances::RebalanceTimes;
pub use transactions::{Committed, Locking, Transaction, TransactionError, TransactionOptions};
pub use watched_store::StoreHealth;
