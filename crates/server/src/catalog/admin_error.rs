use consort_cache::{CacheError, HandoverTimeout, OpenError};

use crate::catalog::data_directory::DataError;
use crate::catalog::definition::DefinitionError;
use crate::limits::{CACHE_NAME_MAX, CACHES_MAX};

/// A failed request about a cache's definition. Texts with a code, and that of [`AdminError::NotIndexed`], are Infinispan's.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AdminError {
    #[error("ISPN000507: Cache {0} already exists")]
    Exists(String),
    #[error("cache name '{0}' is reserved")]
    Reserved(String),
    #[error(transparent)]
    Exceeded(#[from] consort_memory::Exceeded),
    #[error("cannot read the definition: {0}")]
    Failed(String),
    #[error("the name has {0} bytes; the limit is {CACHE_NAME_MAX}")]
    LongName(usize),
    #[error("the limit of {CACHES_MAX} caches, aliases and templates is reached")]
    TooMany,
    #[error("ISPN000438: Cache with name '{0}' is defined more than once!")]
    Twice(String),
    #[error("ISPN000702: The alias '{alias}' is already being used by cache '{cache}'")]
    InUse { alias: String, cache: String },
    #[error("ISPN000436: Cache '{0}' has been requested, but no matching cache configuration exists")]
    NoCache(String),
    #[error("invalid alias '{0}': an alias has no spaces")]
    NoAlias(String),
    #[error("ISPN000453: Attempt to define configuration for cache {0} which already exists")]
    TemplateExists(String),
    #[error("template '{0}' comes with the server")]
    OwnTemplate(String),
    #[error("'{0}' is missing")]
    Missing(&'static str),
    #[error("there is no cache '{0}'")]
    None(String),
    #[error("cache '{0}' is still degraded: the coordinator or further members may have gone; try again")]
    StillDegraded(String),
    #[error(transparent)]
    Definition(#[from] DefinitionError),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Cache(#[from] CacheError),
    #[error(transparent)]
    Leave(#[from] HandoverTimeout),
    #[error(transparent)]
    Data(#[from] DataError),
    #[error(
        "cache configuration: persistence: this server has no directory for data; start every server with --data DIRECTORY"
    )]
    NoData,
    #[error("cache configuration: persistence: the definition of a volatile cache ends with the last server")]
    VolatileStore,
    #[error("cannot open the defined cache '{cache}' on this server: {error}")]
    NotOpened { cache: String, error: String },
    #[error("cache '{0}' exists with another configuration; remove and recreate it to change it")]
    ConfigMismatch(String),
    #[error("Indexing was not enabled on cache {0}")]
    NotIndexed(String),
}
