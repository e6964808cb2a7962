//! What the file store asks of a disk: files with positions, names that can be made, moved and removed, and a way to make
//! both safe. [`RealDisk`] is a directory; [`SimDisk`] forgets, tears and refuses as tests want it.

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
    /// What to call the directory in messages.
    fn name(&self) -> String;

    /// Takes the directory for this store; dropping the guard gives it back, as does the end of the process. None:
    /// somebody else has it.
    fn lock(&self) -> io::Result<Option<Box<dyn Any + Send + Sync>>>;

    /// Names of all files.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Opens a file to read and write.
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;

    /// Makes an empty file, in place of the one with that name if there is one.
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;

    /// Moves a file to another name at one blow; a file of that name is gone.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a name. Who has the file open can go on reading it.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Returns when names made, moved and removed so far outlive a power failure.
    fn sync_names(&self) -> io::Result<()>;

    /// Tells one run of the machine from another: what was written in this run is there, synced or not. None: unknown.
    fn boot(&self) -> Option<u128>;
}

/// A file that can be read and written.
pub trait DiskFile: Send + Sync + fmt::Debug {
    /// Its length.
    fn len(&self) -> io::Result<u64>;

    /// True if it has no bytes.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Reads up to `bytes.len()` bytes from a place; fewer only at the end of the file.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes all bytes to a place. After an error some of them may be there.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Cuts the file.
    fn truncate(&self, len: u64) -> io::Result<()>;

    /// Returns when what was written so far outlives a power failure. After an error that is not known, also not if
    /// another call succeeds.
    fn sync(&self) -> io::Result<()>;
    /// Makes sure that the file can be written, without another file having to be closed for it, while the guard is there.
    /// Of a file that is always open there is nothing to hold.
    fn hold(&self) -> io::Result<Option<Arc<dyn Any + Send + Sync>>> {
        Ok(None)
    }
}
