//! The default cache: that of requests that name none (facts section 1.2).

use std::sync::Arc;

use crate::catalog::admin_error::AdminError;
use crate::catalog::cache_rollout::wait_until_open_on_all;
use crate::catalog::caches::{Caches, IfExists};
use crate::catalog::definition;
use crate::catalog::registry::Lifecycle;
use crate::catalog::served_cache::ServedCache;

/// The name by default.
pub(crate) const NAME: &str = "default";

/// Creates the cache like one without a definition, unless it exists. It is not created at the start, because most clients
/// name their caches, and a cache of another definition may get the name. `may_create` decides by the name of the cache.
pub(crate) async fn find_or_create(
    caches: &Caches,
    may_create: impl FnOnce(&str) -> bool,
) -> Result<Option<Arc<ServedCache>>, AdminError> {
    let Some(name) = caches.default_cache.as_deref() else { return Ok(None) };
    if let Some(served) = caches.find(name).await? {
        return Ok(Some(served));
    }
    if !may_create(name) {
        return Ok(None);
    }
    let definition = definition::from_template(name, None)?;
    if caches.create(&definition, IfExists::Accept, Lifecycle::Persistent).await? {
        tracing::info!("created cache {name} for a client that names no cache");
        wait_until_open_on_all(caches, &[name.to_owned()]).await;
    }
    caches.find(name).await
}
