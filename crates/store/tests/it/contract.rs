//! The contract of every store, and the file store's handling of its files.

use std::sync::Arc;

use bytes::Bytes;
use consort_store::{
    Change, Durability, Entry, FileStore, FileStoreConfig, MemoryStore, Part, SimDisk, Store, StoreError,
    Times,
};

use crate::model::{Model, Operation, Random, SEGMENTS, contents};

fn config() -> FileStoreConfig {
    FileStoreConfig { segments: SEGMENTS, file_bytes_max: 4096, ..FileStoreConfig::default() }
}

fn open(disk: &SimDisk) -> FileStore {
    FileStore::open_on(Arc::new(disk.clone()), config()).unwrap()
}

fn put(segment: u16, key: &str, value: &str) -> Change {
    Change::Put(Entry::immortal(segment, key.to_owned(), value.to_owned()))
}

fn remove(segment: u16, key: &str) -> Change {
    Change::Remove { segment, key: key.to_owned().into() }
}

#[test]
fn stores_return_stored_entries() {
    for seed in 0..50 {
        let mut random = Random(seed);
        let file = open(&SimDisk::new(seed));
        let stores: [&dyn Store; 2] = [&MemoryStore::new(SEGMENTS), &file];
        let (mut model, mut stamp) = (Model::new(), 0);
        for _ in 0..200 {
            let operation = Operation::random(&mut random, &mut stamp);
            model = operation.steps(&model).pop().unwrap();
            for store in stores {
                operation.run(store).unwrap();
            }
        }
        for store in stores {
            assert_eq!(contents(store), model, "seed {seed}, {store:?}");
        }
    }
}

/// S004-21: iterating over one of 256 segments reads only its entries.
#[test]
fn s004_21_iteration_touches_only_the_segments_entries() {
    let disk = SimDisk::new(1);
    let config = FileStoreConfig { segments: 256, ..config() };
    let file = FileStore::open_on(Arc::new(disk), config).unwrap();
    let memory = MemoryStore::new(256);
    let stores: [&dyn Store; 2] = [&memory, &file];
    for store in stores {
        for number in 0..2560_u32 {
            store.store(&[put((number % 256) as u16, &format!("key-{number}"), "value")]).unwrap();
        }
        store.store(&[put(7, "one", "more")]).unwrap();
        for part in [Part::Whole, Part::Keys] {
            let before = store.stats().entries_read;
            let entries: Vec<Entry> = store.entries(7, part).unwrap().map(Result::unwrap).collect();
            assert_eq!(entries.len(), 11);
            assert!(entries.iter().all(|entry| entry.segment == 7));
            assert_eq!(store.stats().entries_read - before, 11, "{store:?}");
        }
        let before = store.stats().entries_read;
        assert_eq!(store.count(7).unwrap(), 11);
        assert_eq!(store.stats().entries_read, before, "counting reads nothing");
    }
}

#[test]
fn iteration_returns_the_segment_as_of_its_start_despite_concurrent_writes() {
    let disk = SimDisk::new(1);
    let store = open(&disk);
    for number in 0..50 {
        store.store(&[put(1, &format!("key-{number}"), "old")]).unwrap();
    }
    let entries = store.entries(1, Part::Whole).unwrap();
    for number in 0..50 {
        store.store(&[put(1, &format!("key-{number}"), "new")]).unwrap();
    }
    store.store(&[put(1, "another", "new")]).unwrap();
    while store.maintain(1 << 20).unwrap() {}
    store.clear().unwrap();
    let entries: Vec<Entry> = entries.map(Result::unwrap).collect();
    assert_eq!(entries.len(), 50);
    assert!(entries.iter().all(|entry| entry.value == "old"));
}

#[test]
fn entries_are_read_with_their_metadata() {
    let disk = SimDisk::new(1);
    let times = Times { created: 5, used: 7, lifespan: Some(11), max_idle: Some(13) };
    let key = Bytes::from(vec![0xff; 300]);
    let entry = Entry { segment: 3, key: key.clone(), value: Bytes::new(), version: u64::MAX, times };
    let store = open(&disk);
    store.store(&[Change::Put(entry.clone())]).unwrap();
    store.close().unwrap();
    let store = open(&disk);
    assert_eq!(store.load(3, &key).unwrap(), Some(entry.clone()));
    assert_eq!(store.load(2, &key).unwrap(), None, "the same key in another segment is another");
    let keys: Vec<Entry> = store.entries(3, Part::Keys).unwrap().map(Result::unwrap).collect();
    assert_eq!(keys, [entry]);
}

#[test]
fn a_purge_returns_expired_entries_and_reads_no_other() {
    let file = open(&SimDisk::new(1));
    let stores: [&dyn Store; 2] = [&MemoryStore::new(SEGMENTS), &file];
    for store in stores {
        for number in 0..1000_u64 {
            let times = Times { lifespan: (number % 2 == 0).then_some(number * 1000), ..Times::default() };
            let key = format!("key-{number}");
            store.store(&[Change::Put(Entry { times, ..Entry::immortal(0, key, "value") })]).unwrap();
        }
        let before = store.stats().entries_read;
        let mut gone = Vec::new();
        assert_eq!(store.purge(20_000, 5, &mut |entry| gone.push(entry.key)).unwrap(), 5);
        assert_eq!(store.purge(20_000, 100, &mut |entry| gone.push(entry.key)).unwrap(), 6);
        gone.sort();
        let mut expected: Vec<Bytes> =
            (0..=20).step_by(2).map(|number| format!("key-{number}").into()).collect();
        expected.sort();
        assert_eq!(gone, expected);
        assert!(store.stats().entries_read - before <= 11);
        assert_eq!((store.count(0).unwrap(), store.load(0, b"key-20").unwrap()), (989, None));
    }
}

#[test]
fn a_removed_segment_stays_removed_and_accepts_new_entries() {
    let disk = SimDisk::new(1);
    for round in 0..20 {
        let store = open(&disk);
        for number in 0..30 {
            store.store(&[put(1, &format!("{round}-{number}"), "x"), put(2, "kept", "y")]).unwrap();
        }
        store.remove_segment(1).unwrap();
        store.store(&[put(1, &format!("after-{round}"), "z")]).unwrap();
        while store.maintain(4096).unwrap() {}
        assert_eq!((store.count(1).unwrap(), store.count(2).unwrap()), (1, 1));
        if round % 3 == 0 {
            store.close().unwrap();
        }
        drop(store);
        let store = open(&disk);
        let model = contents(&store);
        assert_eq!(model.len(), 2, "round {round}: {model:?}");
    }
}

/// The disk holds at most about twice the live data, also if keys come and go.
#[test]
fn dead_records_and_tombstones_leave_the_disk() {
    let store = open(&SimDisk::new(1));
    store.store(&[put(0, "cold", "never changed")]).unwrap();
    for number in 0..5000 {
        let key = format!("session-{number}");
        store.store(&[put(0, &key, "some value")]).unwrap();
        if number >= 20 {
            store.store(&[remove(0, &format!("session-{}", number - 20))]).unwrap();
        }
        store.maintain(1000).unwrap();
    }
    while store.maintain(1 << 20).unwrap() {}
    let stats = store.stats();
    assert_eq!(stats.entries, 21);
    assert!(stats.disk_bytes < 20 * 4096, "{stats:?}");
    assert!(stats.tombstones < 200, "{stats:?}");
    assert!(store.load(0, b"cold").unwrap().is_some());
}

#[test]
fn maintenance_keeps_to_its_budget() {
    let store = FileStore::open_on(
        Arc::new(SimDisk::new(1)),
        FileStoreConfig { segments: SEGMENTS, file_bytes_max: 8 << 20, ..FileStoreConfig::default() },
    )
    .unwrap();
    let value = "x".repeat(10_000);
    for number in 0..3000 {
        store.store(&[put(0, &format!("key-{}", number % 100), &value)]).unwrap();
    }
    let mut calls = 0;
    loop {
        let before = store.stats().maintained_bytes;
        let is_more = store.maintain(100_000).unwrap();
        assert!(store.stats().maintained_bytes - before < 1 << 20);
        calls += 1;
        if !is_more {
            break;
        }
    }
    assert!(calls > 20, "{calls}");
    assert!(store.stats().disk_bytes < 12 << 20, "{:?}", store.stats());
}

#[test]
fn repeatedly_opened_stores_leave_no_extra_files() {
    let disk = SimDisk::new(1);
    for number in 0..100 {
        let store = open(&disk);
        store.store(&[put(0, &format!("key-{number}"), &"x".repeat(100))]).unwrap();
        while store.maintain(1 << 20).unwrap() {}
        store.close().unwrap();
    }
    let store = open(&disk);
    assert_eq!(store.count(0).unwrap(), 100);
    assert!(store.opened().files < 30, "{:?}", store.opened());
}

#[test]
fn two_stores_cannot_have_one_directory() {
    let directory = std::env::temp_dir().join(format!("consort-store-lock-{}", std::process::id()));
    let first = FileStore::open(&directory, config()).unwrap();
    let error = FileStore::open(&directory, config()).unwrap_err();
    assert!(matches!(error, StoreError::Locked { .. }), "{error}");
    first.close().unwrap();
    FileStore::open(&directory, config()).unwrap();
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn another_number_of_segments_is_refused_with_both_numbers() {
    let disk = SimDisk::new(1);
    open(&disk).close().unwrap();
    let other = FileStoreConfig { segments: 9, ..config() };
    let error = FileStore::open_on(Arc::new(disk.clone()), other).unwrap_err();
    assert_eq!(error.to_string(), "configured for 9 segments, but the store was created with 4");
    open(&disk);
}

#[test]
fn a_batch_with_an_oversized_entry_or_an_invalid_segment_writes_nothing() {
    let config = FileStoreConfig { entry_bytes_max: 100, ..config() };
    let store = FileStore::open_on(Arc::new(SimDisk::new(1)), config).unwrap();
    let error = store.store(&[put(0, "a", "b"), put(0, "key", &"x".repeat(98))]).unwrap_err();
    assert!(matches!(error, StoreError::TooLarge { len: 101, max: 100 }), "{error}");
    let error = store.store(&[put(0, "a", "b"), put(4, "a", "b")]).unwrap_err();
    assert!(matches!(error, StoreError::NoSuchSegment { segment: 4, segments: 4 }), "{error}");
    assert!(contents(&store).is_empty());
    store.store(&[put(0, "key", &"x".repeat(97))]).unwrap();
}

#[test]
fn a_closed_store_refuses_everything() {
    let file = open(&SimDisk::new(1));
    let stores: [&dyn Store; 2] = [&MemoryStore::new(SEGMENTS), &file];
    for store in stores {
        store.close().unwrap();
        assert!(matches!(store.store(&[put(0, "a", "b")]), Err(StoreError::Closed)));
        assert!(matches!(store.load(0, b"a"), Err(StoreError::Closed)));
        assert!(matches!(store.clear(), Err(StoreError::Closed)));
        assert!(matches!(store.entries(0, Part::Keys), Err(StoreError::Closed)));
    }
}

#[test]
fn writers_that_wait_at_the_same_time_share_a_sync() {
    let directory = std::env::temp_dir().join(format!("consort-store-group-{}", std::process::id()));
    let config = FileStoreConfig { durability: Durability::Disk, ..config() };
    let config = FileStoreConfig { file_bytes_max: 64 << 20, ..config };
    let store = FileStore::open(&directory, config).unwrap();
    let before = store.stats().syncs;
    std::thread::scope(|scope| {
        for thread in 0..16 {
            let store = &store;
            scope.spawn(move || {
                for number in 0..50 {
                    store.store(&[put(0, &format!("{thread}-{number}"), "x")]).unwrap();
                }
            });
        }
    });
    assert_eq!(store.count(0).unwrap(), 800);
    assert!(store.stats().syncs - before < 800, "{:?}", store.stats());
    std::fs::remove_dir_all(&directory).unwrap();
}
