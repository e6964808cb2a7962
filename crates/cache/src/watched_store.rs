//! Failing writes of a cache's store, as on a full disk. A log line appears when writes begin to fail, every minute meanwhile,
//! and when they succeed again; if small writes succeed and large ones fail, two lines a minute. Health and metrics read the
//! state.
//!
//! The node repeats failed writes every second (`consort_grid::node::persistence`), so that the end shows without a client's
//! write.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use consort_store::{Change, Entries, Entry, Part, Stats, Store, StoreError};

const FAILING_LOGGED_EVERY: Duration = Duration::from_secs(60);

/// The health of a cache's store here.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct StoreHealth {
    /// The last write's error, if any.
    pub failing: Option<String>,
    /// Failed writes and maintenance runs since the opening.
    pub failures: u64,
    /// Waiting changes and orders.
    pub pending: u64,
    /// Free bytes of the store's file system for this process; `None` without a directory.
    pub free_bytes: Option<u64>,
}

struct Failing {
    error: String,
    since: Instant,
    failures: u64,
    is_logged: bool,
}

#[derive(Default)]
struct State {
    failing: Option<Failing>,
    logged_at: Option<Instant>,
}

pub(crate) struct StoreWatch {
    cache: Arc<str>,
    directory: Option<PathBuf>,
    state: Mutex<State>,
    failures: AtomicU64,
}

/// Whether the store cannot write, rather than that the caller's request is invalid.
const fn is_failure(error: &StoreError) -> bool {
    !matches!(error, StoreError::TooLarge { .. } | StoreError::NoSuchSegment { .. } | StoreError::Closed)
}

impl StoreWatch {
    pub(crate) fn new(cache: Arc<str>, directory: Option<PathBuf>) -> Self {
        Self { cache, directory, state: Mutex::default(), failures: AtomicU64::new(0) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// With `is_proof` a success proves that the store writes again.
    fn note_write(&self, now: Instant, is_proof: bool, result: &Result<(), StoreError>) {
        match result {
            Err(error) if is_failure(error) => self.note_failure(now, error),
            Ok(()) if is_proof => self.note_success(now),
            _ => {}
        }
    }

    /// No client waits for maintenance; a failure is only counted.
    fn note_maintenance<T>(&self, result: &Result<T, StoreError>) {
        if result.as_ref().is_err_and(is_failure) {
            self.failures.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn note_failure(&self, now: Instant, error: &StoreError) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        let mut state = self.state();
        let State { failing, logged_at } = &mut *state;
        let begin = || Failing { error: String::new(), since: now, failures: 0, is_logged: false };
        let failing = failing.get_or_insert_with(begin);
        failing.failures += 1;
        failing.error = error.to_string();
        if logged_at.is_some_and(|at| now.duration_since(at) < FAILING_LOGGED_EVERY) {
            return;
        }
        *logged_at = Some(now);
        let is_new = !std::mem::replace(&mut failing.is_logged, true);
        let (cache, error) = (&*self.cache, &failing.error);
        let directory = self.directory.as_ref().map_or_else(String::new, |path| path.display().to_string());
        let free_bytes = self.free_bytes();
        if is_new {
            tracing::error!(
                cache,
                directory,
                free_bytes,
                error,
                "the cache's store cannot write: puts are refused until it can, removals are not. If the disk is full, \
                 give it space"
            );
        } else {
            let seconds = now.duration_since(failing.since).as_secs();
            tracing::error!(
                cache,
                directory,
                free_bytes,
                error,
                failures = failing.failures,
                "the cache's store has not been able to write for {seconds} s: puts are refused, removals are not"
            );
        }
    }

    fn note_success(&self, now: Instant) {
        let ended = self.state().failing.take();
        if let Some(Failing { since, failures, is_logged: true, .. }) = ended {
            let seconds = now.duration_since(since).as_secs();
            tracing::warn!(
                cache = &*self.cache,
                failures,
                "the cache's store writes again, after {seconds} s"
            );
        }
    }

    fn free_bytes(&self) -> Option<u64> {
        let of = rustix::fs::statvfs(self.directory.as_ref()?).ok()?;
        Some(of.f_bavail.saturating_mul(of.f_frsize))
    }

    pub(crate) fn failure(&self) -> Option<String> {
        self.state().failing.as_ref().map(|failing| failing.error.clone())
    }

    pub(crate) fn health(&self, pending: u64) -> StoreHealth {
        StoreHealth {
            failing: self.failure(),
            failures: self.failures.load(Ordering::Relaxed),
            pending,
            free_bytes: self.free_bytes(),
        }
    }
}

pub(crate) struct WatchedStore {
    store: Arc<dyn Store>,
    watch: Arc<StoreWatch>,
}

impl std::fmt::Debug for WatchedStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.store.fmt(f)
    }
}

impl WatchedStore {
    pub(crate) fn new(store: Arc<dyn Store>, watch: Arc<StoreWatch>) -> Self {
        Self { store, watch }
    }

    fn write(&self, is_proof: bool, result: Result<(), StoreError>) -> Result<(), StoreError> {
        self.watch.note_write(Instant::now(), is_proof, &result);
        result
    }

    fn maintained<T>(&self, result: Result<T, StoreError>) -> Result<T, StoreError> {
        self.watch.note_maintenance(&result);
        result
    }
}

impl Store for WatchedStore {
    fn segments(&self) -> u16 {
        self.store.segments()
    }

    fn load(&self, segment: u16, key: &[u8]) -> Result<Option<Entry>, StoreError> {
        self.store.load(segment, key)
    }

    fn store(&self, changes: &[Change]) -> Result<(), StoreError> {
        // A removal of a key that is not in the store writes nothing.
        let is_proof = changes.iter().any(|change| matches!(change, Change::Put(_)));
        self.write(is_proof, self.store.store(changes))
    }

    fn entries(&self, segment: u16, part: Part) -> Result<Entries, StoreError> {
        self.store.entries(segment, part)
    }

    fn count(&self, segment: u16) -> Result<u64, StoreError> {
        self.store.count(segment)
    }

    fn remove_segment(&self, segment: u16) -> Result<(), StoreError> {
        self.write(false, self.store.remove_segment(segment))
    }

    fn clear(&self) -> Result<(), StoreError> {
        self.write(true, self.store.clear())
    }

    fn purge(&self, now: u64, limit: usize, expired: &mut dyn FnMut(Entry)) -> Result<usize, StoreError> {
        self.maintained(self.store.purge(now, limit, expired))
    }

    fn maintain(&self, budget_bytes: u64) -> Result<bool, StoreError> {
        self.maintained(self.store.maintain(budget_bytes))
    }

    fn remember(&self, note: &[u8]) -> Result<(), StoreError> {
        self.write(false, self.store.remember(note))
    }

    fn recall(&self) -> Result<Option<Bytes>, StoreError> {
        self.store.recall()
    }

    fn flush(&self) -> Result<(), StoreError> {
        self.maintained(self.store.flush())
    }

    fn close(&self) -> Result<(), StoreError> {
        self.store.close()
    }

    fn stats(&self) -> Stats {
        self.store.stats()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> Result<(), StoreError> {
        Err(StoreError::Full { file: "log".to_owned() })
    }

    #[test]
    fn a_store_is_failing_from_a_failed_write_until_one_succeeds_that_proves_it() {
        let (watch, now) = (StoreWatch::new("orders".into(), None), Instant::now());
        watch.note_write(now, true, &Err(StoreError::TooLarge { len: 2, max: 1 }));
        assert_eq!(watch.health(0).failing, None, "the fault of the caller");
        watch.note_write(now, true, &full());
        watch.note_write(now, false, &Ok(()));
        watch.note_maintenance(&full());
        let health = watch.health(3);
        assert!(health.failing.is_some_and(|error| error.contains("no space left")));
        assert_eq!((health.failures, health.pending, health.free_bytes), (2, 3, None));
        watch.note_write(now, true, &Ok(()));
        assert_eq!(watch.health(0).failing, None);
    }

    #[test]
    fn a_failing_store_is_logged_at_the_start_every_minute_and_at_the_end_and_no_more_often() {
        let (watch, now) = (StoreWatch::new("orders".into(), None), Instant::now());
        let logged = |seconds: u64, result: &Result<(), StoreError>| {
            let before = watch.state().logged_at;
            watch.note_write(now + Duration::from_secs(seconds), true, result);
            watch.state().logged_at != before
        };
        assert!(logged(0, &full()), "the start");
        assert!(!logged(1, &full()) && !logged(59, &full()));
        assert!(logged(60, &full()), "a minute later");
        assert!(!logged(61, &Ok(())) && !logged(62, &full()), "writes fail and succeed by turns");
        assert!(logged(120, &full()));
    }

    #[test]
    fn the_free_space_is_that_of_the_directory() {
        let watch = StoreWatch::new("orders".into(), Some(std::env::temp_dir()));
        assert!(watch.health(0).free_bytes.is_some());
    }
}
