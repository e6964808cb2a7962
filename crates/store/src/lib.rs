//! Persistence of a cache's entries.
//!
//! [`Store`] is what the grid asks of persistence: segment by segment, blocking, with errors by whose fault they are.
//! [`FileStore`] keeps entries in files of its own format and survives being killed at any instant. [`Writer`] writes
//! to a store in order, with a bounded queue before it, on threads that all stores of a process share. [`MemoryStore`] is for tests, as is [`SimDisk`], a disk
//! that loses, tears and refuses by seed.

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
