//! Damaged files.

use std::sync::Arc;

use consort_store::{
    Change, Crash, Disk, Entry, FileStore, FileStoreConfig, Part, Recover, SimDisk, Store, StoreError,
};

use crate::model::{Model, Operation, Random, SEGMENTS, contents};

fn config(recover: Recover) -> FileStoreConfig {
    FileStoreConfig { segments: SEGMENTS, file_bytes_max: 4096, recover, ..FileStoreConfig::default() }
}

fn open(disk: &SimDisk, recover: Recover) -> Result<FileStore, StoreError> {
    FileStore::open_on(Arc::new(disk.clone()), config(recover))
}

/// A closed store and its contents.
fn filled(seed: u64, operations: usize) -> (SimDisk, Model) {
    let disk = SimDisk::new(seed);
    let store = open(&disk, Recover::Refuse).unwrap();
    let (mut random, mut stamp, mut model) = (Random(seed), 0, Model::new());
    for _ in 0..operations {
        let operation = Operation::random(&mut random, &mut stamp);
        operation.run(&store).unwrap();
        model = operation.steps(&model).pop().unwrap();
    }
    store.close().unwrap();
    (disk, model)
}

/// Writes `count` entries of 100 bytes to segment 0.
fn fill(store: &FileStore, count: u32) {
    for number in 0..count {
        let entry = Entry::immortal(0, format!("key-{number:03}"), "x".repeat(100));
        store.store(&[Change::Put(entry)]).unwrap();
    }
}

fn logs(disk: &SimDisk) -> Vec<String> {
    disk.list().unwrap().into_iter().filter(|name| name.ends_with(".log")).collect()
}

/// After any bit flip in a closed store, it opens with all its contents, or the error names the file and the
/// approximate offset. A silent success is complete, and occurs only for the mark at the end of the last
/// file.
#[test]
fn no_damage_is_hidden() {
    let mut refused = 0;
    for seed in 0..20 {
        let (disk, model) = filled(seed, 60);
        let mut random = Random(seed + 1000);
        for _ in 0..60 {
            let names = logs(&disk);
            let name = &names[random.below(names.len() as u64) as usize];
            let len = disk.contents(name).unwrap().len() as u64;
            let (offset, bit) = (random.below(len), random.below(8) as u8);
            let before: Vec<_> = names.iter().map(|name| disk.contents(name)).collect();
            disk.flip(name, offset, bit);
            match open(&disk, Recover::Refuse) {
                Ok(store) => {
                    assert_eq!(contents(&store), model, "seed {seed}, {name} at {offset}");
                    drop(store);
                    break;
                }
                Err(StoreError::Corrupt { file, offset: at, .. }) => {
                    assert!(file == *name && at <= offset, "{file} at {at} for {name} at {offset}");
                    refused += 1;
                }
                Err(other) => panic!("{other}"),
            }
            disk.flip(name, offset, bit);
            let after: Vec<_> = names.iter().map(|name| disk.contents(name)).collect();
            assert_eq!(before, after, "a store that does not open changes nothing");
        }
        if let Ok(store) = open(&disk, Recover::Refuse) {
            assert_eq!(contents(&store), model, "seed {seed}, repaired");
        }
    }
    assert!(refused > 500, "{refused}");
}

#[test]
fn a_file_that_is_missing_or_cut_is_named() {
    let disk = SimDisk::new(1);
    let store = open(&disk, Recover::Refuse).unwrap();
    fill(&store, 100);
    store.close().unwrap();
    let names = logs(&disk);
    assert!(names.len() > 2);
    for name in &names[..names.len() - 1] {
        let bytes = disk.contents(name).unwrap();
        disk.remove(name).unwrap();
        let error = open(&disk, Recover::Refuse).unwrap_err();
        assert_eq!(error.to_string(), format!("{name} is damaged at byte 0: the file is missing"));
        for len in [0, 10, bytes.len() / 2, bytes.len() - 28, bytes.len() - 1] {
            disk.place(name, &bytes[..len]);
            let error = open(&disk, Recover::Refuse).unwrap_err();
            assert!(matches!(&error, StoreError::Corrupt { file, .. } if file == name), "{error}");
        }
        disk.place(name, &bytes);
    }
    open(&disk, Recover::Refuse).unwrap();
}

/// Skipping keeps intact records, counts the damage, and leaves a store that opens normally.
#[test]
fn skipping_damage_keeps_the_rest_and_reports_the_loss() {
    let disk = SimDisk::new(1);
    let store = open(&disk, Recover::Refuse).unwrap();
    fill(&store, 100);
    store.close().unwrap();
    let names = logs(&disk);
    let at = disk.contents(&names[0]).unwrap().len() as u64 / 2;
    disk.flip(&names[0], at, 3);
    disk.flip(&names[1], 20, 0);
    open(&disk, Recover::Refuse).unwrap_err();
    let store = open(&disk, Recover::SkipCorrupt).unwrap();
    let lost = store.opened().lost;
    assert_eq!((lost.files, store.count(0).unwrap()), (1, 99), "{lost:?}");
    assert!(lost.bytes >= 175 && lost.places >= 2, "{lost:?}");
    drop(store);
    disk.restart(Crash::Kill);
    let store = open(&disk, Recover::Refuse).unwrap();
    assert!(store.opened().lost.is_empty());
    assert_eq!(store.count(0).unwrap(), 99);
}

#[test]
fn skipping_never_invents_an_entry() {
    for seed in 0..40 {
        let (disk, _) = filled(seed, 100);
        let mut random = Random(seed);
        for name in logs(&disk) {
            let len = disk.contents(&name).unwrap().len() as u64;
            for _ in 0..random.below(3) {
                disk.flip(&name, random.below(len), random.below(8) as u8);
            }
        }
        let mut written = std::collections::BTreeSet::new();
        let (mut again, mut stamp) = (Random(seed), 0);
        for _ in 0..100 {
            if let Operation::Store(changes) = Operation::random(&mut again, &mut stamp) {
                written.extend(changes.iter().filter_map(|change| match change {
                    Change::Put(entry) => Some((entry.key.clone(), entry.value.clone(), entry.version)),
                    Change::Remove { .. } => None,
                }));
            }
        }
        let store = open(&disk, Recover::SkipCorrupt).unwrap();
        let found = contents(&store);
        assert!(found.values().all(|e| written.contains(&(e.key.clone(), e.value.clone(), e.version))));
        store.close().unwrap();
        assert_eq!(contents(&open(&disk, Recover::Refuse).unwrap()), found, "seed {seed}");
    }
}

#[test]
fn an_entry_damaged_after_opening_is_an_error_of_that_entry_only() {
    let disk = SimDisk::new(1);
    let store = open(&disk, Recover::Refuse).unwrap();
    for key in ["a", "b", "c"] {
        store.store(&[Change::Put(Entry::immortal(0, key, vec![7; 50]))]).unwrap();
    }
    let name = &logs(&disk)[0];
    let bytes = disk.contents(name).unwrap();
    let at = bytes.windows(51).position(|window| window[0] == b'b' && window[1..] == [7; 50]).unwrap();
    disk.flip(name, at as u64 + 20, 1);
    let error = store.load(0, b"b").unwrap_err();
    assert!(matches!(&error, StoreError::Corrupt { file, .. } if file == name), "{error}");
    assert!(store.load(0, b"a").unwrap().is_some() && store.load(0, b"c").unwrap().is_some());
    let results: Vec<_> = store.entries(0, Part::Whole).unwrap().collect();
    assert_eq!((results.len(), results.iter().filter(|result| result.is_err()).count()), (3, 1));
}

/// A file found damaged by the compaction stays as it is and is reported once.
#[test]
fn a_damaged_file_is_not_compacted() {
    let disk = SimDisk::new(1);
    let store = open(&disk, Recover::Refuse).unwrap();
    for number in 0..200 {
        let entry = Entry::immortal(0, format!("key-{}", number % 30), vec![7; 60]);
        store.store(&[Change::Put(entry)]).unwrap();
    }
    let name = &logs(&disk)[0];
    disk.flip(name, disk.contents(name).unwrap().len() as u64 - 40, 1);
    let mut errors = 0;
    for _ in 0..100 {
        errors += usize::from(store.maintain(1 << 20).is_err());
    }
    assert_eq!(errors, 1);
    assert!(disk.contents(name).is_some());
    assert_eq!(contents(&store).len(), 30);
}

#[test]
fn a_file_with_the_last_number_is_refused() {
    let (disk, _) = filled(1, 5);
    disk.place("4294967295.log", b"");
    let error = open(&disk, Recover::Refuse).unwrap_err();
    assert!(matches!(error, StoreError::Corrupt { .. }), "{error}");
}

/// Arbitrary files in the directory are refused or skipped without a panic.
#[test]
fn random_bytes_as_files_are_refused() {
    let whole = filled(5, 100).0;
    let sample = whole.contents(&logs(&whole)[0]).unwrap();
    for seed in 0..3000 {
        let mut random = Random(seed);
        let disk = SimDisk::new(seed);
        open(&disk, Recover::Refuse).unwrap().close().unwrap();
        for number in 1..=1 + random.below(3) {
            let mut bytes: Vec<u8> = (0..random.below(600)).map(|_| random.next() as u8).collect();
            if random.below(2) == 0 {
                // The beginning of a real file, with random bytes in and after it.
                let cut = random.below(sample.len() as u64) as usize;
                bytes.splice(..0, sample[..cut].iter().copied());
                for _ in 0..random.below(4) {
                    let at = random.below(bytes.len().max(1) as u64) as usize;
                    if let Some(byte) = bytes.get_mut(at) {
                        *byte = random.next() as u8;
                    }
                }
            }
            disk.place(&format!("{number:010}.log"), &bytes);
        }
        if random.below(4) == 0 {
            disk.place("META", &(0..random.below(40)).map(|_| random.next() as u8).collect::<Vec<_>>());
        }
        let recover = if random.below(2) == 0 { Recover::Refuse } else { Recover::SkipCorrupt };
        if let Ok(store) = open(&disk, recover) {
            contents(&store);
            store.store(&[Change::Put(Entry::immortal(0, "a", "b"))]).unwrap();
        }
    }
}
