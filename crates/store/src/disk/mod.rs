//! The disk of the file store: positional access, names, and syncs of both.

mod descriptors;
mod real;
mod sim;

use std::any::Any;
use std::fmt;
use std::io;
use std::sync::Arc;

pub use real::{DirectoryLock, RealDisk};
pub use sim::{Crash, SimDisk};

/// A directory.
pub trait Disk: Send + Sync + fmt::Debug {
    /// Returns its name for messages.
    fn name(&self) -> String;

    /// Locks the directory until the guard is dropped or the process ends. `None`: already locked.
    fn lock(&self) -> io::Result<Option<Box<dyn Any + Send + Sync>>>;

    /// Returns the names of all files.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Opens a file to read and write.
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;

    /// Creates an empty file, replacing one of the same name.
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;

    /// Renames a file atomically, replacing one of the new name.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a name. Open files stay readable.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Returns once all changes of names are durable.
    fn sync_names(&self) -> io::Result<()>;

    /// Identifies the machine's current run, in which writes are present, synced or not. `None`: unknown.
    fn boot(&self) -> Option<u128>;
}

/// A file.
pub trait DiskFile: Send + Sync + fmt::Debug {
    /// Returns the length.
    fn len(&self) -> io::Result<u64>;

    /// Whether the file is empty.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Reads up to `bytes.len()` bytes at an offset; fewer only at the end.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes all bytes at an offset. After an error some may be written.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Truncates the file.
    fn truncate(&self, len: u64) -> io::Result<()>;

    /// Returns once all earlier writes are durable. After an error their durability is unknown, even if a later
    /// call succeeds.
    fn sync(&self) -> io::Result<()>;
    /// Keeps the file writable, without closing another one, while the guard exists. `None`: always open.
    fn hold(&self) -> io::Result<Option<Arc<dyn Any + Send + Sync>>> {
        Ok(None)
    }
}
