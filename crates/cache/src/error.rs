//! What can go wrong, per operation, and what it leaves behind.

use std::sync::Arc;
use std::time::Duration;

use consort_channel::ConnectError;
use consort_grid::{IterationError, ListenError, OpenError as Refusal, OperationError};

use consort_store::StoreError;

use consort_encoding::EncodingError;

/// An operation has failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError {
    /// The grid could not do it; [`OperationError`] says what may have been changed.
    #[error(transparent)]
    Operation(OperationError),
    /// A key or value could not be written or read as bytes. Nothing was changed.
    #[error(transparent)]
    Encoding(#[from] EncodingError),
    /// The cache is closed here. Nothing was changed.
    #[error("cache is closed")]
    Closed,
    /// A walk cannot go on. What it gave was right.
    #[error(transparent)]
    Iteration(IterationError),
    /// A listener cannot be had.
    #[error(transparent)]
    Listener(ListenError),
    /// Others changed the key again and again ([`crate::Cache::compute`]). Nothing was changed.
    #[error("the key was changed by others in each of {attempts} attempts")]
    Contended {
        /// How often it was tried.
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

/// One of several keys has failed ([`crate::Cache::get_all`], [`crate::Cache::put_all`], [`crate::Cache::remove_all`]).
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("of the keys, that at {nth}: {error}")]
pub struct KeyError {
    /// Its place among those that were given, from 0 on: the first that has failed, in their order.
    pub nth: usize,
    /// Why, and what may have been changed of this key.
    #[source]
    pub error: CacheError,
}

impl From<(usize, OperationError)> for KeyError {
    fn from((nth, error): (usize, OperationError)) -> Self {
        Self { nth, error: error.into() }
    }
}

impl From<KeyError> for CacheError {
    /// Whichever key it was.
    fn from(failed: KeyError) -> Self {
        failed.error
    }
}

/// A cache could not be opened here.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Its settings make no sense, or the cluster has others: both sides are named.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// It is open here with other settings.
    #[error("cache {cache}: {setting} is {ours} where it is open and {asked} was asked for")]
    OpenDifferently {
        /// The cache.
        cache: Arc<str>,
        /// The setting.
        setting: &'static str,
        /// As it is open.
        ours: String,
        /// As it was asked for.
        asked: String,
    },
    /// Its store does not open, or cannot be read. Nothing was changed.
    #[error("cache {cache}: {error}")]
    Store {
        /// The cache.
        cache: Arc<str>,
        /// What the store says.
        error: StoreFault,
    },
    /// What its store remembers of the cluster cannot be read. Nothing was changed.
    #[error("cache {cache}: {error}")]
    Unreadable {
        /// The cache.
        cache: Arc<str>,
        /// What is wrong with it.
        error: consort_grid::Unreadable,
    },
    /// Its store has entries and does not say of which cluster they are. Nothing was changed; who does not want them
    /// purges the store ([`crate::Persistence::purge_on_start`]).
    #[error("cache {cache}: its store has {entries} entries of nobody knows which cluster")]
    Foreign {
        /// The cache.
        cache: Arc<str>,
        /// How many.
        entries: u64,
    },
    /// It is being closed here.
    #[error("cache {0} is being closed")]
    Closing(Arc<str>),
    /// The coordinator has not let it join in time. It is not open here.
    #[error("cache {cache} has no topology after {after:?}{}", waits_for(*remembered))]
    TimedOut {
        /// The cache.
        cache: Arc<str>,
        /// How long that was.
        after: Duration,
        /// How many members there were when its store was written to last: all of them have to be back. 0 if it remembers
        /// nothing.
        remembered: usize,
    },
    /// The manager's file does not know it.
    #[error("{file} has no cache {cache}; it has {known}")]
    Undefined {
        /// The cache.
        cache: Arc<str>,
        /// The file.
        file: Arc<str>,
        /// The caches that it has.
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
            ": its store is of {members} members, and it waits until all are back or it is made available without them"
        ),
    }
}

/// What a store says that does not do what it should. Two are equal if they say the same.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct StoreFault(#[source] pub Arc<StoreError>);

impl PartialEq for StoreFault {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.to_string() == other.0.to_string()
    }
}

impl Eq for StoreFault {}

/// A manager could not connect. Nothing is left open.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ManagerError {
    /// The channel could not.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// No file says which cluster to join.
    #[error("no cluster is named: give the transport of the configuration a `cluster`")]
    NoCluster,
}

/// A cache was closed here before all that depended on this member was elsewhere: what only this member had is lost.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("cache {cache} was not handed over within {after:?}")]
pub struct NotHandedOver {
    /// The cache.
    pub cache: Arc<str>,
    /// How long it was waited for.
    pub after: Duration,
}
