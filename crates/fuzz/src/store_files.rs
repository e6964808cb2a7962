//! Files of a store that were damaged, or written by another program.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use consort_store::{
    Change, Disk, Durability, Entry, FileStore, FileStoreConfig, Part, Recover, SimDisk, Store, StoreError,
    Times,
};

use crate::bounds::bounded_by;
use crate::seen::Seen;

const SEGMENTS: u16 = 4;

/// Tables of segments, buffers for reading, and the entries.
const MEMORY_MAX: u64 = 16 * 1024 * 1024;

/// A disk with a closed store, and every value that each key ever had.
struct Recorded {
    files: BTreeMap<String, Vec<u8>>,
    values: BTreeMap<Bytes, Vec<Bytes>>,
}

fn config(recover: Recover) -> FileStoreConfig {
    FileStoreConfig {
        segments: SEGMENTS,
        durability: Durability::Disk,
        file_bytes_max: 4096,
        recover,
        ..FileStoreConfig::default()
    }
}

fn entry(nth: u16, round: u8) -> Entry {
    let times = Times {
        created: 1_000,
        used: 1_000,
        lifespan: nth.is_multiple_of(3).then_some(5_000),
        max_idle: None,
    };
    let value = vec![round; 20 + usize::from(nth) * 7 % 200];
    Entry { version: u64::from(round), times, ..Entry::immortal(nth % SEGMENTS, format!("key-{nth}"), value) }
}

fn recorded() -> &'static Recorded {
    static RECORDED: OnceLock<Recorded> = OnceLock::new();
    RECORDED.get_or_init(|| {
        let disk = SimDisk::new(1);
        let store =
            FileStore::open_on(Arc::new(disk.clone()), config(Recover::Refuse)).expect("an empty disk");
        let mut values: BTreeMap<Bytes, Vec<Bytes>> = BTreeMap::new();
        for round in 0..4 {
            let puts: Vec<Entry> = (0..40).map(|nth| entry(nth, round)).collect();
            puts.iter().for_each(|put| values.entry(put.key.clone()).or_default().push(put.value.clone()));
            store.store(&puts.into_iter().map(Change::Put).collect::<Vec<_>>()).expect("room");
            let removals = (0..40).skip(round.into()).step_by(5);
            let removals = removals
                .map(|nth| entry(nth, round))
                .map(|entry| Change::Remove { segment: entry.segment, key: entry.key });
            store.store(&removals.collect::<Vec<_>>()).expect("room");
            while store.maintain(1 << 20).expect("room") {}
        }
        store.remember(b"a note").expect("room");
        store.close().expect("room");
        let names = disk.list().expect("a disk");
        let files =
            names.into_iter().filter_map(|name| Some((name.clone(), disk.contents(&name)?))).collect();
        Recorded { files, values }
    })
}

/// Each file follows its index.
pub(crate) fn files() -> Vec<Vec<u8>> {
    let contents = recorded().files.values().enumerate();
    contents.map(|(place, contents)| [&[place as u8], &contents[..]].concat()).collect()
}

fn entries(store: &FileStore) -> Result<BTreeMap<Bytes, Bytes>, StoreError> {
    let mut all = BTreeMap::new();
    for segment in 0..SEGMENTS {
        for entry in store.entries(segment, Part::Whole)? {
            let entry = entry?;
            assert!(all.insert(entry.key, entry.value).is_none(), "a key is there twice");
        }
    }
    Ok(all)
}

fn disk_with(place: usize, contents: &[u8]) -> SimDisk {
    let disk = SimDisk::new(2);
    for (nth, (name, recorded)) in recorded().files.iter().enumerate() {
        disk.place(name, if nth == place { contents } else { recorded });
    }
    disk
}

/// A store with a replaced file opens with entries that were once stored, or fails with an error that names the file and the
/// damage. One that opens takes changes and opens again with them.
pub(crate) fn file(bytes: &[u8]) -> Seen {
    let Recorded { files, values } = recorded();
    let (place, contents) =
        bytes.split_first().map_or((0, bytes), |(place, rest)| (usize::from(*place), rest));
    let place = place % files.len();
    let mut is_opened = false;
    let mut peak = 0;
    for recover in [Recover::Refuse, Recover::SkipCorrupt] {
        let disk = disk_with(place, contents);
        let (opened, used) =
            bounded_by(MEMORY_MAX, || FileStore::open_on(Arc::new(disk.clone()), config(recover)));
        peak = peak.max(used);
        let store = match opened {
            Ok(store) => store,
            Err(error) => {
                assert!(!error.to_string().is_empty());
                continue;
            }
        };
        is_opened |= recover == Recover::Refuse;
        // Entries with damage that only a read finds are errors then.
        let Ok(found) = entries(&store) else { continue };
        for (key, value) in &found {
            assert!(
                values.get(key).is_some_and(|known| known.contains(value)),
                "{key:?} never had {value:?}"
            );
        }
        let put = Entry::immortal(1, "new", "value");
        if store.store(&[Change::Put(put)]).is_err() {
            continue;
        }
        store.close().expect("room");
        drop(store);
        disk.restart(consort_store::Crash::Kill);
        let again = FileStore::open_on(Arc::new(disk), config(Recover::Refuse)).expect("it was open before");
        let mut expected = found;
        expected.insert(Bytes::from_static(b"new"), Bytes::from_static(b"value"));
        assert_eq!(entries(&again).expect("it was read before"), expected);
    }
    Seen::one(is_opened, peak)
}
