//! Counts of a cache's requests on this server (facts section 2.4).

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Instant;

use consort_cache::RawCache;
use consort_hotrod::{Status, Text};

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

const FIRST_ERROR: u8 = 0x80;

/// All error statuses that exist are within the first of them.
const ERRORS: usize = 16;

#[derive(Default)]
pub(crate) struct Errors([Count; ERRORS]);

impl Errors {
    pub(crate) fn note(&self, status: Status) {
        self.of(status).one();
    }

    fn of(&self, status: Status) -> &Count {
        &self.0[usize::from(status.byte().saturating_sub(FIRST_ERROR)).min(ERRORS - 1)]
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (Status, i64)> {
        let errors = Status::ALL.iter().copied().filter(|status| status.is_error());
        errors.map(|status| (status, self.of(status).get())).filter(|(_, count)| *count > 0)
    }
}

pub(crate) struct Stats {
    since: Instant,
    pub(crate) stores: Count,
    pub(crate) hits: Count,
    pub(crate) misses: Count,
    pub(crate) remove_hits: Count,
    pub(crate) remove_misses: Count,
    pub(crate) errors: Errors,
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
            errors: Errors::default(),
        }
    }

    pub(crate) fn note_read(&self, is_hit: bool) {
        if is_hit { self.hits.one() } else { self.misses.one() }
    }

    pub(crate) fn note_removal(&self, is_hit: bool) {
        if is_hit { self.remove_hits.one() } else { self.remove_misses.one() }
    }

    pub(crate) fn counts(&self, cache: &RawCache) -> Counts {
        let entries = i64::try_from(cache.local_len()).unwrap_or(i64::MAX);
        let counts = [&self.stores, &self.hits, &self.misses, &self.remove_hits, &self.remove_misses];
        let [stores, hits, misses, remove_hits, remove_misses] = counts.map(Count::get);
        Counts([entries, stores, hits, misses, remove_hits, remove_misses])
    }

    /// `global` are the sums over all servers and the copies of an entry.
    pub(crate) fn for_clients(&self, cache: &RawCache, global: Option<(Counts, i64)>) -> Vec<(Text, Text)> {
        let seconds = i64::try_from(self.since.elapsed().as_secs()).unwrap_or(i64::MAX);
        let mut named = vec![("timeSinceStart", seconds)];
        let own = self.counts(cache);
        named.extend(OWN_NAMES.into_iter().zip(own.values(own.entries())));
        if let Some((global, copies)) = global {
            // Rounded up: without a copy of every entry, while a server joins, none is missing.
            let unique = (global.entries() + copies - 1) / copies;
            named.extend(GLOBAL_NAMES.into_iter().zip(global.values(unique)));
        }
        named.into_iter().map(|(name, value)| (Text::from_static(name), value.to_string().into())).collect()
    }
}

/// Entries, stores, hits, misses, removals of keys that were there, and of others.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Counts(pub(crate) [i64; 6]);

const OWN_NAMES: [&str; 9] = [
    "currentNumberOfEntries",
    "stores",
    "retrievals",
    "hits",
    "misses",
    "removeHits",
    "removeMisses",
    "approximateEntries",
    "approximateEntriesUnique",
];

const GLOBAL_NAMES: [&str; 9] = [
    "globalCurrentNumberOfEntries",
    "globalStores",
    "globalRetrievals",
    "globalHits",
    "globalMisses",
    "globalRemoveHits",
    "globalRemoveMisses",
    "globalApproximateEntries",
    "globalApproximateEntriesUnique",
];

impl Counts {
    pub(crate) fn add(&mut self, other: &Self) {
        for (sum, more) in self.0.iter_mut().zip(other.0) {
            *sum = sum.saturating_add(more);
        }
    }

    const fn entries(&self) -> i64 {
        self.0[0]
    }

    /// In the order of the names.
    const fn values(&self, unique: i64) -> [i64; 9] {
        let [entries, stores, hits, misses, remove_hits, remove_misses] = self.0;
        let retrievals = hits.saturating_add(misses);
        [unique, stores, retrievals, hits, misses, remove_hits, remove_misses, entries, unique]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_status_has_its_own_count() {
        let errors = Errors::default();
        let all: Vec<Status> = Status::ALL.iter().copied().filter(|status| status.is_error()).collect();
        for (nth, status) in all.iter().enumerate() {
            (0..=nth).for_each(|_| errors.note(*status));
        }
        let expected: Vec<(Status, i64)> = all.into_iter().zip(1..).collect();
        assert_eq!(errors.all().collect::<Vec<_>>(), expected);
    }
}
