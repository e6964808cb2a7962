//! Caches whose members have stores.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use consort_grid::{
    Action, CacheConfig, Change, Condition, Container, ContainerSettings, Lifetime, Limit, MemoryBound, Next,
    OperationError, Outcome, Phase, Projection, Publication, ReadFrom, WhenFull, Write, Written,
};
use consort_sim::{Clocks, SimStore, StorageSettings, restore_container};
use consort_store::{Durability, FileStore, FileStoreConfig, MemoryStore, SimDisk, Store};

use crate::cluster::Cluster;

pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);
pub(crate) const SEGMENTS: u16 = 8;

pub(crate) fn config() -> CacheConfig {
    CacheConfig { segments: SEGMENTS, ..CacheConfig::new("kept") }
}

pub(crate) fn start(
    cluster: &mut Cluster,
    store: &Arc<dyn Store>,
    bound: Option<MemoryBound>,
    passivation: bool,
) -> usize {
    let keeping = StorageSettings { bound, passivation, ..StorageSettings::default() };
    let (container, backing) =
        restore_container(store, Clocks::same(cluster.now), &keeping).expect("a good store");
    let config = cluster.config.clone();
    cluster.start_on(
        config,
        consort_grid::CapacityFactor::default(),
        container,
        Some((SimStore::new(store.clone()), backing)),
    )
}

fn start_bounded(cluster: &mut Cluster, bound: Option<MemoryBound>) -> usize {
    let settings = ContainerSettings { segment_count: SEGMENTS, bound, is_backed: false, is_shared: true };
    let (config, container) = (cluster.config.clone(), Arc::new(Container::new(&settings, 1)));
    cluster.start_on(config, consort_grid::CapacityFactor::default(), container, None)
}

pub(crate) fn memory_stores(count: usize) -> Vec<Arc<dyn Store>> {
    (0..count).map(|_| Arc::new(MemoryStore::new(SEGMENTS)) as Arc<dyn Store>).collect()
}

pub(crate) fn key(n: usize) -> Bytes {
    Bytes::from(format!("key-{n}"))
}

pub(crate) fn value(n: usize) -> Bytes {
    Bytes::from(format!("value-{n}"))
}

pub(crate) fn put(n: usize) -> Action {
    let change = Change::Put { value: value(n), lifetime: Lifetime::FOREVER };
    Action::Write(Write { condition: Condition::Always, change, wants_previous: false })
}

pub(crate) fn remove() -> Action {
    Action::Write(Write { condition: Condition::Always, change: Change::Remove, wants_previous: false })
}

pub(crate) fn result(
    cluster: &mut Cluster,
    n: usize,
    key: Bytes,
    action: Action,
) -> Result<Outcome, OperationError> {
    let at = cluster.submit(n, key, action, TIMEOUT);
    cluster.run(Duration::from_millis(60));
    cluster.history[at].result.clone().expect("it has ended")
}

pub(crate) fn get(cluster: &mut Cluster, n: usize, key: Bytes) -> Option<Bytes> {
    match result(cluster, n, key, Action::Read(ReadFrom::Nearest)) {
        Ok(Outcome::Read(found)) => found.map(|stored| stored.value),
        other => panic!("{other:?}"),
    }
}

/// Puts this many entries through members in turn.
pub(crate) fn fill(cluster: &mut Cluster, members: usize, count: usize) {
    let all: Vec<usize> = (0..count).map(|n| cluster.submit(n % members, key(n), put(n), TIMEOUT)).collect();
    cluster.run(Duration::from_secs(2));
    for at in all {
        assert!(matches!(cluster.history[at].result, Some(Ok(_))), "{:?}", cluster.history[at]);
    }
}

pub(crate) fn start_all(cluster: &mut Cluster, stores: &[Arc<dyn Store>]) -> Vec<usize> {
    stores.iter().map(|store| start(cluster, store, None, false)).collect()
}

/// Returns three members with stores, and this many keys.
pub(crate) fn filled(seed: u64, keys: usize) -> (Cluster, Vec<Arc<dyn Store>>) {
    let mut cluster = Cluster::new(seed, config());
    let stores = memory_stores(3);
    start_all(&mut cluster, &stores);
    cluster.run(Duration::from_secs(2));
    fill(&mut cluster, 3, keys);
    (cluster, stores)
}

/// Whether a member serves the cache, after a restart with its store.
pub(crate) fn is_restored(cluster: &Cluster, n: usize) -> bool {
    let member = cluster.members[n].as_ref().expect("a member");
    member.node.topology(cluster.cache()).is_some_and(|topology| topology.phase != Phase::Restoring)
}

pub(crate) fn stored(store: &Arc<dyn Store>) -> u64 {
    (0..SEGMENTS).map(|segment| store.count(segment).unwrap()).sum()
}

fn passive(cluster: &Cluster) -> u64 {
    cluster.members.iter().flatten().map(|member| member.container.statistics().passive_len()).sum()
}

const FEW: Option<MemoryBound> = Some(MemoryBound { limit: Limit::Entries(20), when_full: WhenFull::Remove });

#[test]
fn an_acknowledged_write_is_in_the_stores_of_all_its_owners() {
    let mut cluster = Cluster::new(1, config());
    let stores = memory_stores(3);
    stores.iter().for_each(|store| {
        start(&mut cluster, store, None, false);
    });
    cluster.run(Duration::from_secs(2));
    let copies = |key: &[u8]| {
        let segment = consort_grid::segment_of(key, SEGMENTS).0;
        stores.iter().filter(|store| store.load(segment, key).unwrap().is_some()).count()
    };
    for n in 0..60 {
        let at = cluster.submit(n % 3, key(n), put(n), TIMEOUT);
        while cluster.history[at].result.is_none() {
            let next = cluster.now + Duration::from_micros(100);
            cluster.step(next);
        }
        assert_eq!(copies(&key(n)), 2, "{:?}", cluster.history[at]);
    }
    for n in 0..30 {
        let at = cluster.submit(n % 3, key(n), remove(), TIMEOUT);
        while cluster.history[at].result.is_none() {
            let next = cluster.now + Duration::from_micros(100);
            cluster.step(next);
        }
        assert_eq!(copies(&key(n)), 0);
    }
}

#[test]
fn evicted_values_are_read_from_the_store_and_count_everywhere() {
    for passivation in [false, true] {
        let mut cluster = Cluster::new(2, config());
        let stores = memory_stores(3);
        stores.iter().for_each(|store| {
            start(&mut cluster, store, FEW, passivation);
        });
        cluster.run(Duration::from_secs(2));
        fill(&mut cluster, 3, 200);
        assert_eq!(passive(&cluster), 400 - 60, "two owners, and room for twenty on each");
        let all: u64 = stores.iter().map(stored).sum();
        assert_eq!(all, if passivation { 340 } else { 400 }, "passivation: {passivation}");
        for n in 0..200 {
            assert_eq!(get(&mut cluster, n % 3, key(n)), Some(value(n)), "{n}");
        }
        let held = cluster.members.iter().flatten().map(|member| member.container.len()).sum::<u64>();
        assert_eq!((held, passive(&cluster)), (400, 340));
        // A condition on a value, and a previous value, use the store's value.
        let previous = Action::Write(Write {
            condition: Condition::Value(value(0)),
            change: Change::Put { value: value(1000), lifetime: Lifetime::FOREVER },
            wants_previous: true,
        });
        let outcome = result(&mut cluster, 1, key(0), previous);
        let Ok(Outcome::Written(Written { is_done: true, previous: Some(before), .. })) = outcome else {
            panic!("{outcome:?}")
        };
        assert_eq!(before.value, value(0));
        assert_eq!(get(&mut cluster, 2, key(0)), Some(value(1000)));
        for n in 0..200 {
            assert!(result(&mut cluster, n % 3, key(n), remove()).is_ok());
        }
        assert_eq!(stores.iter().map(stored).sum::<u64>(), 0, "passivation: {passivation}");
    }
}

fn walk(cluster: &mut Cluster, n: usize, projection: Projection) -> Vec<(Bytes, Bytes)> {
    let cache = cluster.cache();
    let publication = Publication { projection, batch: 16, ..Publication::default() };
    let id = cluster.with(n, |node, _| node.iterate(cache, publication)).unwrap().unwrap();
    let mut all = Vec::new();
    for _ in 0..10_000 {
        match cluster.with(n, |node, now| node.take(now, cache, id)).unwrap() {
            Ok(Next::Items(items)) => all.extend(items.into_iter().map(|item| (item.key, item.value))),
            Ok(Next::Nothing) => cluster.run(Duration::from_millis(1)),
            Ok(Next::End { count }) => {
                if projection != Projection::Count {
                    assert_eq!(count, all.len() as u64);
                    return all;
                }
                return vec![(Bytes::new(), Bytes::new()); count as usize];
            }
            Err(error) => panic!("{error}"),
        }
    }
    panic!("no end: {}", cluster.state());
}

/// S004-21's half for stores: an iteration returns entries from memory and from stores alike.
#[test]
fn iterations_counts_and_transfers_include_passivated_entries() {
    let mut cluster = Cluster::new(3, config());
    let stores = memory_stores(4);
    stores[..3].iter().for_each(|store| {
        start(&mut cluster, store, FEW, false);
    });
    cluster.run(Duration::from_secs(2));
    fill(&mut cluster, 3, 300);
    let mut entries = walk(&mut cluster, 0, Projection::Entries);
    entries.sort();
    let mut expected: Vec<(Bytes, Bytes)> = (0..300).map(|n| (key(n), value(n))).collect();
    expected.sort();
    assert_eq!(entries, expected);
    let loads = |cluster: &Cluster| {
        cluster.members.iter().flatten().map(|one| one.beside.as_ref().unwrap().loads()).sum::<u64>()
    };
    let before = loads(&cluster);
    assert_eq!(walk(&mut cluster, 1, Projection::Keys).len(), 300);
    assert_eq!(walk(&mut cluster, 2, Projection::Count).len(), 300);
    assert_eq!(loads(&cluster), before, "keys are known without the store");
    start(&mut cluster, &stores[3], FEW, false);
    cluster.run(Duration::from_secs(4));
    assert!(cluster.is_settled(), "{}", cluster.state());
    cluster.crash(0);
    cluster.deliver_views(false);
    cluster.run(Duration::from_secs(6));
    assert!(cluster.is_settled(), "{}", cluster.state());
    let mut entries = walk(&mut cluster, 3, Projection::Entries);
    entries.sort();
    assert_eq!(entries, expected);
    let all: u64 = stores[1..].iter().map(stored).sum();
    assert_eq!(all, 600, "two owners each, and nothing left with those who own it no more");
}

/// The new value is large, and one of two members has no room for it.
#[test]
fn owner_without_room_for_a_write_drops_the_previous_value() {
    let large = Bytes::from(vec![7; 20_000]);
    for (nth, when_full) in [WhenFull::Remove, WhenFull::Refuse].into_iter().enumerate() {
        for passivation in [None, Some(false), Some(true)] {
            let mut cluster = Cluster::new(6 + nth as u64, config());
            let little = Some(MemoryBound { limit: Limit::Bytes(10_000), when_full });
            let stores = memory_stores(2);
            for (store, bound) in stores.iter().zip([None, little]) {
                match passivation {
                    Some(passivation) => start(&mut cluster, store, bound, passivation),
                    None => start_bounded(&mut cluster, bound),
                };
            }
            cluster.run(Duration::from_secs(2));
            fill(&mut cluster, 2, 20);
            let mut count = 0;
            for n in 0..20 {
                let change = Change::Put { value: large.clone(), lifetime: Lifetime::FOREVER };
                let write = Write { condition: Condition::Always, change, wants_previous: false };
                let expected = match result(&mut cluster, 0, key(n), Action::Write(write)) {
                    Ok(_) => large.clone(),
                    Err(OperationError::MemoryFull { .. }) => value(n),
                    other => panic!("{other:?}"),
                };
                count += usize::from(expected == large);
                assert_eq!(get(&mut cluster, 0, key(n)), Some(expected.clone()));
                let found = get(&mut cluster, 1, key(n));
                assert!(
                    found == Some(expected.clone())
                        || passivation.is_none() && expected == large && found.is_none()
                );
            }
            assert!((1..20).contains(&count), "each is the primary of some: {count}");
            if passivation.is_none() {
                continue;
            }
            cluster.check_agreement();
            cluster.run(Duration::from_secs(1));
            cluster.crash(0);
            cluster.deliver_views(false);
            cluster.run(Duration::from_secs(6));
            let left = (0..20).filter(|n| get(&mut cluster, 1, key(*n)) == Some(large.clone())).count();
            assert_eq!(left, count);
        }
    }
}

fn full_disk(seed: u64) -> (SimDisk, Arc<dyn Store>) {
    let disk = SimDisk::new(seed);
    let config = FileStoreConfig {
        segments: SEGMENTS,
        durability: Durability::Disk,
        file_bytes_max: 4096,
        ..FileStoreConfig::default()
    };
    let store = FileStore::open_on(Arc::new(disk.clone()), config).unwrap();
    (disk, Arc::new(store))
}

#[test]
fn full_disk_fails_the_write_and_the_store_gets_it_later() {
    let mut cluster = Cluster::new(4, config());
    let (disk, store) = full_disk(1);
    start(&mut cluster, &store, None, false);
    cluster.run(Duration::from_secs(1));
    fill(&mut cluster, 1, 20);
    disk.set_capacity(Some(0));
    let mut errors = Vec::new();
    for n in 20..60 {
        errors.extend(result(&mut cluster, 0, key(n), put(n)).err());
    }
    let why = match errors.first() {
        Some(OperationError::StoreWriteFailed { why, .. }) => why.clone(),
        other => panic!("{other:?}"),
    };
    assert!(why.contains("no space left"), "{why}");
    assert!(matches!(errors.last(), Some(OperationError::StoreUnavailable { .. })), "{errors:?}");
    // Reads go on, also of entries that the store has not accepted.
    let first = 60 - errors.len();
    assert_eq!(get(&mut cluster, 0, key(first)), Some(value(first)));
    assert_eq!(get(&mut cluster, 0, key(3)), Some(value(3)));
    disk.set_capacity(None);
    cluster.run(Duration::from_secs(3));
    assert!(result(&mut cluster, 0, key(100), put(100)).is_ok(), "the store takes what it is given again");
    let segment = consort_grid::segment_of(&key(first), SEGMENTS).0;
    assert!(store.load(segment, &key(first)).unwrap().is_some(), "what it had not taken, too");
}

#[test]
fn expired_entry_is_removed_from_the_store() {
    let mut cluster = Cluster::new(5, config());
    let stores = memory_stores(2);
    stores.iter().for_each(|store| {
        start(&mut cluster, store, FEW, false);
    });
    cluster.run(Duration::from_secs(1));
    let lifetime = Lifetime { lifespan: Some(Duration::from_secs(5)), max_idle: None };
    for n in 0..100 {
        let change = Change::Put { value: value(n), lifetime };
        let write = Write { condition: Condition::Always, change, wants_previous: false };
        cluster.submit(n % 2, key(n), Action::Write(write), TIMEOUT);
    }
    cluster.run(Duration::from_secs(1));
    assert_eq!(stores.iter().map(stored).sum::<u64>(), 200);
    assert_eq!(get(&mut cluster, 0, key(5)), Some(value(5)));
    cluster.run(Duration::from_secs(8));
    assert_eq!(get(&mut cluster, 0, key(5)), None);
    assert_eq!(stores.iter().map(stored).sum::<u64>(), 0);
    assert!(cluster.members.iter().flatten().all(|member| member.container.is_empty()));
}
