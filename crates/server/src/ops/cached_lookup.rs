use std::sync::Arc;

use consort_hotrod::{CacheTopology, Text};

use crate::catalog::served_cache::ServedCache;

pub(crate) struct CachedLookup {
    pub(crate) name: Text,
    pub(crate) served: Arc<ServedCache>,
    pub(crate) topology: Option<Arc<CacheTopology>>,
}
