//! A process that writes to a directory is killed at random moments, repeatedly.
//!
//! The process is this test binary, started with the name of one test and a directory. It prints the number
//! of each acknowledged write; the parent kills it after a random number of lines and checks the files.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use consort_store::{Change, Durability, Entry, FileStore, FileStoreConfig, Part, Store};

use crate::model::Random;

/// Passes the directory to the writing process.
const DIRECTORY: &str = "CONSORT_STORE_KILL_DIRECTORY";

/// Keys written in turn; every seventh write is a removal.
const KEYS: u64 = 500;

const KILLS: u64 = 12;

fn config(durability: Durability) -> FileStoreConfig {
    FileStoreConfig { segments: 8, durability, file_bytes_max: 256 << 10, ..FileStoreConfig::default() }
}

fn key(number: u64) -> (u16, String) {
    ((number % KEYS % 8) as u16, format!("key-{}", number % KEYS))
}

fn is_removal(number: u64) -> bool {
    number.is_multiple_of(7)
}

fn value(number: u64) -> Vec<u8> {
    let mut value = number.to_le_bytes().to_vec();
    value.resize(8 + (number * 37 % 2000) as usize, number as u8);
    value
}

fn change(number: u64) -> Change {
    let (segment, key) = key(number);
    if is_removal(number) {
        return Change::Remove { segment, key: key.into() };
    }
    Change::Put(Entry { version: number, ..Entry::immortal(segment, key, value(number)) })
}

/// The writing process, not a test of its own.
#[test]
fn process_that_writes_until_it_is_killed() {
    let Ok(directory) = std::env::var(DIRECTORY) else { return };
    let durability = if directory.ends_with("disk") { Durability::Disk } else { Durability::Process };
    let store = FileStore::open(&directory, config(durability)).unwrap();
    // Continues after the newest write.
    let newest = (0..8).flat_map(|segment| store.entries(segment, Part::Keys).unwrap());
    let mut number = newest.map(|entry| entry.unwrap().version).max().unwrap_or(0) + 1000;
    let mut out = std::io::stdout().lock();
    writeln!(out, "acknowledged {number}").unwrap();
    loop {
        let batch: Vec<Change> = (number..number + 1 + number % 3).map(change).collect();
        store.store(&batch).unwrap();
        number += batch.len() as u64;
        store.maintain(50_000).unwrap();
        writeln!(out, "acknowledged {number}").unwrap();
    }
}

/// Returns the first number and the number below which everything is acknowledged; `None` if it was killed
/// before it wrote.
fn write_and_kill(directory: &Path, lines: u64) -> Option<(u64, u64)> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "kill::process_that_writes_until_it_is_killed", "--nocapture"])
        .env(DIRECTORY, directory)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
    let number = |line: String| line.split_once("acknowledged ").and_then(|(_, number)| number.parse().ok());
    let mut numbers = output.by_ref().map_while(Result::ok).filter_map(number);
    let first: Option<u64> = numbers.next();
    let mut last = first;
    for _ in 0..lines {
        last = numbers.next().or(last);
    }
    child.kill().unwrap();
    child.wait().unwrap();
    // Output before the kill.
    last = numbers.last().or(last);
    Some((first?, last?))
}

fn survives(durability: Durability, name: &str) {
    let directory = std::env::temp_dir().join(format!("consort-store-kill-{}-{name}", std::process::id()));
    let mut random = Random(std::process::id().into());
    // The last acknowledged write of each key.
    let mut acknowledged: BTreeMap<(u16, String), u64> = BTreeMap::new();
    // Writes that may have been made without an acknowledgement.
    let mut unheard: Vec<u64> = Vec::new();
    for kill in 0..KILLS {
        // A sync takes a millisecond.
        let lines = random.below(if durability == Durability::Disk { 200 } else { 2000 });
        let Some((first, last)) = write_and_kill(&directory, lines) else { panic!("it wrote nothing") };
        for number in first..last {
            acknowledged.insert(key(number), number);
        }
        unheard.extend(last..last + 3);
        let store = FileStore::open(&directory, config(durability)).unwrap();
        for (name, &number) in &acknowledged {
            let found = store.load(name.0, name.1.as_bytes()).unwrap();
            match found {
                Some(entry) => {
                    let is_newer = entry.version > number || (entry.version == number && !is_removal(number));
                    assert!(is_newer, "kill {kill}: {name:?} was {number}, is {}", entry.version);
                    assert_eq!(entry.value, value(entry.version));
                }
                // Removed by this write, or by a later one without an acknowledgement.
                None => assert!(
                    is_removal(number)
                        || unheard
                            .iter()
                            .any(|&later| later > number && key(later) == *name && is_removal(later)),
                    "kill {kill}: {name:?} of {number} is gone"
                ),
            }
        }
        drop(store);
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn a_process_killed_at_any_moment_has_lost_nothing_acknowledged() {
    survives(Durability::Process, "process");
}

#[test]
fn a_process_killed_at_any_moment_has_lost_nothing_synced() {
    survives(Durability::Disk, "disk");
}
