//! The entries of a near cache, and the reads that may add to them.
//!
//! A read pending at the invalidation of its key may return the old value. So the table caches a result only if its key was not
//! invalidated since the read began. A connection orders responses and events, and a server reports no change before reads see it
//! (facts section 9.1): either the event arrives while the read is tracked, or the read returns the change.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use consort_hotrod::Metadata;
use quick_cache::Weighter;
use quick_cache::unsync::{Cache, DefaultLifecycle};

use crate::clock::Time;
use crate::limits::{NEAR_OVERHEAD, NEAR_PART_ENTRIES, NEAR_PARTS_MAX};

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct NearEntry {
    pub(super) metadata: Metadata,
    pub(super) value: Bytes,
    /// Expiry.
    pub(super) until: Option<Time>,
}

/// Weighs entries in units of the average budget of an entry, so that both number and size are bounded.
#[derive(Clone)]
struct Weigher {
    unit: usize,
}

impl Weighter<Bytes, NearEntry> for Weigher {
    fn weight(&self, key: &Bytes, kept: &NearEntry) -> u64 {
        (key.len() + kept.value.len() + NEAR_OVERHEAD).div_ceil(self.unit).max(1) as u64
    }
}

#[derive(Clone)]
enum Mode<P> {
    Off,
    On(P),
    /// The server's filter is being replaced, and may lose keys added meanwhile, so reads are not cached.
    Updating(P),
}

struct Reads {
    count: usize,
    /// The shard's counter at the key's last invalidation.
    forgotten: u64,
}

struct Shard<P> {
    mode: Mode<P>,
    kept: Cache<Bytes, NearEntry, Weigher, RandomState, DefaultLifecycle<Bytes, NearEntry>>,
    /// One per key being read.
    reads: HashMap<Bytes, Reads>,
    /// Counts invalidations.
    count: u64,
    /// The counter at the last invalidation of all keys.
    all_forgotten: u64,
}

/// A pending read, which must be ended.
pub(super) struct PendingRead {
    key: Bytes,
    since: u64,
}

pub(super) enum Lookup<P> {
    Hit(NearEntry),
    Miss(P, PendingRead),
    Off,
}

pub(super) struct Table<P> {
    shards: Box<[Mutex<Shard<P>>]>,
    hasher: RandomState,
    /// Keys in the server's filter that are not cached any more.
    gone: AtomicU64,
}

impl<P: Clone> Shard<P> {
    fn forget_all(&mut self) {
        self.count += 1;
        self.all_forgotten = self.count;
    }
}

impl<P: Clone> Table<P> {
    pub(super) fn new(max_entries: usize, max_bytes: usize) -> Self {
        let max_entries = max_entries.max(1);
        let shards = (max_entries / NEAR_PART_ENTRIES).clamp(1, NEAR_PARTS_MAX);
        let unit = (max_bytes / max_entries).max(1);
        let entries = max_entries / shards;
        let shard = || Shard {
            mode: Mode::Off,
            kept: Cache::with(
                entries,
                entries as u64,
                Weigher { unit },
                RandomState::new(),
                DefaultLifecycle::default(),
            ),
            reads: HashMap::new(),
            count: 0,
            all_forgotten: 0,
        };
        Self {
            shards: (0..shards).map(|_| Mutex::new(shard())).collect(),
            hasher: RandomState::new(),
            gone: AtomicU64::new(0),
        }
    }

    fn shards(&self) -> impl Iterator<Item = MutexGuard<'_, Shard<P>>> {
        self.shards.iter().map(|shard| shard.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn shard(&self, key: &[u8]) -> MutexGuard<'_, Shard<P>> {
        let index = self.hasher.hash_one(key) as usize % self.shards.len();
        self.shards[index].lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn lookup(&self, key: &Bytes, now: Time) -> Lookup<P> {
        let mut shard = self.shard(key);
        let target = match &shard.mode {
            Mode::Off => return Lookup::Off,
            Mode::On(target) => Some(target.clone()),
            Mode::Updating(_) => None,
        };
        if let Some(kept) = shard.kept.get(key) {
            if kept.until.is_none_or(|until| now < until) {
                return Lookup::Hit(kept.clone());
            }
            shard.kept.remove(key);
            self.note_gone(1);
        }
        let Some(target) = target else { return Lookup::Off };
        let since = shard.count;
        shard.reads.entry(key.clone()).or_insert(Reads { count: 0, forgotten: 0 }).count += 1;
        Lookup::Miss(target, PendingRead { key: key.clone(), since })
    }

    /// Caches a read's result unless the key was invalidated meanwhile. Returns whether it did.
    pub(super) fn end(&self, read: PendingRead, kept: Option<NearEntry>) -> bool {
        let mut shard = self.shard(&read.key);
        let mut forgotten = shard.all_forgotten;
        if let Some(reads) = shard.reads.get_mut(&read.key) {
            forgotten = forgotten.max(reads.forgotten);
            reads.count -= 1;
            if reads.count == 0 {
                shard.reads.remove(&read.key);
            }
        }
        let kept = kept.filter(|_| forgotten <= read.since && matches!(shard.mode, Mode::On(_)));
        let Some(kept) = kept else {
            self.note_gone(1);
            return false;
        };
        let before = shard.kept.len();
        // Copies the key, which may be a slice of a larger buffer.
        shard.kept.insert(Bytes::copy_from_slice(&read.key), kept);
        self.note_gone((before + 1).saturating_sub(shard.kept.len()) as u64);
        true
    }

    pub(super) fn forget(&self, key: &[u8]) {
        let mut shard = self.shard(key);
        if let Mode::Off = shard.mode {
            return;
        }
        shard.count += 1;
        let count = shard.count;
        if let Some(reads) = shard.reads.get_mut(key) {
            reads.forgotten = count;
        }
        shard.kept.remove(key);
        self.note_gone(1);
    }

    pub(super) fn forget_all(&self) {
        for mut shard in self.shards() {
            self.note_gone(shard.kept.len() as u64);
            shard.kept.clear();
            shard.forget_all();
        }
    }

    pub(super) fn turn_on(&self, target: &P) {
        self.gone.store(0, Ordering::Relaxed);
        for mut shard in self.shards() {
            shard.mode = Mode::On(target.clone());
        }
    }

    pub(super) fn turn_off(&self) {
        for mut shard in self.shards() {
            shard.mode = Mode::Off;
            shard.kept.clear();
            shard.forget_all();
        }
    }

    pub(super) fn begin_update(&self, mut key: impl FnMut(&[u8])) {
        self.gone.store(0, Ordering::Relaxed);
        for mut shard in self.shards() {
            if let Mode::On(target) = &shard.mode {
                shard.mode = Mode::Updating(target.clone());
            }
            // The server may have added the keys of pending reads to the old filter.
            shard.forget_all();
            shard.kept.iter().for_each(|(kept, _)| key(kept));
        }
    }

    pub(super) fn end_update(&self) {
        for mut shard in self.shards() {
            if let Mode::Updating(target) = &shard.mode {
                shard.mode = Mode::On(target.clone());
            }
        }
    }

    fn note_gone(&self, count: u64) {
        self.gone.fetch_add(count, Ordering::Relaxed);
    }

    pub(super) fn gone(&self) -> u64 {
        self.gone.load(Ordering::Relaxed)
    }

    pub(super) fn len(&self) -> usize {
        self.shards().map(|shard| shard.kept.len()).sum()
    }

    pub(super) fn is_on(&self) -> bool {
        self.shards().all(|shard| !matches!(shard.mode, Mode::Off))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const NOW: Time = Duration::from_secs(1);

    fn table() -> Table<()> {
        let table = Table::new(100, 1 << 20);
        table.turn_on(&());
        table
    }

    fn key(key: &'static str) -> Bytes {
        Bytes::from_static(key.as_bytes())
    }

    fn kept(value: &'static str) -> NearEntry {
        NearEntry { metadata: Metadata::immortal(1), value: value.into(), until: None }
    }

    fn begin(table: &Table<()>, of: &'static str) -> PendingRead {
        match table.lookup(&key(of), NOW) {
            Lookup::Miss((), read) => read,
            Lookup::Hit(_) => panic!("unexpected hit"),
            Lookup::Off => panic!("the near cache is off"),
        }
    }

    fn value(table: &Table<()>, of: &'static str) -> Option<Bytes> {
        match table.lookup(&key(of), NOW) {
            Lookup::Hit(kept) => Some(kept.value),
            Lookup::Miss((), read) => {
                table.end(read, None);
                None
            }
            Lookup::Off => None,
        }
    }

    #[test]
    fn an_entry_is_cached_until_its_invalidation() {
        let table = table();
        let read = begin(&table, "k");
        assert!(table.end(read, Some(kept("v"))));
        assert_eq!(value(&table, "k").as_deref(), Some(&b"v"[..]));
        table.forget(b"k");
        assert_eq!(value(&table, "k"), None);
    }

    #[test]
    fn a_read_that_was_under_way_when_its_key_was_forgotten_leaves_nothing() {
        let table = table();
        let (first, other) = (begin(&table, "k"), begin(&table, "other"));
        let second = begin(&table, "k");
        table.forget(b"k");
        let third = begin(&table, "k");
        assert!(!table.end(first, Some(kept("old"))));
        assert!(!table.end(second, Some(kept("old"))));
        assert!(table.end(other, Some(kept("v"))), "its key was not invalidated");
        assert_eq!(value(&table, "k"), None);
        assert!(table.end(third, Some(kept("new"))), "the read began after the invalidation");
        assert_eq!(value(&table, "k").as_deref(), Some(&b"new"[..]));
        assert!(table.shards().all(|shard| shard.reads.is_empty()));
    }

    #[test]
    fn a_read_is_not_cached_if_its_connection_is_lost_meanwhile() {
        let table = table();
        let read = begin(&table, "a");
        assert!(table.end(read, Some(kept("v"))));
        let read = begin(&table, "b");
        table.turn_off();
        assert!(matches!(table.lookup(&key("a"), NOW), Lookup::Off));
        table.turn_on(&());
        assert_eq!(value(&table, "a"), None, "the table was emptied");
        assert!(!table.end(read, Some(kept("old"))));
        assert_eq!(table.len(), 0);
    }

    #[test]
    fn nothing_is_kept_that_was_read_while_the_filter_is_replaced() {
        let table = table();
        let read = begin(&table, "a");
        assert!(table.end(read, Some(kept("v"))));
        let before = begin(&table, "b");
        let mut keys = Vec::new();
        table.begin_update(|key| keys.push(key.to_vec()));
        assert_eq!(keys, [b"a"]);
        assert_eq!(value(&table, "a").as_deref(), Some(&b"v"[..]), "the filter has the key");
        assert!(matches!(table.lookup(&key("c"), NOW), Lookup::Off));
        assert!(!table.end(before, Some(kept("v"))), "the filter may lack the key");
        table.end_update();
        let after = begin(&table, "c");
        assert!(table.end(after, Some(kept("v"))));
    }

    #[test]
    fn entries_and_bytes_are_bounded() {
        for (size, most) in [(1, 10), (5_000, 2)] {
            let table = Table::new(10, 10_000);
            table.turn_on(&());
            for n in 0..100_u32 {
                let key = Bytes::copy_from_slice(&n.to_be_bytes());
                let Lookup::Miss((), read) = table.lookup(&key, NOW) else { panic!("{n}") };
                let value = Bytes::from(vec![0; size]);
                table.end(read, Some(NearEntry { metadata: Metadata::immortal(1), value, until: None }));
            }
            assert!((1..=most).contains(&table.len()), "{} of {size} bytes", table.len());
            assert!(table.gone() >= 90, "evicted keys are counted");
        }
    }

    #[test]
    fn an_expired_entry_is_a_miss() {
        let table = table();
        let read = begin(&table, "k");
        table.end(read, Some(NearEntry { until: Some(NOW + Duration::from_secs(1)), ..kept("v") }));
        assert_eq!(value(&table, "k").as_deref(), Some(&b"v"[..]));
        assert!(matches!(table.lookup(&key("k"), NOW + Duration::from_secs(1)), Lookup::Miss(..)));
        assert_eq!(table.len(), 0);
    }
}
