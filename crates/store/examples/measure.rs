//! Measures the file store on this machine; prints one JSON object per line.
//!
//! `cargo run --release -p consort-store --example measure -- [directory] [entries]`

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Instant;

use consort_store::{
    Change, Durability, Entry, FileStore, FileStoreConfig, Part, Store, Writer, WriterConfig,
};

const KB: usize = 1024;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let directory =
        arguments.next().map_or_else(|| std::env::temp_dir().join("consort-store-measure"), PathBuf::from);
    let entries: u64 = arguments.next().and_then(|count| count.parse().ok()).unwrap_or(1_000_000);
    let fresh = |name: &str, durability| {
        let directory = directory.join(name);
        let _ = std::fs::remove_dir_all(&directory);
        open(&directory, durability)
    };
    writes(&fresh("process", Durability::Process), "process", 1, 200_000);
    writes(&fresh("process-batch", Durability::Process), "process", 100, 400_000);
    writes(&fresh("disk", Durability::Disk), "disk", 1, 2_000);
    writes(&fresh("disk-batch", Durability::Disk), "disk", 100, 100_000);
    callers(&fresh("disk-callers", Durability::Disk), 16, 500);
    for (name, durability) in [("process", Durability::Process), ("disk", Durability::Disk)] {
        writer(fresh("writer", durability), name, 200_000);
    }
    reads(&open(&directory.join("process"), Durability::Process));
    overwrites(&fresh("overwrites", Durability::Process));
    for value_len in [100, KB] {
        opening(&directory.join("opening"), entries, value_len);
    }
    let _ = std::fs::remove_dir_all(&directory);
}

fn open(directory: &Path, durability: Durability) -> FileStore {
    let config = FileStoreConfig { durability, ..FileStoreConfig::default() };
    FileStore::open(directory, config).unwrap_or_else(|error| panic!("{}: {error}", directory.display()))
}

fn put(number: u64, value_len: usize) -> Change {
    Change::Put(Entry::immortal(
        (number % 256) as u16,
        format!("key-{number:012}"),
        vec![number as u8; value_len],
    ))
}

fn per_second(count: u64, since: Instant) -> u64 {
    (count as f64 / since.elapsed().as_secs_f64()) as u64
}

/// One thread that stores batches in sequence.
fn writes(store: &FileStore, durability: &str, batch: u64, count: u64) {
    let begun = Instant::now();
    for first in (0..count).step_by(batch as usize) {
        let changes: Vec<Change> = (first..first + batch).map(|number| put(number, KB)).collect();
        store.store(&changes).expect("stored");
    }
    let rate = per_second(count, begun);
    println!(
        r#"{{"what":"writes","durability":"{durability}","value_bytes":{KB},"batch":{batch},"per_second":{rate}}}"#
    );
    store.close().expect("closed");
}

/// Threads that each wait for the disk with their own write.
fn callers(store: &FileStore, threads: u64, count: u64) {
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || {
                for number in 0..count {
                    store.store(&[put(thread * count + number, KB)]).expect("stored");
                }
            });
        }
    });
    let rate = per_second(threads * count, begun);
    let syncs = store.stats().syncs;
    println!(
        r#"{{"what":"writes by threads","durability":"disk","value_bytes":{KB},"threads":{threads},"per_second":{rate},"syncs":{syncs}}}"#
    );
}

/// Write-through by a writer with a full queue.
fn writer(store: FileStore, durability: &str, count: u64) {
    let writer = Writer::spawn(Arc::new(store), WriterConfig::default(), |_| {}).expect("a thread");
    let (sender, done) = channel();
    let begun = Instant::now();
    for number in 0..count {
        let mut change = put(number, KB);
        loop {
            let sender = sender.clone();
            let Err(refused) =
                writer.write(change, Box::new(move |result| sender.send(result.is_ok()).expect("heard")))
            else {
                break;
            };
            change = refused.change;
            let (wake, room) = channel();
            writer.on_room(Box::new(move || wake.send(()).expect("heard")));
            room.recv().expect("room");
        }
    }
    assert!(done.iter().take(count as usize).all(|is_ok| is_ok));
    let rate = per_second(count, begun);
    println!(
        r#"{{"what":"writer, write-through","durability":"{durability}","value_bytes":{KB},"per_second":{rate}}}"#
    );
}

fn reads(store: &FileStore) {
    let count = 200_000;
    let begun = Instant::now();
    for number in 0..count {
        let number = number * 7919 % count;
        let key = format!("key-{number:012}");
        assert!(store.load((number % 256) as u16, key.as_bytes()).expect("read").is_some());
    }
    println!(r#"{{"what":"reads","value_bytes":{KB},"per_second":{}}}"#, per_second(count, begun));
    for (name, part) in [("iteration", Part::Whole), ("iteration of keys", Part::Keys)] {
        let begun = Instant::now();
        let entries = (0..256).flat_map(|segment| store.entries(segment, part).expect("open"));
        assert_eq!(entries.filter(Result::is_ok).count() as u64, count);
        println!(r#"{{"what":"{name}","value_bytes":{KB},"per_second":{}}}"#, per_second(count, begun));
    }
}

/// Overwrites of the same keys with concurrent compaction.
fn overwrites(store: &FileStore) {
    let (keys, count) = (100_000, 1_000_000);
    let begun = Instant::now();
    let mut longest = 0;
    for number in 0..count {
        store.store(&[put(number * 7919 % keys, KB)]).expect("stored");
        if number % 100 == 0 {
            let called = Instant::now();
            store.maintain(400 * KB as u64).expect("maintained");
            longest = longest.max(called.elapsed().as_micros());
        }
    }
    let rate = per_second(count, begun);
    let stats = store.stats();
    println!(
        r#"{{"what":"overwrites with compaction","value_bytes":{KB},"keys":{keys},"per_second":{rate},"disk_bytes":{},"live_bytes":{},"maintained_bytes":{},"longest_step_us":{longest}}}"#,
        stats.disk_bytes,
        stats.disk_bytes - stats.dead_bytes,
        stats.maintained_bytes
    );
}

fn opening(directory: &Path, entries: u64, value_len: usize) {
    let _ = std::fs::remove_dir_all(directory);
    let store = open(directory, Durability::Process);
    for first in (0..entries).step_by(1000) {
        let changes: Vec<Change> =
            (first..entries.min(first + 1000)).map(|number| put(number, value_len)).collect();
        store.store(&changes).expect("stored");
    }
    store.close().expect("closed");
    drop(store);
    let begun = Instant::now();
    let store = open(directory, Durability::Process);
    let milliseconds = begun.elapsed().as_millis();
    let stats = store.stats();
    println!(
        r#"{{"what":"opening","value_bytes":{value_len},"entries":{},"ms":{milliseconds},"disk_bytes":{},"index_bytes_per_entry":{:.1}}}"#,
        stats.entries,
        stats.disk_bytes,
        stats.index_bytes as f64 / entries as f64
    );
    let _ = std::fs::remove_dir_all(directory);
}
