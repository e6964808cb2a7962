use std::io;

/// Settings fixed when a directory is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The number of segments.
    pub segments: u16,
}

/// A store's failure.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Medium: the data read differ from the data written. Opening fails and changes nothing, unless damage is
    /// skipped. Other entries stay readable.
    #[error("{file} is damaged at byte {offset}: {what}")]
    Corrupt {
        /// The file.
        file: String,
        /// The damage's offset.
        offset: u64,
        /// The kind of damage.
        what: &'static str,
    },

    /// Operator: the disk is full. The store is unchanged and readable.
    #[error("no space left for {file}; the write was not made")]
    Full {
        /// The file that could not grow.
        file: String,
    },

    /// Caller: entry or batch is too large. Nothing was written.
    #[error("{len} bytes exceed the limit of {max}")]
    TooLarge {
        /// Its bytes.
        len: u64,
        /// The limit.
        max: u64,
    },

    /// Operator: another process or store has the directory open.
    #[error("{directory} is in use by another store")]
    Locked {
        /// The directory.
        directory: String,
    },

    /// Operator: another program version wrote the directory. Nothing was changed.
    #[error("the store has format {found}; this program supports {expected}")]
    WrongFormat {
        /// Its format.
        found: u32,
        /// The program's format.
        expected: u32,
    },

    /// Operator: the directory was created with other settings. Nothing was changed.
    #[error("configured for {} segments, but the store was created with {}", ours.segments, theirs.segments)]
    WrongSettings {
        /// The configured settings.
        ours: Settings,
        /// The directory's settings.
        theirs: Settings,
    },

    /// Caller: no such segment. Nothing was done.
    #[error("segment {segment} is out of range; the store has {segments}")]
    NoSuchSegment {
        /// The segment.
        segment: u16,
        /// The number of segments.
        segments: u16,
    },

    /// An earlier write or sync failed and left the disk in an unknown state. The store is read-only until it
    /// is opened again.
    #[error("the store is read-only until it is opened again: {why}")]
    Stopped {
        /// The earlier failure.
        why: String,
    },

    /// Caller: the store is closed.
    #[error("the store is closed")]
    Closed,

    /// System: the operation failed. A write was not made.
    #[error("cannot {doing} {file}: {source}")]
    Io {
        /// The operation.
        doing: &'static str,
        /// The file or directory.
        file: String,
        /// The system's error.
        source: io::Error,
    },
}

impl StoreError {
    pub(crate) fn io(doing: &'static str, file: &str, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                Self::Full { file: file.to_owned() }
            }
            _ => Self::Io { doing, file: file.to_owned(), source },
        }
    }
}
