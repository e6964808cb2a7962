use consort_cache::{CacheError, HandoverTimeout, OpenError};

use crate::catalog::data_directory::DataError;
use crate::catalog::definition::DefinitionError;
use crate::limits::{CACHE_NAME_MAX, CACHES_MAX};
use crate::names::is_internal;
use crate::reply::{Answer, Refusal, exception};

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
    #[error("ISPN000485: Configuration '{0}' matches multiple wildcard templates")]
    ManyTemplates(String),
    #[error("template '{0}' comes with the server")]
    OwnTemplate(String),
    #[error("ISPN005030: Administration task invoked without required parameter '{0}'")]
    Missing(&'static str),
    #[error("ISPN000436: Cache '{0}' has been requested, but no matching cache configuration exists")]
    None(String),
    #[error("cache '{0}' is still degraded: the coordinator or further members may have gone; try again")]
    StillDegraded(String),
    #[error(
        "the change is recorded, but the coordinator has not applied it: the coordinator may have left, have an older version, or be no server; try again"
    )]
    RebalancingNotApplied,
    #[error(
        "no server stops: the coordinator did not confirm the stop; it may have left, have an older version, or be no server; try again"
    )]
    StopNotAgreed,
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

impl From<AdminError> for Refusal {
    fn from(error: AdminError) -> Self {
        let text = error.to_string();
        match error {
            AdminError::Cache(error) => error.into(),
            AdminError::Definition(DefinitionError::NoTemplate { .. } | DefinitionError::MediaType(_)) => {
                Self::new(text)
            }
            AdminError::Definition(DefinitionError::Invalid { .. }) => {
                Self::new(format!("ISPN000686: {text}"))
            }
            AdminError::Definition(_)
            | AdminError::Reserved(_)
            | AdminError::LongName(_)
            | AdminError::NoAlias(_)
            | AdminError::OwnTemplate(_)
            | AdminError::ManyTemplates(_)
            | AdminError::NoData
            | AdminError::VolatileStore
            | AdminError::ConfigMismatch(_) => Self::of(exception::CACHE_CONFIGURATION, text),
            AdminError::NotIndexed(_) => Self::of(exception::CACHE, text),
            _ => Self::new(text),
        }
    }
}

impl From<AdminError> for Answer {
    fn from(error: AdminError) -> Self {
        Refusal::from(error).into()
    }
}

/// Clients can create a cache of this name.
pub(crate) fn check_cache_name(name: &str) -> Result<(), AdminError> {
    if name.is_empty() || is_internal(name) {
        return Err(AdminError::Reserved(name.to_owned()));
    }
    if name.len() > CACHE_NAME_MAX {
        return Err(AdminError::LongName(name.len()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_caches_are_not_empty_internal_or_long() {
        assert!(check_cache_name("default").is_ok());
        for wrong in ["", "___protobuf_metadata", &"n".repeat(CACHE_NAME_MAX + 1)] {
            assert!(check_cache_name(wrong).is_err(), "{wrong}");
        }
    }
}
