//! What can go wrong, whose fault it is, and what it leaves behind.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use consort_encoding::EncodingError;
use consort_hotrod::{DecodeError, ProtocolVersion, Status};
use consort_tls::TlsError;

use crate::login::LoginError;

/// An operation has failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The caller's: a key or a value has no bytes, or bytes are none. In the latter case a read was done.
    #[error(transparent)]
    Encoding(#[from] EncodingError),
    /// The caller's: servers do not take so much. Nothing was changed.
    #[error("{what} of {length} bytes, {limit} are allowed")]
    TooLarge {
        /// What is so large.
        what: &'static str,
        /// How large it is.
        length: usize,
        /// How large it may be.
        limit: usize,
    },
    /// The caller's: the client is closed. A write that was under way may have been done.
    #[error("the client is closed")]
    Closed,
    /// The caller's or the servers': there is no such cache. Nothing was changed.
    #[error("there is no cache {0}")]
    NoSuchCache(String),
    /// The caller's: the client was given no cluster of this name. Nothing was changed.
    #[error("there is no cluster {0}")]
    NoSuchCluster(String),
    /// The caller's or the servers': there is no such counter. Nothing was changed.
    #[error("there is no counter {0}")]
    NoSuchCounter(String),
    /// The caller's: the counter's bounds do not allow it. Nothing was changed.
    #[error("the bounds of counter {0} do not allow that")]
    OutOfBounds(String),
    /// The caller's: handles of this client have a near cache of it already, of other bounds or with other encodings.
    #[error("there is another near cache of {0}")]
    NearCacheConflict(String),
    /// The server speaks no version that has this operation. Nothing was changed.
    #[error("{operation} needs version {needed}, {server} speaks {spoken}")]
    Unsupported {
        /// The operation.
        operation: &'static str,
        /// The first version that has it.
        needed: ProtocolVersion,
        /// The server.
        server: String,
        /// The version that is spoken with it.
        spoken: ProtocolVersion,
    },
    /// There was no answer in time.
    #[error("no answer within {after:?}")]
    TimedOut {
        /// How long that was.
        after: Duration,
        /// A write was sent: it may have been done, or may still be.
        is_outcome_unknown: bool,
    },
    /// The network's: no server could be reached in time. Nothing was changed.
    #[error("no server could be reached within {after:?}{}", because(.cause.as_ref()))]
    Unreachable {
        /// How long that was.
        after: Duration,
        /// What was wrong with one of them.
        cause: Option<ConnectionError>,
    },
    /// The network's or a server's: the connection was lost after a write was sent, or the server could not tell whether
    /// others had it. It may have been done, or may still be.
    #[error("{server}: {cause}; the write may have been done")]
    Uncertain {
        /// The server.
        server: String,
        /// What has happened.
        cause: ConnectionError,
    },
    /// The network's or a server's: the connection was lost on which a value was read or written in pieces. Nothing was
    /// changed. To go on, begin again.
    #[error("{server}: {cause}; the value has to be begun again")]
    StreamLost {
        /// The server.
        server: String,
        /// What has happened.
        cause: ConnectionError,
    },
    /// The caller's: its user may not do that, or the server wants to know first who the user is. Nothing was changed.
    #[error("{server}: {message}")]
    Denied {
        /// The server.
        server: String,
        /// What it says: the user, the operation, and what is missing.
        message: String,
    },
    /// Others changed the key again and again ([`crate::Cache::compute`]). Nothing was changed.
    #[error("the key was changed by others in each of {attempts} attempts")]
    Contended {
        /// How often it was tried.
        attempts: u32,
    },
    /// The network's or a server's: a walk was interrupted, and what is left of it cannot be told any more. What came
    /// before was right.
    #[error("a walk through cache {cache} was interrupted and cannot go on elsewhere")]
    IterationInterrupted {
        /// The cache.
        cache: String,
    },
    /// The server's: it could not do it.
    #[error("{server}: {message} ({status:?})")]
    Server {
        /// The server.
        server: String,
        /// What kind of error it is.
        status: Status,
        /// What it says.
        message: String,
    },
    /// The server's: it answers something that was not asked.
    #[error("{server} answers {operation} with {found}")]
    ProtocolViolation {
        /// The server.
        server: String,
        /// What was asked.
        operation: &'static str,
        /// What it answers.
        found: String,
    },
}

fn because(cause: Option<&ConnectionError>) -> String {
    cause.map_or_else(String::new, |cause| format!(": {cause}"))
}

impl ClientError {
    /// Whether a write that ended so may have been done, or may still be. After other errors nothing was changed.
    pub const fn is_outcome_unknown(&self) -> bool {
        match self {
            Self::Closed | Self::Uncertain { .. } | Self::ProtocolViolation { .. } => true,
            Self::TimedOut { is_outcome_unknown, .. } => *is_outcome_unknown,
            Self::Server { status, .. } => matches!(status, Status::ServerError | Status::TimedOut),
            _ => false,
        }
    }
}

/// An operation on many keys has failed ([`crate::Cache::get_all`], [`crate::Cache::put_all`], [`crate::Cache::remove_all`]).
#[derive(Clone, Debug, thiserror::Error)]
#[error("of the keys, {}: {error}", among(.places))]
pub struct KeysError {
    /// Which keys: their places among those that were given, from 0 on. It is one where that is known; else those of the request
    /// that failed, in its order, of which a server may have done some before it came to the one that its error names.
    pub places: Vec<usize>,
    /// Why, and what may have been changed of these keys.
    #[source]
    pub error: ClientError,
}

impl From<KeysError> for ClientError {
    /// Whichever keys it were.
    fn from(failed: KeysError) -> Self {
        failed.error
    }
}

/// Places that are told at most.
const PLACES_TOLD: usize = 8;

fn among(places: &[usize]) -> String {
    let told: Vec<String> = places.iter().take(PLACES_TOLD).map(usize::to_string).collect();
    let (told, more) = (told.join(", "), places.len().saturating_sub(PLACES_TOLD));
    match (places.len(), more) {
        (1, _) => format!("that at {told}"),
        (_, 0) => format!("one of those at {told}"),
        _ => format!("one of those at {told} and {more} more"),
    }
}

/// A connection to a server could not be had, or is no more.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectionError {
    /// The network's.
    #[error("{0}")]
    Io(Arc<io::Error>),
    /// Either side's: certificates are not believed, or one of them does not speak TLS.
    #[error("TLS: {0}")]
    Tls(String),
    /// The server does not know who we are, or is not the one it seems to be.
    #[error(transparent)]
    Login(#[from] LoginError),
    /// It took too long.
    #[error("no connection within {0:?}")]
    ConnectTimedOut(Duration),
    /// The server wanted it so.
    #[error("the server has closed the connection")]
    ClosedByServer,
    /// The server's: bytes that are no answer.
    #[error("the server's answer cannot be read: {0}")]
    Unreadable(#[from] DecodeError),
    /// The server complains.
    #[error("the server refuses: {0}")]
    Refused(String),
    /// The server only speaks versions that are older than the one that is asked for, or than all that are spoken here.
    #[error("the server speaks {} at most, {needed} is needed", spoken(*.newest))]
    VersionTooOld {
        /// Its newest version, by its byte.
        newest: u8,
        /// The oldest that would do.
        needed: ProtocolVersion,
    },
    /// Nobody answers any more.
    #[error("the server has said nothing for {0:?}")]
    PingTimedOut(Duration),
    /// A request was forgotten.
    #[error("a request had no answer {0:?} after its deadline")]
    ResponseTimedOut(Duration),
    /// Another member that the server needed is suspected.
    #[error("the server says: {0}")]
    Suspected(String),
    /// The server ends. It has answered all requests that it has begun.
    #[error("the server ends")]
    ServerEnds,
    /// It is not needed any more.
    #[error("the connection was closed here")]
    ClosedLocally,
}

fn spoken(newest: u8) -> String {
    format!("{}.{}", newest / 10, newest % 10)
}

impl From<io::Error> for ConnectionError {
    fn from(error: io::Error) -> Self {
        match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
            Some(error) => Self::Tls(error.to_string()),
            None => Self::Io(Arc::new(error)),
        }
    }
}

/// A client could not connect. Nothing is left open.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The caller's: it is not said where to.
    #[error("that says not where to connect to: {reason}")]
    Uri {
        /// What is wrong with it. It is not repeated here: it may have a password.
        reason: String,
    },
    /// The caller's: certificates or keys do not do.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// No server could be reached: each by its address, with the reason.
    #[error("no server can be reached: {}", listed(.0))]
    Unreachable(Vec<(String, ConnectionError)>),
}

fn listed(servers: &[(String, ConnectionError)]) -> String {
    let each: Vec<String> = servers.iter().map(|(server, cause)| format!("{server}: {cause}")).collect();
    each.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_for_many_keys_says_which_ones_it_was_for() {
        let told = |places: std::ops::Range<usize>| {
            KeysError { places: places.collect(), error: ClientError::Closed }.to_string()
        };
        assert_eq!(told(3..4), "of the keys, that at 3: the client is closed");
        assert_eq!(told(3..5), "of the keys, one of those at 3, 4: the client is closed");
        let many = "of the keys, one of those at 0, 1, 2, 3, 4, 5, 6, 7 and 92 more: the client is closed";
        assert_eq!(told(0..100), many);
    }
}
