//! Defined caches that this server could not open. They are not served here, and their files stay. The server is not ready, so
//! that a rolling update stops. It tries again, because the cause (no free descriptor, a disk that is not mounted, a permission)
//! can go away.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use bytes::Bytes;

use crate::limits::{REOPEN_INTERVAL, REOPEN_LOG_INTERVAL};

struct FailedCache {
    definition: Bytes,
    error: String,
    tried_at: Instant,
    logged_at: Instant,
}

#[derive(Default)]
pub(crate) struct FailedCaches(Mutex<BTreeMap<String, FailedCache>>);

impl FailedCaches {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, FailedCache>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Logs a new error at once, and then once a minute.
    pub(crate) fn note(
        &self,
        now: Instant,
        name: &str,
        definition: &Bytes,
        directory: Option<&Path>,
        error: &str,
    ) {
        let mut caches = self.lock();
        let before = caches.get(name).filter(|before| before.error == error);
        let logged_before = before.map(|before| before.logged_at);
        let is_logged = logged_before.is_none_or(|at| now.duration_since(at) >= REOPEN_LOG_INTERVAL);
        let failed = FailedCache {
            definition: definition.clone(),
            error: error.to_owned(),
            tried_at: now,
            logged_at: logged_before.filter(|_| !is_logged).unwrap_or(now),
        };
        caches.insert(name.to_owned(), failed);
        drop(caches);
        if is_logged {
            let path = directory.map_or_else(|| "none".to_owned(), |path| path.display().to_string());
            tracing::error!(
                cache = name,
                path,
                error,
                "a defined cache could not be opened and is not served here. Keep its files: they may be the last copy of its \
                 entries. This server is not ready until the cache is open; remove the cause that the error names, and the \
                 server opens the cache within seconds"
            );
        }
    }

    /// After a recent failure with this definition the server waits, because opening a store may read all of its files.
    pub(crate) fn recent(&self, now: Instant, name: &str, definition: &Bytes) -> Option<String> {
        let caches = self.lock();
        let failed = caches.get(name)?;
        let is_recent = now.duration_since(failed.tried_at) < REOPEN_INTERVAL;
        (is_recent && failed.definition == *definition).then(|| failed.error.clone())
    }

    pub(crate) fn forget(&self, name: &str, why: &'static str) {
        if self.lock().remove(name).is_some() {
            tracing::info!(cache = name, "a cache that could not be opened earlier {why}");
        }
    }

    pub(crate) fn retain(&self, is_defined: impl Fn(&str) -> bool) {
        let gone: Vec<String> = self.lock().keys().filter(|name| !is_defined(name)).cloned().collect();
        for name in gone {
            self.forget(&name, "is no longer defined; its files are kept on this server");
        }
    }

    pub(crate) fn all(&self) -> Vec<(String, String)> {
        self.lock().iter().map(|(name, failed)| (name.clone(), failed.error.clone())).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_cache_is_reopened_after_the_interval_or_with_another_definition() {
        let (failed, now) = (FailedCaches::default(), Instant::now());
        let (one, other) = (Bytes::from_static(b"one"), Bytes::from_static(b"other"));
        failed.note(now, "orders", &one, None, "no descriptor");
        assert_eq!(failed.recent(now, "orders", &one).as_deref(), Some("no descriptor"));
        assert_eq!(failed.recent(now, "orders", &other), None, "another definition");
        assert_eq!(failed.recent(now, "stock", &one), None, "another cache");
        assert_eq!(failed.recent(now + REOPEN_INTERVAL, "orders", &one), None);
        assert_eq!(
            failed.all(),
            [("orders".to_owned(), "no descriptor".to_owned())],
            "it is failed all the same"
        );
        failed.retain(|name| name != "orders");
        assert_eq!(failed.len(), 0);
    }
}
