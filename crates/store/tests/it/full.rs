//! Full disks and failing syncs.

use std::any::Any;
use std::io;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use consort_store::{
    Change, Crash, Disk, DiskFile, Durability, Entry, FileStore, FileStoreConfig, RealDisk, SimDisk, Store,
    StoreError, Writer, WriterConfig,
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

/// A write that does not fit is refused and changes nothing, also after a restart; the store continues when
/// there is space.
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
                // A purge may remove some entries before the disk is full.
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

/// A failed sync is not repeated: nothing is acknowledged until the store has read the disk again.
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
            assert!(store.load(0, format!("key-{number}").as_bytes()).unwrap().is_some(), "reads continue");
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
fn write_behind_keeps_entries_that_do_not_fit_and_stores_them_when_the_disk_has_space() {
    let disk = SimDisk::new(1);
    let store: Arc<dyn Store> = Arc::new(open(&disk, Durability::Process));
    let config = WriterConfig {
        mode: consort_store::Mode::WriteBehind,
        retry_after: std::time::Duration::from_millis(1),
        ..WriterConfig::default()
    };
    let (sender, errors) = std::sync::mpsc::channel();
    let report = move |error: &StoreError| drop(sender.send(error.to_string()));
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

/// A directory with a quota.
#[derive(Debug)]
struct QuotaDisk {
    inner: RealDisk,
    directory: PathBuf,
    quota: Arc<AtomicU64>,
}

#[derive(Debug)]
struct QuotaFile {
    inner: Arc<dyn DiskFile>,
    directory: PathBuf,
    quota: Arc<AtomicU64>,
}

impl Disk for QuotaDisk {
    fn name(&self) -> String {
        self.inner.name()
    }

    fn lock(&self) -> io::Result<Option<Box<dyn Any + Send + Sync>>> {
        self.inner.lock()
    }

    fn list(&self) -> io::Result<Vec<String>> {
        self.inner.list()
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let (directory, quota) = (self.directory.clone(), self.quota.clone());
        Ok(Arc::new(QuotaFile { inner: self.inner.open(name)?, directory, quota }))
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let (directory, quota) = (self.directory.clone(), self.quota.clone());
        Ok(Arc::new(QuotaFile { inner: self.inner.create(name)?, directory, quota }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.inner.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.inner.remove(name)
    }

    fn sync_names(&self) -> io::Result<()> {
        self.inner.sync_names()
    }

    fn boot(&self) -> Option<u128> {
        self.inner.boot()
    }
}

impl DiskFile for QuotaFile {
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        self.inner.read_at(bytes, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let files = std::fs::read_dir(&self.directory)?;
        let used: u64 = files.map(|file| Ok(file?.metadata()?.len())).sum::<io::Result<u64>>()?;
        let grows = (offset + bytes.len() as u64).saturating_sub(self.inner.len()?);
        if used + grows > self.quota.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        self.inner.write_at(bytes, offset)
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        self.inner.truncate(len)
    }

    fn sync(&self) -> io::Result<()> {
        self.inner.sync()
    }
}

const VALUE_BYTES: usize = 1_000;

fn key(number: usize) -> Bytes {
    Bytes::from(format!("key-{number}"))
}

fn entry(number: usize) -> Change {
    Change::Put(Entry::immortal((number % 4) as u16, key(number), vec![number as u8; VALUE_BYTES]))
}

fn removal(number: usize) -> Change {
    Change::Remove { segment: (number % 4) as u16, key: key(number) }
}

/// Runs maintenance to its end.
fn maintain(store: &FileStore) {
    loop {
        match store.maintain(1 << 20) {
            Ok(true) => {}
            Ok(false) | Err(StoreError::Full { .. }) => return,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Writes entries until the disk is full. Returns their number.
fn fill(store: &FileStore, first: usize) -> usize {
    for number in first.. {
        match store.store(&[entry(number)]) {
            Ok(()) => maintain(store),
            Err(StoreError::Full { .. }) => return number - first,
            Err(error) => panic!("{error}"),
        }
    }
    unreachable!("a disk without an end")
}

/// Fills the disk, frees it by one of the ways, and fills it again.
fn free_and_fill_again(store: &FileStore) {
    let filled = fill(store, 0);
    assert!(filled > 500, "{filled}");
    assert!(matches!(store.store(&[entry(0)]), Err(StoreError::Full { .. })), "it stays full");
    // One by one, each on a disk without space for an entry.
    for number in 0..filled * 3 / 4 {
        store
            .store(&[removal(number)])
            .unwrap_or_else(|error| panic!("removal {number} of {filled}: {error}"));
        maintain(store);
    }
    assert_eq!(store.stats().entries as usize, filled - filled * 3 / 4);
    let more = fill(store, 1_000_000);
    assert!(more > filled / 3, "{more} of {filled} fit again");
    for number in filled * 3 / 4..filled {
        let loaded = store.load((number % 4) as u16, &key(number)).unwrap();
        assert_eq!(loaded.unwrap().value, vec![number as u8; VALUE_BYTES]);
    }
    store.remove_segment(1).unwrap();
    store.clear().unwrap();
    maintain(store);
    let again = fill(store, 0);
    assert!(again > filled * 9 / 10, "{again} of {filled} fit into a cleared store");
    store.clear().unwrap();
    store.remember(b"a note").unwrap();
    store.close().unwrap();
}

fn of_small_files() -> FileStoreConfig {
    FileStoreConfig { segments: 4, file_bytes_max: 256 * 1024, ..FileStoreConfig::default() }
}

#[test]
fn removals_and_clears_free_a_disk_with_an_exhausted_quota() {
    let directory = std::env::temp_dir().join(format!("consort-quota-{}", std::process::id()));
    for config in [of_small_files(), FileStoreConfig { segments: 4, ..FileStoreConfig::default() }] {
        let inner = RealDisk::new(&directory).unwrap();
        let quota = Arc::new(AtomicU64::new(2_000_000));
        let disk = QuotaDisk { inner, directory: directory.clone(), quota };
        free_and_fill_again(&FileStore::open_on(Arc::new(disk), config).unwrap());
        std::fs::remove_dir_all(&directory).unwrap();
    }
}

/// A removal's record is half as large as an entry here, and no file becomes mostly dead before most of the
/// removals.
#[test]
fn scattered_removals_of_small_entries_free_a_full_disk() {
    let disk = SimDisk::new(1);
    let store = FileStore::open_on(Arc::new(disk.clone()), of_small_files()).unwrap();
    disk.set_capacity(Some(3_000_000));
    let small = |number: usize| Change::Put(Entry::immortal((number % 4) as u16, key(number), vec![7; 40]));
    let mut filled = 0;
    while store.store(&(filled..filled + 16).map(small).collect::<Vec<_>>()).is_ok() {
        filled += 16;
        maintain(&store);
    }
    assert!(filled > 10_000, "{filled}");
    for step in 0..filled {
        // Coprime to `filled`, so that each key comes once.
        let number = step * 7_919 % filled;
        store.store(&[removal(number)]).unwrap_or_else(|error| panic!("removal {step} of {filled}: {error}"));
        if step.is_multiple_of(16) {
            maintain(&store);
        }
    }
    assert_ne!(filled % 7_919, 0, "else some would be removed twice");
    assert_eq!(store.stats().entries, 0);
    maintain(&store);
    let written = (0..filled / 2).all(|number| {
        let is_stored = store.store(&[small(number)]).is_ok();
        maintain(&store);
        is_stored
    });
    assert!(written, "half of what was there fits again");
}

/// With a separate file system, where one can be mounted.
#[test]
fn removals_and_clears_free_a_file_system_that_is_full() {
    let directory = std::env::temp_dir().join(format!("consort-tmpfs-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let mounted =
        Command::new("mount").args(["-t", "tmpfs", "-o", "size=2m", "tmpfs"]).arg(&directory).output();
    if !mounted.is_ok_and(|mounted| mounted.status.success()) {
        println!("no file system can be mounted here: {} has a quota instead", directory.display());
        std::fs::remove_dir_all(&directory).unwrap();
        return removals_and_clears_free_a_disk_with_an_exhausted_quota();
    }
    let freed = std::panic::catch_unwind(|| {
        free_and_fill_again(&FileStore::open(&directory, of_small_files()).unwrap());
    });
    assert!(Command::new("umount").arg(&directory).status().unwrap().success());
    std::fs::remove_dir_all(&directory).unwrap();
    freed.unwrap();
}

#[test]
fn write_behind_executes_removals_behind_entries_that_do_not_fit() {
    let disk = SimDisk::new(1);
    let files = FileStoreConfig { segments: 4, file_bytes_max: 64 * 1024, ..FileStoreConfig::default() };
    let store = Arc::new(FileStore::open_on(Arc::new(disk.clone()), files).unwrap());
    disk.set_capacity(Some(200_000));
    let filled = fill(&store, 0);
    let config = WriterConfig {
        mode: consort_store::Mode::WriteBehind,
        retry_after: std::time::Duration::from_millis(1),
        ..WriterConfig::default()
    };
    let writer = Writer::spawn(store.clone(), config, |_| {}).unwrap();
    let write = |change| writer.write(change, Box::new(|result| assert!(result.is_ok()))).unwrap();
    let (stored, is_stored) = std::sync::mpsc::channel();
    (0..20).for_each(|number| write(entry(1_000_000 + number)));
    (0..filled).for_each(|number| write(removal(number)));
    writer.flush(Box::new(move |result| stored.send(result.is_ok()).unwrap()));
    assert!(is_stored.recv().unwrap());
    assert_eq!(store.stats().entries, 20);
    assert_eq!(writer.close().lost, 0);
}
