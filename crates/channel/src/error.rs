use std::time::Duration;

use consort_group::Member;

/// Opening or joining failed; no socket is left open.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] consort_conf::ConfigError),
    /// A socket cannot be opened.
    #[error(transparent)]
    Bind(#[from] consort_net::BindError),
    /// The stack lacks a transport.
    #[error("the stack does not begin with a transport")]
    NoTransport,
    /// The stack lacks a named layer.
    #[error("there is no layer `{0}`")]
    NoSuchLayer(String),
    /// The `message_processing_policy` is unknown.
    #[error(transparent)]
    Policy(#[from] crate::delivery::UnknownPolicy),
    /// The runtime refuses the sockets.
    #[error("the runtime does not take the sockets: {0}")]
    Runtime(std::io::Error),
    /// Joining failed or was refused.
    #[error("could not join cluster `{cluster}`: {reason}")]
    Join {
        /// The cluster.
        cluster: String,
        /// The reason, for the operator.
        reason: String,
    },
    /// The driver ended meanwhile.
    #[error("the channel was closed while it connected")]
    Closed,
}

/// A message was not sent; the channel is unchanged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The channel is closed.
    #[error("the channel is closed")]
    Closed,
    /// The queue is full ([`crate::Channel::try_send`] only).
    #[error("the destination's queue is full")]
    Full,
    /// Sent, but not acknowledged by all in time (RSVP).
    #[error("not all members acknowledged the message in time")]
    NotAcknowledged,
}

/// A call without result; unless stated otherwise, it may have been carried out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RpcError {
    /// The channel is closed.
    #[error("the channel is closed")]
    Closed,
    /// No response came in time.
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
    /// The member left or seems to have crashed.
    #[error("{0} left or is suspected")]
    Suspected(Member),
    /// There is no way to the member's site any more. It may have carried the request out.
    #[error("site `{0}` cannot be reached")]
    SiteUnreachable(Box<str>),
    /// The member responded with an exception.
    #[error("{member} failed: {message}")]
    Remote {
        /// The member.
        member: Member,
        /// The message.
        message: String,
    },
    /// There is no member; nothing was carried out.
    #[error("there is no member to call")]
    NoMembers,
}
