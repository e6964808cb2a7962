//! What can go wrong, per operation, and what it leaves behind.

use std::time::Duration;

use consort_group::Member;

/// The channel could not be made or could not join. Nothing is left open.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] consort_conf::ConfigError),
    /// A socket could not be opened.
    #[error(transparent)]
    Bind(#[from] consort_net::BindError),
    /// The stack does not begin with a transport.
    #[error("the stack does not begin with a transport")]
    NoTransport,
    /// There is no such layer.
    #[error("there is no layer `{0}`")]
    NoSuchLayer(String),
    /// The transport's `message_processing_policy` names nothing.
    #[error(transparent)]
    Policy(#[from] crate::delivery::UnknownPolicy),
    /// The runtime does not take sockets.
    #[error("the runtime does not take the sockets: {0}")]
    Runtime(std::io::Error),
    /// The cluster refused us, or joining failed otherwise.
    #[error("could not join cluster `{cluster}`: {reason}")]
    Join {
        /// The cluster.
        cluster: String,
        /// Why, for people.
        reason: String,
    },
    /// The driver ended while we waited.
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
    /// There is no room for it, and [`crate::Channel::send`] would wait ([`crate::Channel::try_send`] only).
    #[error("the destination's queue is full")]
    Full,
    /// The message was sent, but not all members acknowledged it in time (flag RSVP).
    #[error("not all members acknowledged the message in time")]
    NotAcknowledged,
}

/// No result of a remote call. Whether the call was carried out is not known, except where it says so.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RpcError {
    /// The channel is closed.
    #[error("the channel is closed")]
    Closed,
    /// No answer came in time.
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
    /// The member left, crashed, or is suspected to have crashed.
    #[error("{0} left or is suspected")]
    Suspected(Member),
    /// The member answered with an exception.
    #[error("{member} failed: {message}")]
    Remote {
        /// Who.
        member: Member,
        /// What it said.
        message: String,
    },
    /// Nobody was asked. The call was not carried out.
    #[error("there is nobody to call")]
    NoMembers,
}
