//! In the clients' process, or on servers.

use bytes::Bytes;
use consort_cache::{CacheError, OperationError, RawCache, ReadFrom};
use consort_client::{Cache, ClientError, Raw, Version};

use super::record::Consistency;

#[derive(Clone)]
pub(crate) enum Target {
    Embedded(RawCache),
    HotRod(Cache<Bytes, Bytes, Raw, Raw>),
}

#[derive(Debug)]
pub(crate) struct Failure {
    /// Whether a write may take effect once, later or never; otherwise nothing was changed.
    pub(crate) is_uncertain: bool,
    pub(crate) text: String,
}

impl From<CacheError> for Failure {
    fn from(error: CacheError) -> Self {
        let is_uncertain = match &error {
            CacheError::Closed => true,
            CacheError::Operation(error) => matches!(
                error,
                OperationError::TimedOut(_)
                    | OperationError::Uncertain
                    | OperationError::Closed
                    | OperationError::StoreWriteFailed { .. }
            ),
            _ => false,
        };
        Self { is_uncertain, text: error.to_string() }
    }
}

/// A server refuses a write so because owners are unreachable. A Consort server has changed nothing then.
const DEGRADED: &str = "ISPN000306: ";

impl From<ClientError> for Failure {
    /// A client cannot know that a refusing server is Consort; here it is.
    fn from(error: ClientError) -> Self {
        let is_refused = matches!(&error, ClientError::Server { message, .. } if message.contains(DEGRADED));
        Self { is_uncertain: error.is_outcome_unknown() && !is_refused, text: error.to_string() }
    }
}

/// With the version that servers compare.
pub(crate) struct Read {
    pub(crate) value: Bytes,
    version: Option<Version>,
}

impl Target {
    pub(crate) fn embedded(cache: &RawCache) -> Self {
        Self::Embedded(cache.with_read_from(ReadFrom::Primary))
    }

    /// A server answers reads from its own copy.
    pub(crate) fn reads_are(&self) -> Consistency {
        match self {
            Self::Embedded(_) => Consistency::Linearizable,
            Self::HotRod(_) => Consistency::Regular,
        }
    }

    pub(crate) async fn get(&self, key: &[u8]) -> Result<Option<Read>, Failure> {
        Ok(match self {
            Self::Embedded(cache) => cache.get(key).await?.map(|value| Read { value, version: None }),
            Self::HotRod(cache) => cache
                .get_with_metadata(key)
                .await?
                .map(|entry| Read { value: entry.value, version: Some(entry.version) }),
        })
    }

    pub(crate) async fn put(&self, key: &[u8], value: &Bytes) -> Result<(), Failure> {
        match self {
            Self::Embedded(cache) => cache.put(key, value).await?,
            Self::HotRod(cache) => cache.put(key, value).await?,
        }
        Ok(())
    }

    pub(crate) async fn swap(&self, key: &[u8], value: &Bytes) -> Result<Option<Bytes>, Failure> {
        Ok(match self {
            Self::Embedded(cache) => cache.swap(key, value).await?,
            Self::HotRod(cache) => cache.swap(key, value).await?,
        })
    }

    pub(crate) async fn put_if_absent(&self, key: &[u8], value: &Bytes) -> Result<bool, Failure> {
        Ok(match self {
            Self::Embedded(cache) => cache.put_if_absent(key, value).await?,
            Self::HotRod(cache) => cache.put_if_absent(key, value).await?,
        })
    }

    pub(crate) async fn replace_if(&self, key: &[u8], read: &Read, value: &Bytes) -> Result<bool, Failure> {
        Ok(match (self, read.version) {
            (Self::HotRod(cache), Some(version)) => cache.replace_if_version(key, version, value).await?,
            (Self::HotRod(_), None) => false,
            (Self::Embedded(cache), _) => cache.replace_if_value(key, &read.value, value).await?,
        })
    }

    pub(crate) async fn take(&self, key: &[u8]) -> Result<Option<Bytes>, Failure> {
        Ok(match self {
            Self::Embedded(cache) => cache.take(key).await?,
            Self::HotRod(cache) => cache.take(key).await?,
        })
    }
}
