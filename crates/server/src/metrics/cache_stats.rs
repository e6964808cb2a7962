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

    pub(crate) fn for_clients(&self, cache: &RawCache) -> Vec<(Text, Text)> {
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
