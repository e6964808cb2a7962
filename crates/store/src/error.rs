//! What can go wrong in a store, by whose fault it is, and what it means for the store.

use std::io;

/// Settings that are fixed when a store's directory is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Number of segments.
    pub segments: u16,
}

/// Why a store has not done what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The medium's fault, or of who has edited the files: something that was written is not what is read. When a store
    /// is opened nothing is changed and it does not open, unless it was told to skip what is damaged. When an entry is
    /// read, the others are not affected.
    #[error("{file} is damaged at byte {offset}: {what}")]
    Corrupt {
        /// File in the store's directory.
        file: String,
        /// Byte at which the damaged record or part begins.
        offset: u64,
        /// What is wrong with it.
        what: &'static str,
    },

    /// The operator's fault: no space is left. The write was not made, the store is as before and can be read.
    #[error("no space left for {file}, the write was not made")]
    Full {
        /// File that could not grow.
        file: String,
    },

    /// The caller's fault: more than a store takes at once. Nothing was written.
    #[error("{len} bytes are more than the limit of {max}")]
    TooLarge {
        /// Bytes of the key and the value, or of the whole batch.
        len: u64,
        /// The limit that they exceed.
        max: u64,
    },

    /// The operator's fault: another process, or another store of this one, has the directory open.
    #[error("{directory} is open elsewhere")]
    Locked {
        /// The directory.
        directory: String,
    },

    /// The operator's fault: the directory was written by another version of this program. Nothing was changed.
    #[error("the store's format is {found}, this program knows {expected}")]
    WrongFormat {
        /// Format of the directory.
        found: u32,
        /// Format of this program.
        expected: u32,
    },

    /// The operator's fault: the configuration is not the one with which the directory was made. Nothing was changed.
    #[error("configured for {} segments, but the store was made with {}", ours.segments, theirs.segments)]
    WrongSettings {
        /// What the configuration says.
        ours: Settings,
        /// What the directory says.
        theirs: Settings,
    },

    /// The caller's fault: the store has no such segment. Nothing was done.
    #[error("segment {segment} of a store with {segments}")]
    NoSuchSegment {
        /// The segment asked for.
        segment: u16,
        /// Number of segments.
        segments: u16,
    },

    /// An earlier write or sync failed in a way that leaves open what the disk holds. Nothing more is written until the
    /// store is opened again, which reads what is there; reads go on.
    #[error("writes have stopped until the store is opened again: {why}")]
    Stopped {
        /// What had failed.
        why: String,
    },

    /// The caller's fault: the store has been closed.
    #[error("the store is closed")]
    Closed,

    /// The system refused. If it was a write, it was not made.
    #[error("cannot {doing} {file}: {source}")]
    Io {
        /// What was being done.
        doing: &'static str,
        /// File in the store's directory, or the directory.
        file: String,
        /// The system's error.
        source: io::Error,
    },
}

impl StoreError {
    /// The error for `source`, which came up while `doing` something to `file`.
    pub(crate) fn io(doing: &'static str, file: &str, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                Self::Full { file: file.to_owned() }
            }
            _ => Self::Io { doing, file: file.to_owned(), source },
        }
    }
}
