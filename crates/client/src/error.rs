//! Errors of the client: each says which side caused it and which effects it leaves.

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
    /// Caller: a key or value cannot be encoded or decoded. If decoding failed, the read was done.
    #[error(transparent)]
    Encoding(#[from] EncodingError),
    /// Caller: a key or value is larger than servers accept. Nothing was changed.
    #[error("{what} of {length} bytes is too large; the limit is {limit} bytes")]
    TooLarge {
        /// The oversized part.
        what: &'static str,
        /// Its size in bytes.
        length: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// Caller: the client is closed. A write in progress may have been applied.
    #[error("the client is closed")]
    Closed,
    /// Caller or server: no such cache. Nothing was changed.
    #[error("there is no cache {0}")]
    NoSuchCache(String),
    /// Caller: the client has no cluster of this name. Nothing was changed.
    #[error("there is no cluster {0}")]
    NoSuchCluster(String),
    /// Caller or server: no such counter. Nothing was changed.
    #[error("there is no counter {0}")]
    NoSuchCounter(String),
    /// Caller: the counter's bounds do not allow the change. Nothing was changed.
    #[error("the value would exceed the bounds of counter {0}")]
    OutOfBounds(String),
    /// Caller: handles of this client have a near cache of the cache with other settings or encodings.
    #[error("cache {0} already has a near cache with other settings")]
    NearCacheConflict(String),
    /// The negotiated version does not have this operation. Nothing was changed.
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
        /// A write was sent: it may have been applied, or may still be.
        is_outcome_unknown: bool,
    },
    /// Network: no server was reachable in time. Nothing was changed.
    #[error("no server could be reached within {after:?}{}", because(.cause.as_ref()))]
    Unreachable {
        /// The timeout.
        after: Duration,
        /// The failure of one of the servers.
        cause: Option<ConnectionError>,
    },
    /// Network or server: the connection was lost after a write was sent, or the server does not know whether
    /// the other owners have the write. It may have been applied, or may still be.
    #[error("{server}: {cause}; the write may have been done")]
    Uncertain {
        /// The server.
        server: String,
        /// The cause.
        cause: ConnectionError,
    },
    /// Network or server: the connection of a value in chunks was lost. Nothing was changed. Start the value
    /// again.
    #[error("{server}: {cause}; read or write the value from its start again")]
    StreamLost {
        /// The server.
        server: String,
        /// The cause.
        cause: ConnectionError,
    },
    /// Caller: the user has no permission, or the server requires authentication. Nothing was changed.
    #[error("{server}: {message}")]
    Denied {
        /// The server.
        server: String,
        /// The server's message: the user, the operation and the missing permission.
        message: String,
    },
    /// The key was changed concurrently in every attempt ([`crate::Cache::compute`]). Nothing was changed.
    #[error("the key was changed concurrently in each of {attempts} attempts")]
    Contended {
        /// The number of attempts.
        attempts: u32,
    },
    /// Network or server: an iteration was interrupted and cannot resume. The items before were valid.
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
    /// Whether a write that failed with this error may have been applied, or may still be. After other errors
    /// nothing was changed.
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
    /// The indices of the affected keys in the caller's input: one index if the key is known, else those of
    /// the failed request, in its order. The server may have executed some of them before the failure.
    pub places: Vec<usize>,
    /// The cause, and what may have been changed of these keys.
    #[source]
    pub error: ClientError,
}

impl From<KeysError> for ClientError {
    /// Drops the keys' indices.
    fn from(failed: KeysError) -> Self {
        failed.error
    }
}

/// Maximum number of indices in the message.
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

/// The failure of authentication, of the client or of the server. No operation was sent.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoginError {
    /// Caller or server: unknown user, or wrong password, certificate or token. No server says which.
    #[error("authentication failed ({mechanism}): {message}")]
    Rejected {
        /// The mechanism.
        mechanism: Mechanism,
        /// The server's message.
        message: String,
    },
    /// Caller or server: no mechanism is supported by both.
    #[error("the server offers {offered}; {reason}")]
    NoMechanism {
        /// The mechanisms that the server offers.
        offered: String,
        /// Why the client can use none of them.
        reason: &'static str,
    },
    /// Server: it does not offer authentication, usually because it has no users.
    #[error("the server does not offer authentication: {0}")]
    NotAsked(String),
    /// Caller: the name or password has prohibited characters.
    #[error("the user name or password is empty or has prohibited characters")]
    InvalidNameOrPassword,
    /// Server: its part of the exchange is invalid. An impostor has not learnt the password.
    #[error("{mechanism}: {error}")]
    Scram {
        /// The mechanism.
        mechanism: Mechanism,
        /// The error.
        error: ScramError,
    },
    /// Server: a message that the mechanism does not allow in this state.
    #[error("unexpected authentication message from the server ({0})")]
    OutOfTurn(Mechanism),
    /// System: no random numbers.
    #[error("the system has no random numbers")]
    NoRandomness,
}

/// Why a connection failed or ended.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectionError {
    /// Network.
    #[error("{0}")]
    Io(Arc<io::Error>),
    /// Either side: an untrusted certificate, or a peer without TLS.
    #[error("TLS: {0}")]
    Tls(String),
    /// Authentication of the client or the server failed.
    #[error(transparent)]
    Login(#[from] LoginError),
    /// Connecting took too long.
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
    /// The server supports only versions older than the forced one, or than all that the client supports.
    #[error("the server supports versions up to {}; {needed} is needed", spoken(*.newest))]
    VersionTooOld {
        /// The server's newest version, as its byte.
        newest: u8,
        /// The oldest version that would suffice.
        needed: ProtocolVersion,
    },
    /// The server did not respond to PINGs.
    #[error("the server sent nothing for {0:?}")]
    PingTimedOut(Duration),
    /// A request stayed without a response.
    #[error("a request had no response {0:?} after its deadline")]
    ResponseTimedOut(Duration),
    /// The server suspects a member that it needed for the operation.
    #[error("the server suspects a member: {0}")]
    Suspected(String),
    /// The server shuts down. It has answered all requests that it had begun.
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

/// The failure to connect a client. No connection stays open.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// Caller: the URI is invalid.
    #[error("invalid Hot Rod URI: {reason}")]
    Uri {
        /// The reason. It does not quote the URI, which may have a password.
        reason: String,
    },
    /// Caller: invalid certificates or keys.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// No server is reachable: the addresses with the reasons.
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
