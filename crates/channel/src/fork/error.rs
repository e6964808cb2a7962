use super::limits::{FORK_CHANNELS_MAX, FORK_ID_BYTES_MAX};

/// A fork channel was not opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ForkError {
    /// The stack lacks FORK.
    #[error("the stack has no FORK: add <FORK/> to the stack of all members")]
    NoProtocol,
    /// The channel is closed.
    #[error("the channel is closed")]
    Closed,
    /// There is such a fork channel.
    #[error("fork channel {channel:?} of fork stack {stack:?} is open already")]
    AlreadyOpen {
        /// The fork stack's id.
        stack: String,
        /// The fork channel's id.
        channel: String,
    },
    /// The id is too long.
    #[error("the id of a fork stack or fork channel has {0} bytes, more than {FORK_ID_BYTES_MAX}")]
    IdTooLong(usize),
    /// The member has too many fork channels.
    #[error("{FORK_CHANNELS_MAX} fork channels are open: close some first")]
    TooMany,
}
