//! Errors per operation, with the state that each leaves.

use std::time::Duration;

use consort_group::Member;

/// The channel could not be made or could not join. No socket is left open.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] consort_conf::ConfigError),
    /// A socket could not be opened.
    #[error(transparent)]
    Bind(#[from] consort_net::BindError),
    /// The stack does not begin with a transport.
    #[error("the stack does not begin with a transport")]
    NoTransport,
    /// A named layer is not in the stack.
    #[error("there is no layer `{0}`")]
    NoSuchLayer(String),
    /// The transport's `message_processing_policy` is unknown.
    #[error(transparent)]
    Policy(#[from] crate::delivery::UnknownPolicy),
    /// The runtime refuses the sockets.
    #[error("the runtime does not take the sockets: {0}")]
    Runtime(std::io::Error),
    /// Joining failed, for example because the cluster refused this member.
    #[error("could not join cluster `{cluster}`: {reason}")]
    Join {
        /// The cluster.
        cluster: String,
        /// The reason, for the operator.
        reason: String,
    },
    /// The driver ended while the channel connected.
    #[error("the channel was closed while it connected")]
    Closed,
}

/// A message was not sent. The channel is unchanged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The channel is closed.
    #[error("the channel is closed")]
    Closed,
    /// The queue is full, so that [`crate::Channel::send`] would wait ([`crate::Channel::try_send`] only).
    #[error("the destination's queue is full")]
    Full,
    /// The message was sent, but not all members acknowledged it in time (flag RSVP).
    #[error("not all members acknowledged the message in time")]
    NotAcknowledged,
}

/// A remote call has no result. Unless stated otherwise, the call may have been carried out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RpcError {
    /// The channel is closed.
    #[error("the channel is closed")]
    Closed,
    /// No response came in time.
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
    /// The member left, crashed, or is suspected to have crashed.
    #[error("{0} left or is suspected")]
    Suspected(Member),
    /// The member responded with an exception.
    #[error("{member} failed: {message}")]
    Remote {
        /// The member.
        member: Member,
        /// Its message.
        message: String,
    },
    /// There is no member to call. The call was not carried out.
    #[error("there is no member to call")]
    NoMembers,
}
