/// The error of invalid bytes. Their command has changed nothing.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The bytes end within a value.
    #[error("{what} needs {wanted} bytes, {left} are left")]
    Short {
        /// The kind of value.
        what: &'static str,
        /// Needed bytes.
        wanted: usize,
        /// Remaining bytes.
        left: usize,
    },
    /// The value has no meaning.
    #[error("{what} cannot be {value}")]
    Invalid {
        /// The kind of value.
        what: &'static str,
        /// The value.
        value: u64,
    },
    /// Another wire version: the sender and this member cannot share a cache.
    #[error("it speaks version {theirs} of the grid's wire, and this member version {ours}")]
    OtherVersion {
        /// The frame's version.
        theirs: u8,
        /// This member's version.
        ours: u8,
    },
    /// Not a frame.
    #[error("frame begins with {found:02x?} instead of {expected:02x?}")]
    Foreign {
        /// The first two bytes.
        found: [u8; 2],
        /// The expected bytes.
        expected: [u8; 2],
    },
}

pub(crate) type Result<T> = std::result::Result<T, FrameError>;
