//! Why a cache cannot be made, changed, removed or opened.

use consort_cache::{CacheError, NotHandedOver, OpenError};

use crate::bounds::CACHES_MAX;
use crate::data::DataError;
use crate::definition::DefinitionError;

/// A cache could not be made, changed or removed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AdminError {
    /// As Infinispan says it.
    #[error("ISPN000507: Cache {0} already exists")]
    Exists(String),
    /// Names that are ours.
    #[error("cache name '{0}' is reserved")]
    Reserved(String),
    #[error("there are {CACHES_MAX} caches already")]
    TooMany,
    #[error("there is no cache '{0}'")]
    None(String),
    #[error(
        "cache '{0}' is degraded all the same: the cluster's coordinator may have gone, or others have; try again"
    )]
    StillDegraded(String),
    #[error(transparent)]
    Definition(#[from] DefinitionError),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Cache(#[from] CacheError),
    #[error(transparent)]
    Leave(#[from] NotHandedOver),
    #[error(transparent)]
    Data(#[from] DataError),
    #[error(
        "cache configuration: persistence: this server has no directory for data; start every server with --data DIRECTORY"
    )]
    NoData,
    #[error("cache configuration: persistence: the definition of a volatile cache ends with the last server")]
    VolatileStore,
    #[error("cache '{0}' is there and is different; it is removed and made again")]
    Different(String),
    /// As Infinispan says it.
    #[error("Indexing was not enabled on cache {0}")]
    NotIndexed(String),
}
