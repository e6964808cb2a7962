//! Random operations, and a crash at any step of the disk, also in the middle of a write. What was acknowledged is there
//! when the store is opened again, nothing that was removed comes back, and nothing is there that was never written.

use std::sync::Arc;

use consort_store::{Crash, Durability, FileStore, FileStoreConfig, SimDisk, Store};

use crate::model::{Model, Operation, Random, SEGMENTS, contents};

fn config(durability: Durability) -> FileStoreConfig {
    // The smallest files, so that a hundred operations roll and compact several.
    FileStoreConfig { segments: SEGMENTS, durability, file_bytes_max: 4096, ..FileStoreConfig::default() }
}

fn open(disk: &SimDisk, durability: Durability) -> FileStore {
    match FileStore::open_on(Arc::new(disk.clone()), config(durability)) {
        Ok(store) => store,
        Err(error) => panic!("does not open: {error}"),
    }
}

/// States that the store may be in after a crash.
#[derive(Default)]
struct Allowed {
    /// States one after the other, of which the store has one.
    states: Vec<Model>,
    /// Purges after each of which, up to their time, some entries of these states may be gone, and nothing else.
    purges: Vec<(Model, u64)>,
}

impl Allowed {
    fn check(&self, found: &Model) -> bool {
        let is_partly_purged = self.purges.iter().any(|(before, now)| {
            found.iter().all(|(key, entry)| before.get(key) == Some(entry))
                && before
                    .iter()
                    .filter(|(key, _)| !found.contains_key(*key))
                    .all(|(_, entry)| entry.times.expires_at().is_some_and(|expires| expires <= *now))
        });
        is_partly_purged || self.states.contains(found)
    }
}

/// One case: several lives of one store, each ended by a crash.
fn run(seed: u64, durability: Durability, crash: Crash) {
    let mut random = Random(seed);
    let disk = SimDisk::new(random.next());
    let mut model = Model::new();
    let mut stamp = 0;
    for life in 0..5 {
        // Also in the middle of opening. Not too late, or most lives would end in peace.
        let steps = if random.below(4) == 0 { 12 } else { 150 };
        disk.crash_after(1 + random.below(steps));
        let mut allowed = Allowed { states: vec![model.clone()], purges: Vec::new() };
        if let Ok(store) = FileStore::open_on(Arc::new(disk.clone()), config(durability)) {
            assert_eq!(contents(&store), model, "life {life}, opened");
            live(
                &store,
                &disk,
                &mut random,
                &mut stamp,
                &mut allowed,
                durability == Durability::Disk || crash == Crash::Kill,
            );
        }
        disk.restart(crash);
        // Some of the time a second crash follows in the middle of cleaning up after the first.
        if random.below(3) == 0 {
            disk.crash_after(1 + random.below(8));
            let _ = FileStore::open_on(Arc::new(disk.clone()), config(durability));
            disk.restart(crash);
        }
        let store = open(&disk, durability);
        model = contents(&store);
        assert!(
            allowed.check(&model),
            "life {life}: {} entries found, {} states allowed, the last with {}",
            model.len(),
            allowed.states.len(),
            allowed.states.last().map_or(0, Model::len)
        );
        drop(store);
    }
}

/// Operations until the disk crashes.
fn live(
    store: &FileStore,
    disk: &SimDisk,
    random: &mut Random,
    stamp: &mut u64,
    allowed: &mut Allowed,
    is_safe: bool,
) {
    for _ in 0..200 {
        let operation = Operation::random(random, stamp);
        let model = allowed.states.last().cloned().unwrap_or_default();
        let result = operation.run(store);
        if result.is_ok() && (is_safe || matches!(operation, Operation::Flush | Operation::Clear)) {
            // Acknowledged: nothing older is allowed any more.
            allowed.states.clear();
            allowed.purges.clear();
        }
        if let Operation::Purge(now) = &operation
            && !allowed.states.is_empty()
        {
            allowed.purges.push((model.clone(), *now));
        }
        allowed.states.extend(operation.steps(&model));
        if result.is_ok() {
            let last = allowed.states.last().cloned().unwrap_or_default();
            if random.below(20) == 0 {
                assert_eq!(contents(store), last, "while it lives");
            }
        } else {
            assert!(disk.is_crashed(), "only the crash fails: {result:?}");
            return;
        }
    }
    if random.below(2) == 0 && store.close().is_ok() {
        let last = allowed.states.pop().unwrap_or_default();
        *allowed = Allowed { states: vec![last], purges: Vec::new() };
    }
}

/// Cases per test, each of five crashes. `CONSORT_STORE_CASES` asks for more.
fn cases(durability: Durability, crash: Crash) {
    let asked = std::env::var("CONSORT_STORE_CASES").ok().and_then(|count| count.parse().ok());
    let count: u64 = asked.unwrap_or(300);
    for seed in 0..count {
        let result = std::panic::catch_unwind(|| run(seed, durability, crash));
        assert!(result.is_ok(), "seed {seed}, {durability:?}, {crash:?}");
    }
}

#[test]
fn a_killed_process_loses_nothing_acknowledged() {
    cases(Durability::Process, Crash::Kill);
}

#[test]
fn a_killed_process_loses_nothing_acknowledged_that_was_synced() {
    cases(Durability::Disk, Crash::Kill);
}

#[test]
fn a_power_failure_loses_nothing_acknowledged_that_was_synced() {
    cases(Durability::Disk, Crash::PowerLoss);
}

/// Without syncing, a power failure leaves what the store was at some moment after the last flush, and it opens.
#[test]
fn a_power_failure_takes_a_store_that_does_not_sync_back_to_an_earlier_moment() {
    cases(Durability::Process, Crash::PowerLoss);
}
