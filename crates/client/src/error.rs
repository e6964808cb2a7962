//! Errors: each says which side caused it and its effects.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use consort_encoding::EncodingError;
use consort_hotrod::{DecodeError, ProtocolVersion, Status};
use consort_sasl::Mechanism;
use consort_sasl::scram::ScramError;
use consort_tls::TlsError;

/// The failure of an operation.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// Caller: a key or value cannot be encoded or decoded. A read that cannot be decoded was done.
    #[error(transparent)]
    Encoding(#[from] EncodingError),
    /// Caller: a key or value is too large. Nothing was changed.
    #[error("{what} of {length} bytes is too large; the limit is {limit} bytes")]
    TooLarge {
        /// The oversized part.
        what: &'static str,
        /// Size in bytes.
        length: usize,
        /// Limit in bytes.
        limit: usize,
    },
    /// Caller: the client is closed. A write in progress may have been applied.
    #[error("the client is closed")]
    Closed,
    /// Caller or server: no such cache. Nothing was changed.
    #[error("there is no cache {0}")]
    NoSuchCache(String),
    /// Caller: no such cluster in this client. Nothing was changed.
    #[error("there is no cluster {0}")]
    NoSuchCluster(String),
    /// Caller or server: no such counter. Nothing was changed.
    #[error("there is no counter {0}")]
    NoSuchCounter(String),
    /// Caller: the change exceeds the counter's bounds. Nothing was changed.
    #[error("the value would exceed the bounds of counter {0}")]
    OutOfBounds(String),
    /// Caller: this client has a near cache of the cache with other settings or encodings.
    #[error("cache {0} already has a near cache with other settings")]
    NearCacheConflict(String),
    /// The negotiated version lacks this operation. Nothing was changed.
    #[error("{operation} needs version {needed}, {server} speaks {spoken}")]
    Unsupported {
        /// The operation.
        operation: &'static str,
        /// The first version with the operation.
        needed: ProtocolVersion,
        /// The server.
        server: String,
        /// The negotiated version.
        spoken: ProtocolVersion,
    },
    /// The response did not arrive in time.
    #[error("timed out after {after:?}")]
    TimedOut {
        /// The timeout.
        after: Duration,
        /// A write was sent; it may have been or still be applied.
        is_outcome_unknown: bool,
    },
    /// Network: no server was reachable in time. Nothing was changed.
    #[error("no server could be reached within {after:?}{}", because(.cause.as_ref()))]
    Unreachable {
        /// The timeout.
        after: Duration,
        /// One server's failure.
        cause: Option<ConnectionError>,
    },
    /// Network or server: the connection was lost after a write was sent, or the server does not know whether the other owners
    /// have it. The write may have been or still be applied.
    #[error("{server}: {cause}; the write may have been done")]
    Uncertain {
        /// The server.
        server: String,
        /// The cause.
        cause: ConnectionError,
    },
    /// Network or server: the connection of a value in chunks was lost. Nothing was changed; start again.
    #[error("{server}: {cause}; read or write the value from its start again")]
    StreamLost {
        /// The server.
        server: String,
        /// The cause.
        cause: ConnectionError,
    },
    /// Caller: no permission, or the server requires authentication. Nothing was changed.
    #[error("{server}: {message}")]
    Denied {
        /// The server.
        server: String,
        /// The server's message: user, operation, missing permission.
        message: String,
    },
    /// Concurrent changes in every attempt ([`crate::Cache::compute`]). Nothing was changed.
    #[error("the key was changed concurrently in each of {attempts} attempts")]
    Contended {
        /// The number of attempts.
        attempts: u32,
    },
    /// Network or server: an iteration cannot resume. Earlier items are valid.
    #[error("the iteration of cache {cache} was interrupted and cannot resume on another server")]
    IterationInterrupted {
        /// The cache.
        cache: String,
    },
    /// Server: it failed to execute the operation.
    #[error("{server}: {message} ({status:?})")]
    Server {
        /// The server.
        server: String,
        /// The kind of error.
        status: Status,
        /// The server's message.
        message: String,
    },
    /// Server: a response of the wrong type.
    #[error("{server} sent an invalid response to {operation}: {found}")]
    ProtocolViolation {
        /// The server.
        server: String,
        /// The operation.
        operation: &'static str,
        /// The response.
        found: String,
    },
}

fn because(cause: Option<&ConnectionError>) -> String {
    cause.map_or_else(String::new, |cause| format!(": {cause}"))
}

impl ClientError {
    /// Returns whether a write that failed with this error may have been or still be applied. After other errors nothing was
    /// changed.
    pub const fn is_outcome_unknown(&self) -> bool {
        match self {
            Self::Closed | Self::Uncertain { .. } | Self::ProtocolViolation { .. } => true,
            Self::TimedOut { is_outcome_unknown, .. } => *is_outcome_unknown,
            Self::Server { status, .. } => matches!(status, Status::ServerError | Status::TimedOut),
            _ => false,
        }
    }
}

/// The failure of an operation on many keys ([`crate::Cache::get_all`], [`crate::Cache::put_all`],
/// [`crate::Cache::remove_all`]).
#[derive(Clone, Debug, thiserror::Error)]
#[error("{}: {error}", among(.places))]
pub struct KeysError {
    /// Indices of the affected keys in the caller's input: one if known, else those of the failed request, in its order, some of
    /// which the server may have executed.
    pub places: Vec<usize>,
    /// The cause and effects of the failure.
    #[source]
    pub error: ClientError,
}

impl From<KeysError> for ClientError {
    fn from(failed: KeysError) -> Self {
        failed.error
    }
}

const PLACES_LISTED: usize = 8;

fn among(places: &[usize]) -> String {
    let listed: Vec<String> = places.iter().take(PLACES_LISTED).map(usize::to_string).collect();
    let (listed, more) = (listed.join(", "), places.len().saturating_sub(PLACES_LISTED));
    match (places.len(), more) {
        (1, _) => format!("key {listed}"),
        (_, 0) => format!("one of the keys {listed}"),
        _ => format!("one of the keys {listed} and {more} more"),
    }
}

/// The failure of authentication, on either side. No operation was sent.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoginError {
    /// Caller or server: unknown user, or wrong password, certificate or token; servers do not say which.
    #[error("authentication failed ({mechanism}): {message}")]
    Rejected {
        /// The mechanism.
        mechanism: Mechanism,
        /// The server's message.
        message: String,
    },
    /// Caller or server: no common mechanism.
    #[error("the server offers {offered}; {reason}")]
    NoMechanism {
        /// The server's mechanisms.
        offered: String,
        /// Why the client can use none of them.
        reason: &'static str,
    },
    /// Server: no authentication, usually because it has no users.
    #[error("the server does not offer authentication: {0}")]
    NotAsked(String),
    /// Caller: prohibited characters in the name or password.
    #[error("the user name or password is empty or has prohibited characters")]
    InvalidNameOrPassword,
    /// Server: invalid exchange. An impostor has not learnt the password.
    #[error("{mechanism}: {error}")]
    Scram {
        /// The mechanism.
        mechanism: Mechanism,
        /// The error.
        error: ScramError,
    },
    /// Server: a message not allowed in this state.
    #[error("unexpected authentication message from the server ({0})")]
    OutOfTurn(Mechanism),
    /// System: no random numbers.
    #[error("the system has no random numbers")]
    NoRandomness,
}

/// The reason why a connection failed or ended.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectionError {
    /// Network.
    #[error("{0}")]
    Io(Arc<io::Error>),
    /// Either side: untrusted certificate, or no TLS.
    #[error("TLS: {0}")]
    Tls(String),
    /// The failure of authentication.
    #[error(transparent)]
    Login(#[from] LoginError),
    /// Connecting took this long.
    #[error("no connection within {0:?}")]
    ConnectTimedOut(Duration),
    /// The server closed the connection.
    #[error("the server has closed the connection")]
    ClosedByServer,
    /// Server: invalid bytes.
    #[error("the server sent an invalid response: {0}")]
    Unreadable(#[from] DecodeError),
    /// The server refused the connection.
    #[error("the server refuses: {0}")]
    Refused(String),
    /// The server supports only versions older than the forced one, or than the client's oldest.
    #[error("the server supports versions up to {}; {needed} is needed", spoken(*.newest))]
    VersionTooOld {
        /// The server's newest version as its byte.
        newest: u8,
        /// The oldest sufficient version.
        needed: ProtocolVersion,
    },
    /// No response to PINGs.
    #[error("the server sent nothing for {0:?}")]
    PingTimedOut(Duration),
    /// A request without a response.
    #[error("a request had no response {0:?} after its deadline")]
    ResponseTimedOut(Duration),
    /// The server suspects a member that the operation needs.
    #[error("the server suspects a member: {0}")]
    Suspected(String),
    /// The server shuts down, with all begun requests answered.
    #[error("the server shuts down")]
    ServerEnds,
    /// The client closed the connection.
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

/// The failure to connect. No connection stays open.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// Caller: invalid URI.
    #[error("invalid Hot Rod URI: {reason}")]
    Uri {
        /// The reason, without the URI, which may have a password.
        reason: String,
    },
    /// Caller: invalid certificates or keys.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// No server is reachable: addresses and reasons.
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
        let message = |places: std::ops::Range<usize>| {
            KeysError { places: places.collect(), error: ClientError::Closed }.to_string()
        };
        assert_eq!(message(3..4), "key 3: the client is closed");
        assert_eq!(message(3..5), "one of the keys 3, 4: the client is closed");
        let many = "one of the keys 0, 1, 2, 3, 4, 5, 6, 7 and 92 more: the client is closed";
        assert_eq!(message(0..100), many);
    }
}
