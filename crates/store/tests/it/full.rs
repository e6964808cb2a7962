//! A disk that has no room, and one that refuses to make writes safe.

use std::sync::Arc;

use consort_store::{
    Change, Crash, Durability, Entry, FileStore, FileStoreConfig, SimDisk, Store, StoreError, Writer,
    WriterConfig,
};

use crate::model::{Model, Operation, Random, SEGMENTS, contents};

fn open(disk: &SimDisk, durability: Durability) -> FileStore {
    let config = FileStoreConfig {
        segments: SEGMENTS,
        durability,
        file_bytes_max: 4096,
        ..FileStoreConfig::default()
    };
    FileStore::open_on(Arc::new(disk.clone()), config).unwrap()
}

/// Whatever does not fit is not made, everything else is as it was, also after a restart, and it goes on when there is
/// room again.
#[test]
fn a_full_disk_refuses_writes_and_loses_nothing() {
    let mut refused = 0;
    for seed in 0..150 {
        let mut random = Random(seed);
        let disk = SimDisk::new(seed);
        let store = open(&disk, Durability::Process);
        let (mut model, mut stamp) = (Model::new(), 0);
        disk.set_capacity(Some(3000 + random.below(20_000)));
        for _ in 0..150 {
            let operation = Operation::random(&mut random, &mut stamp);
            match operation.run(&store) {
                Ok(()) => model = operation.steps(&model).pop().unwrap(),
                // A purge removes some and then finds that there is no room for the rest.
                Err(StoreError::Full { .. }) if matches!(operation, Operation::Purge(_)) => {
                    model = contents(&store);
                }
                Err(StoreError::Full { .. }) => refused += 1,
                Err(other) => panic!("seed {seed}: {other}"),
            }
            assert_eq!(contents(&store), model, "seed {seed}, {operation:?}");
        }
        drop(store);
        disk.restart(Crash::Kill);
        let store = open(&disk, Durability::Process);
        assert_eq!(contents(&store), model, "seed {seed}, opened on the full disk");
        disk.set_capacity(None);
        store.store(&[Change::Put(Entry::immortal(0, "room", "again"))]).unwrap();
        while store.maintain(1 << 20).unwrap() {}
        store.close().unwrap();
        model.insert((0, "room".into()), Entry::immortal(0, "room", "again"));
        assert_eq!(contents(&open(&disk, Durability::Process)), model, "seed {seed}, with room again");
    }
    assert!(refused > 1000, "{refused}");
}

/// A sync that failed is not tried again: nothing is acknowledged until the store has looked at what the disk holds.
#[test]
fn a_failed_sync_stops_writes_until_the_store_is_opened_again() {
    for seed in 0..100 {
        let disk = SimDisk::new(seed);
        let store = open(&disk, Durability::Disk);
        let put = |number: u64| Change::Put(Entry::immortal(0, format!("key-{number}"), "value"));
        disk.fail_sync_after(1 + seed % 40);
        let mut acknowledged = Vec::new();
        for number in 0..60 {
            match store.store(&[put(number)]) {
                Ok(()) => acknowledged.push(number),
                Err(error) => assert!(
                    matches!(error, StoreError::Stopped { .. } | StoreError::Io { .. }),
                    "seed {seed}: {error}"
                ),
            }
        }
        for number in &acknowledged {
            assert!(store.load(0, format!("key-{number}").as_bytes()).unwrap().is_some(), "reads go on");
        }
        drop(store);
        disk.restart(Crash::PowerLoss);
        let store = open(&disk, Durability::Disk);
        for number in &acknowledged {
            assert!(
                store.load(0, format!("key-{number}").as_bytes()).unwrap().is_some(),
                "seed {seed}, {number}"
            );
        }
        store.store(&[put(1000)]).unwrap();
    }
}

#[test]
fn write_behind_keeps_what_does_not_fit_and_stores_it_when_there_is_room() {
    let disk = SimDisk::new(1);
    let store: Arc<dyn Store> = Arc::new(open(&disk, Durability::Process));
    let config = WriterConfig {
        mode: consort_store::Mode::WriteBehind,
        retry_after: std::time::Duration::from_millis(1),
        ..WriterConfig::default()
    };
    let (told, errors) = std::sync::mpsc::channel();
    let report = move |error: &StoreError| drop(told.send(error.to_string()));
    let writer = Writer::spawn(Arc::clone(&store), config, report).unwrap();
    disk.set_capacity(Some(2000));
    let put = |number: u64| Change::Put(Entry::immortal(0, format!("key-{number}"), vec![7; 500]));
    for number in 0..10 {
        writer.write(put(number), Box::new(|result| assert!(result.is_ok()))).unwrap();
    }
    assert!(errors.recv().unwrap().contains("no space left"));
    for number in 0..10 {
        assert!(writer.load(0, format!("key-{number}").as_bytes()).unwrap().is_some(), "{number}");
    }
    disk.set_capacity(None);
    let closed = writer.close();
    assert_eq!(closed.lost, 0, "{closed:?}");
    assert_eq!(contents(&open(&disk, Durability::Process)).len(), 10);
}
