//! Random operations with a crash at any step of the disk, also within a write. After the restart all
//! acknowledged changes are there, no removed entry is back, and nothing else is there.

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

/// The states allowed after a crash.
#[derive(Default)]
struct Allowed {
    /// Successive states, one of which the store has.
    states: Vec<Model>,
    /// Purges after which some entries expired at their time may be gone, and nothing else.
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

/// One case: several runs of a store, each ended by a crash.
fn run(seed: u64, durability: Durability, crash: Crash) {
    let mut random = Random(seed);
    let disk = SimDisk::new(random.next());
    let mut model = Model::new();
    let mut stamp = 0;
    for life in 0..5 {
        // Also during opening. Early enough that most runs crash.
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
        // Sometimes a second crash follows during recovery.
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

/// Runs operations until the disk crashes.
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
            // Once acknowledged, older states are not allowed.
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

/// Number of cases per test, each with five crashes. Set `CONSORT_STORE_CASES` for more.
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

/// Without syncs, a power failure leaves a state since the last flush, and the store opens.
#[test]
fn a_power_failure_takes_a_store_that_does_not_sync_back_to_an_earlier_moment() {
    cases(Durability::Process, Crash::PowerLoss);
}
