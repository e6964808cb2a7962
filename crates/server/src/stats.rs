//! What a cache has been asked on this server (facts section 2.4).

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Instant;

use consort_cache::RawCache;
use consort_hotrod::Text;

/// A count.
#[derive(Default)]
pub(crate) struct Count(AtomicI64);

impl Count {
    pub(crate) fn add(&self, count: usize) {
        self.0.fetch_add(i64::try_from(count).unwrap_or(i64::MAX), Ordering::Relaxed);
    }

    pub(crate) fn one(&self) {
        self.add(1);
    }

    pub(crate) fn get(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A cache's counts.
pub(crate) struct Stats {
    since: Instant,
    pub(crate) stores: Count,
    pub(crate) hits: Count,
    pub(crate) misses: Count,
    pub(crate) remove_hits: Count,
    pub(crate) remove_misses: Count,
}

impl Stats {
    pub(crate) fn new() -> Self {
        Self {
            since: Instant::now(),
            stores: Count::default(),
            hits: Count::default(),
            misses: Count::default(),
            remove_hits: Count::default(),
            remove_misses: Count::default(),
        }
    }

    /// A read that found something, or not.
    pub(crate) fn note_read(&self, is_hit: bool) {
        if is_hit { self.hits.one() } else { self.misses.one() }
    }

    /// A removal that found something, or not.
    pub(crate) fn note_removal(&self, is_hit: bool) {
        if is_hit { self.remove_hits.one() } else { self.remove_misses.one() }
    }

    /// As clients read them.
    pub(crate) fn told(&self, cache: &RawCache) -> Vec<(Text, Text)> {
        let entries = i64::try_from(cache.local_len()).unwrap_or(i64::MAX);
        let (hits, misses) = (self.hits.get(), self.misses.get());
        let seconds = i64::try_from(self.since.elapsed().as_secs()).unwrap_or(i64::MAX);
        let named: [(&'static str, i64); 10] = [
            ("timeSinceStart", seconds),
            ("currentNumberOfEntries", entries),
            ("approximateEntries", entries),
            ("approximateEntriesUnique", entries),
            ("stores", self.stores.get()),
            ("retrievals", hits + misses),
            ("hits", hits),
            ("misses", misses),
            ("removeHits", self.remove_hits.get()),
            ("removeMisses", self.remove_misses.get()),
        ];
        named.into_iter().map(|(name, value)| (Text::from_static(name), value.to_string().into())).collect()
    }
}
