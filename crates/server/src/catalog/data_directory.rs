//! The persistent data of a server: a directory with one for each internal cache that outlives a full restart.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use consort_cache::{
    CacheBuilder, CacheManager, DirectoryLock, Durability, OpenError, Persistence, RawCache,
};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

use crate::limits::RECOVERY_CHECK_INTERVAL;

#[derive(Clone, Debug)]
pub(crate) struct Data {
    pub(crate) directory: PathBuf,
    lock: Arc<DirectoryLock>,
    /// Without it, a start waits for the missing servers without limit.
    pub(crate) recovery_timeout: Option<Duration>,
}

/// The persistent data cannot be used; they are unchanged.
#[derive(Debug, thiserror::Error)]
#[error("cannot use the data {place}: {error}")]
pub struct DataError {
    place: String,
    error: String,
}

impl Data {
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

    pub(crate) fn store(&self, directory: &Path) -> Persistence {
        Persistence::directory(directory).locked_by(self.lock.clone())
    }

    fn error(&self, error: OpenError) -> DataError {
        let (directory, error) = match error {
            OpenError::Store { cache, error } => (self.directory.join(&*cache), error.to_string()),
            error => (self.directory.clone(), error.to_string()),
        };
        DataError { place: format!("in {}", directory.display()), error }
    }
}

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

/// Like [`Data::open`], but waits for the other servers of the last topology.
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
