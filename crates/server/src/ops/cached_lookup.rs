//! The lookup of a cache for requests that arrive together.

use std::sync::Arc;

use consort_hotrod::{CacheTopology, Text};

use crate::catalog::served_cache::ServedCache;

/// A cache and its topology for clients, as of the arrival of a request for it.
pub(crate) struct CachedLookup {
    pub(crate) name: Text,
    pub(crate) served: Arc<ServedCache>,
    /// The topology for clients.
    pub(crate) topology: Option<Arc<CacheTopology>>,
}
