//! Persistence of a cache's entries.
//!
//! ```
//! use consort_store::{Change, Entry, MemoryStore, Store};
//!
//! let store = MemoryStore::new(256);
//! store.store(&[Change::Put(Entry::immortal(7, &b"apples"[..], &b"3"[..]))])?;
//! let entry = store.load(7, b"apples")?;
//! assert_eq!(entry.map(|entry| entry.value), Some("3".into()));
//! # Ok::<(), consort_store::StoreError>(())
//! ```
//!
//! [`Store`] is the grid's interface: per segment, blocking. [`FileStore`] keeps entries in files and survives a
//! kill at any instant. [`Writer`] writes to a store in order, with a bounded queue. For tests there are
//! [`MemoryStore`] and [`SimDisk`], a disk with injected faults.

#![forbid(unsafe_code)]

mod disk;
mod entry;
mod error;
mod file;
mod memory;
mod store;
mod writer;

pub use disk::{Crash, DirectoryLock, Disk, DiskFile, RealDisk, SimDisk};
pub use entry::{Change, Entry, Segment, Times};
pub use error::{Settings, StoreError};
pub use file::{Durability, FileStore, FileStoreConfig, Lost, Opened, Recover, Torn};
pub use memory::MemoryStore;
pub use store::{Entries, Part, Stats, Store};
pub use writer::{Closed, Done, Mode, Refused, Task, Writer, WriterConfig};
