//! The persistent data of a server: a directory, and within it one directory for each of the internal caches that outlive a
//! full restart.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use consort_cache::{
    CacheBuilder, CacheManager, DirectoryLock, Durability, OpenError, Persistence, RawCache,
};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

use crate::limits::RECOVERY_CHECK_INTERVAL;

/// The directory for persistent data, and the recovery timeout.
#[derive(Clone, Debug)]
pub(crate) struct Data {
    pub(crate) directory: PathBuf,
    /// The directory's lock, which stores of caches share.
    lock: Arc<DirectoryLock>,
    /// Without a timeout, a start waits for the missing servers without limit.
    pub(crate) recovery_timeout: Option<Duration>,
}

/// The persistent data cannot be used. They are unchanged.
#[derive(Debug, thiserror::Error)]
#[error("cannot use the data {place}: {error}")]
pub struct DataError {
    /// The data with the error: those in a directory, or those of the cluster.
    place: String,
    error: String,
}

impl Data {
    /// Locks a directory, which no other server may use.
    pub(crate) async fn in_directory(
        directory: PathBuf,
        recovery_timeout: Option<Duration>,
    ) -> Result<Self, DataError> {
        let locked = directory.clone();
        let lock = spawn_blocking(move || DirectoryLock::take(locked).map_err(|error| error.to_string()));
        let lock = lock.await.unwrap_or_else(|error| Err(error.to_string()));
        let lock = lock.map_err(|error| DataError { place: format!("in {}", directory.display()), error })?;
        Ok(Self { directory, lock, recovery_timeout })
    }

    /// The store of a cache in a directory within this one.
    pub(crate) fn store(&self, directory: &Path) -> Persistence {
        Persistence::directory(directory).locked_by(self.lock.clone())
    }

    /// Makes an error that names the data.
    fn error(&self, error: OpenError) -> DataError {
        let (directory, error) = match error {
            OpenError::Store { cache, error } => (self.directory.join(&*cache), error.to_string()),
            error => (self.directory.clone(), error.to_string()),
        };
        DataError { place: format!("in {}", directory.display()), error }
    }
}

/// Opens a cache that outlives all servers. Servers with a directory for data store it.
pub(crate) async fn open(
    manager: &CacheManager,
    name: &str,
    opening: CacheBuilder<'_>,
    data: Option<&Data>,
    durability: Durability,
) -> Result<RawCache, DataError> {
    let opening = match data {
        Some(data) => opening.persistence(data.store(&data.directory.join(name)).durability(durability)),
        None => opening,
    };
    let opened = open_with_all(manager, name, opening, data).await;
    opened.map_err(|error| match data {
        Some(data) => data.error(error),
        None => DataError { place: "of the cluster".to_owned(), error: error.to_string() },
    })
}

/// Opens a cache that outlives all servers. If the last topology had other servers, opening waits for them.
pub(crate) async fn open_with_all(
    manager: &CacheManager,
    name: &str,
    opening: CacheBuilder<'_>,
    data: Option<&Data>,
) -> Result<RawCache, OpenError> {
    let opening = opening.open_timeout(Duration::MAX).raw();
    tokio::pin!(opening);
    let begun = Instant::now();
    loop {
        let waited = tokio::select! {
            opened = &mut opening => return opened,
            () = sleep(RECOVERY_CHECK_INTERVAL) => begun.elapsed(),
        };
        if data.and_then(|data| data.recovery_timeout).is_some_and(|timeout| waited >= timeout) {
            tracing::warn!(
                cache = name,
                "recovery timeout: opening the cache without the missing servers that also store it"
            );
            manager.make_available(name);
        }
    }
}
