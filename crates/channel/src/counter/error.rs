use std::time::Duration;

use super::limits::{NAME_BYTES_MAX, PENDING_MAX};

/// An operation on a counter failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CounterError {
    /// The stack lacks COUNTER.
    #[error("the stack has no COUNTER: add <COUNTER/> to the stack of all members")]
    NoProtocol,
    /// The channel is closed; the operation may have been carried out.
    #[error("the channel is closed")]
    Closed,
    /// No response came in time; the operation may be carried out yet.
    #[error("no answer within {0:?}; the operation may be carried out yet")]
    TimedOut(Duration),
    /// The coordinator refused the operation; nothing has changed.
    #[error("the coordinator refused the operation: {0}")]
    Refused(String),
    /// The name is too long; nothing was sent.
    #[error("the name of a counter has {0} bytes, more than {NAME_BYTES_MAX}")]
    NameTooLong(usize),
    /// Too many operations wait for their responses; nothing was sent.
    #[error("{PENDING_MAX} operations on counters wait for a response: await some of them first")]
    TooManyPending,
}
