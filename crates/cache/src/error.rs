use std::sync::Arc;
use std::time::Duration;

use consort_channel::ConnectError;
use consort_grid::{IterationError, ListenError, OpenError as Refusal, OperationError};

use consort_store::StoreError;

use consort_encoding::EncodingError;

/// An error of an operation.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError {
    /// The grid failed; [`OperationError`] says whether the key may have been changed.
    #[error(transparent)]
    Operation(OperationError),
    /// A key or value cannot be encoded or decoded. Nothing was changed.
    #[error(transparent)]
    Encoding(#[from] EncodingError),
    /// The cache is closed here. Nothing was changed.
    #[error("cache is closed")]
    Closed,
    /// A transaction kept the key's lock. Nothing was changed.
    #[error("the key was locked by a transaction for {after:?}; try again")]
    Locked {
        /// The wait.
        after: Duration,
    },
    /// An iteration cannot go on. Earlier items are valid.
    #[error(transparent)]
    Iteration(IterationError),
    /// A listener cannot be added.
    #[error(transparent)]
    Listener(ListenError),
    /// Concurrent changes in every attempt ([`crate::Cache::compute`]). Nothing was changed.
    #[error("the key was changed by other callers in each of {attempts} attempts")]
    Contended {
        /// Number of attempts.
        attempts: u32,
    },
}

impl From<OperationError> for CacheError {
    fn from(error: OperationError) -> Self {
        match error {
            OperationError::Closed => Self::Closed,
            error => Self::Operation(error),
        }
    }
}

/// An error of one of several keys ([`crate::Cache::get_all`], [`crate::Cache::put_all`],
/// [`crate::Cache::remove_all`]).
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("key {nth}: {error}")]
pub struct KeyError {
    /// Argument index, from 0, of the first key that failed.
    pub nth: usize,
    /// Its error, with whether it may have been changed.
    #[source]
    pub error: CacheError,
}

impl From<(usize, OperationError)> for KeyError {
    fn from((nth, error): (usize, OperationError)) -> Self {
        Self { nth, error: error.into() }
    }
}

impl From<KeyError> for CacheError {
    fn from(failed: KeyError) -> Self {
        failed.error
    }
}

/// Why a cache could not be opened here.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Invalid settings, or others than the cluster's: the error names both.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The cache is open here with other settings.
    #[error("cache {cache}: {setting} is {ours} where it is open and {asked} was asked for")]
    LocalConfigMismatch {
        /// The cache.
        cache: Arc<str>,
        /// The setting.
        setting: &'static str,
        /// The open cache's value.
        ours: String,
        /// The requested value.
        asked: String,
    },
    /// The store cannot be opened or read. Nothing was changed.
    #[error("cache {cache}: {error}")]
    Store {
        /// The cache.
        cache: Arc<str>,
        /// The store's error.
        error: StoreFault,
    },
    /// The store's cluster state cannot be read. Nothing was changed.
    #[error("cache {cache}: {error}")]
    Unreadable {
        /// The cache.
        cache: Arc<str>,
        /// The reason.
        error: consort_grid::CorruptPersistedState,
    },
    /// The store has entries but no cluster state. Nothing was changed. To discard them, purge the store
    /// ([`crate::Persistence::purge_on_start`]).
    #[error(
        "cache {cache}: its store has {entries} entries and no record of their cluster; \
         restore its files from a copy, or open the cache with another directory"
    )]
    UnknownStoreOrigin {
        /// The cache.
        cache: Arc<str>,
        /// Number of entries.
        entries: u64,
    },
    /// The cache is being closed here.
    #[error("cache {0} is being closed")]
    Closing(Arc<str>),
    /// The coordinator did not let the member join in time.
    #[error("cache {cache} has no topology after {after:?}{}", waits_for(*remembered))]
    TimedOut {
        /// The cache.
        cache: Arc<str>,
        /// The timeout.
        after: Duration,
        /// Members at the last write to the store, all of which have to be back; 0 without cluster state.
        remembered: usize,
    },
    /// The manager's file lacks the cache.
    #[error("{file} has no cache {cache}; it has {known}")]
    NotInFile {
        /// The cache.
        cache: Arc<str>,
        /// The file.
        file: Arc<str>,
        /// The caches in the file.
        known: String,
    },
    /// The manager is closed.
    #[error("the manager is closed")]
    Closed,
}

fn waits_for(remembered: usize) -> String {
    match remembered {
        0 | 1 => String::new(),
        members => format!(
            ": its store was written by a cluster of {members} members; it opens when all of them have rejoined, or when it is \
             made available without them"
        ),
    }
}

/// A store's error; equal if the texts are.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct StoreFault(#[source] pub Arc<StoreError>);

impl PartialEq for StoreFault {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.to_string() == other.0.to_string()
    }
}

impl Eq for StoreFault {}

/// Why a manager could not connect. No resource stays open.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ManagerError {
    /// The channel could not connect.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The configuration does not name a cluster.
    #[error("no cluster is named: give the transport of the configuration a `cluster`")]
    NoCluster,
}

/// A cache was closed here before other members had all its data: data that only this member had is lost.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("cache {cache} was not handed over within {after:?}")]
pub struct HandoverTimeout {
    /// The cache.
    pub cache: Arc<str>,
    /// How long closing waited.
    pub after: Duration,
}
