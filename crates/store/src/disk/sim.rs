//! A deterministic disk in memory with injected faults.
//!
//! A kill keeps the current state (page cache). A power loss keeps the durable state and a random part of the
//! rest: sectors of writes, and changes of names.

use std::any::Any;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Disk, DiskFile};

const SECTOR: usize = 512;

/// The end of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// Only the process ends.
    Kill,
    /// The machine loses power.
    PowerLoss,
}

/// A disk in memory, for tests. Clones share the disk.
#[derive(Clone, Debug)]
pub struct SimDisk(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    random: u64,
    boot: u128,
    /// Handles of earlier processes are invalid.
    process: u64,
    is_locked: bool,
    is_crashed: bool,
    steps: u64,
    crash_at: Option<u64>,
    sync_fails_at: Option<u64>,
    capacity: Option<u64>,
    names: BTreeMap<String, u64>,
    safe_names: BTreeMap<String, u64>,
    name_changes: Vec<NameChange>,
    files: BTreeMap<u64, Contents>,
}

#[derive(Debug, Default)]
struct Contents {
    is: Vec<u8>,
    safe: Vec<u8>,
    changes: Vec<ContentChange>,
}

#[derive(Debug)]
enum ContentChange {
    Write(usize, Vec<u8>),
    Truncate(usize),
}

#[derive(Debug)]
enum NameChange {
    Create(String, u64),
    Rename(String, String, u64),
    Remove(String),
}

impl SimDisk {
    /// Creates an empty disk with faults from `seed`.
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(State {
            random: seed,
            boot: 1,
            process: 1,
            is_locked: false,
            is_crashed: false,
            steps: 0,
            crash_at: None,
            sync_fails_at: None,
            capacity: None,
            names: BTreeMap::new(),
            safe_names: BTreeMap::new(),
            name_changes: Vec::new(),
            files: BTreeMap::new(),
        })))
    }

    /// Stops the process at its `steps`-th change: a write is torn, any other change is skipped. Later
    /// operations fail until [`restart`](Self::restart).
    pub fn crash_after(&self, steps: u64) {
        let mut state = self.state();
        state.crash_at = Some(state.steps + steps);
    }

    /// Fails the first sync from the `steps`-th change on, and loses its writes.
    pub fn fail_sync_after(&self, steps: u64) {
        let mut state = self.state();
        state.sync_fails_at = Some(state.steps + steps);
    }

    /// Sets the capacity in bytes; `None` for unlimited.
    pub fn set_capacity(&self, capacity: Option<u64>) {
        self.state().capacity = capacity;
    }

    /// Returns the changes so far.
    pub fn steps(&self) -> u64 {
        self.state().steps
    }

    /// Whether the process was stopped.
    pub fn is_crashed(&self) -> bool {
        self.state().is_crashed
    }

    /// Starts the next process after a crash.
    pub fn restart(&self, crash: Crash) {
        let mut state = self.state();
        if crash == Crash::PowerLoss {
            state.lose_power();
        }
        state.process += 1;
        state.is_locked = false;
        state.is_crashed = false;
        state.crash_at = None;
        state.sync_fails_at = None;
    }

    /// Flips a bit. Returns false if the byte does not exist.
    pub fn flip(&self, name: &str, offset: u64, bit: u8) -> bool {
        let mut state = self.state();
        let Some(&id) = state.names.get(name) else { return false };
        let Some(contents) = state.files.get_mut(&id) else { return false };
        let mut done = false;
        for bytes in [&mut contents.is, &mut contents.safe] {
            if let Some(byte) = bytes.get_mut(offset as usize) {
                *byte ^= 1 << (bit & 7);
                done = true;
            }
        }
        done
    }

    /// Returns a file's contents.
    pub fn contents(&self, name: &str) -> Option<Vec<u8>> {
        let state = self.state();
        state.names.get(name).and_then(|id| state.files.get(id)).map(|contents| contents.is.clone())
    }

    /// Creates a durable file.
    pub fn place(&self, name: &str, bytes: &[u8]) {
        let mut state = self.state();
        let id = state.new_file();
        state.files.insert(id, Contents { is: bytes.to_vec(), safe: bytes.to_vec(), changes: Vec::new() });
        state.names.insert(name.to_owned(), id);
        state.safe_names.insert(name.to_owned(), id);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn file(&self, id: u64, process: u64) -> Arc<dyn DiskFile> {
        Arc::new(SimFile { disk: self.clone(), id, process })
    }
}

impl State {
    /// The generator is splitmix64.
    fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn new_file(&self) -> u64 {
        self.files.keys().next_back().map_or(1, |last| last + 1)
    }

    fn check(&self) -> io::Result<()> {
        if self.is_crashed { Err(io::Error::other("the process was stopped")) } else { Ok(()) }
    }

    fn step(&mut self) -> io::Result<bool> {
        self.check()?;
        self.steps += 1;
        self.is_crashed = self.crash_at.is_some_and(|at| self.steps >= at);
        Ok(self.is_crashed)
    }

    fn count_step(&mut self) -> io::Result<()> {
        if self.step()? { self.check() } else { Ok(()) }
    }

    fn used(&self) -> u64 {
        // Ignores open files without a name, which tests do not use.
        self.names.values().filter_map(|id| self.files.get(id)).map(|contents| contents.is.len() as u64).sum()
    }

    fn lose_power(&mut self) {
        self.boot += 1;
        let mut names = std::mem::take(&mut self.safe_names);
        // Sometimes all or nothing becomes durable.
        let odds = [0, 50, 90, 100][(self.random() % 4) as usize];
        for change in std::mem::take(&mut self.name_changes) {
            if self.random() % 100 >= odds {
                continue;
            }
            match change {
                NameChange::Create(name, id) => drop(names.insert(name, id)),
                NameChange::Rename(from, to, id) => {
                    names.remove(&from);
                    names.insert(to, id);
                }
                NameChange::Remove(name) => drop(names.remove(&name)),
            }
        }
        self.safe_names = names.clone();
        self.names = names;
        let mut files = std::mem::take(&mut self.files);
        for contents in files.values_mut() {
            let odds = [0, 50, 90, 100][(self.random() % 4) as usize];
            let mut bytes = std::mem::take(&mut contents.safe);
            for change in std::mem::take(&mut contents.changes) {
                match change {
                    ContentChange::Truncate(len) if self.random() % 100 < odds => bytes.truncate(len),
                    ContentChange::Truncate(_) => {}
                    ContentChange::Write(offset, written) => {
                        for (from, sector) in sectors(offset, &written) {
                            if self.random() % 100 < odds {
                                write(&mut bytes, from, sector);
                            }
                        }
                    }
                }
            }
            contents.safe = bytes.clone();
            contents.is = bytes;
        }
        self.files = files;
    }
}

fn sectors(offset: usize, bytes: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let mut at = offset;
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let len = (SECTOR - at % SECTOR).min(rest.len());
        let (sector, more) = rest.split_at(len);
        let from = at;
        at += len;
        rest = more;
        (len > 0).then_some((from, sector))
    })
}

fn write(contents: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    let end = offset + bytes.len();
    if contents.len() < end {
        contents.resize(end, 0);
    }
    contents[offset..end].copy_from_slice(bytes);
}

struct Guard(SimDisk, u64);

impl Drop for Guard {
    fn drop(&mut self) {
        let mut state = self.0.state();
        if state.process == self.1 {
            state.is_locked = false;
        }
    }
}

impl Disk for SimDisk {
    fn name(&self) -> String {
        "simulated disk".to_owned()
    }

    fn lock(&self) -> io::Result<Option<Box<dyn Any + Send + Sync>>> {
        let mut state = self.state();
        state.check()?;
        if state.is_locked {
            return Ok(None);
        }
        state.is_locked = true;
        Ok(Some(Box::new(Guard(self.clone(), state.process))))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let state = self.state();
        state.check()?;
        Ok(state.names.keys().cloned().collect())
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let state = self.state();
        state.check()?;
        let id = *state.names.get(name).ok_or(io::ErrorKind::NotFound)?;
        Ok(self.file(id, state.process))
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let mut state = self.state();
        state.count_step()?;
        let id = state.new_file();
        state.files.insert(id, Contents::default());
        state.names.insert(name.to_owned(), id);
        state.name_changes.push(NameChange::Create(name.to_owned(), id));
        Ok(self.file(id, state.process))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.state();
        state.count_step()?;
        let id = state.names.remove(from).ok_or(io::ErrorKind::NotFound)?;
        state.names.insert(to.to_owned(), id);
        state.name_changes.push(NameChange::Rename(from.to_owned(), to.to_owned(), id));
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.state();
        state.count_step()?;
        state.names.remove(name).ok_or(io::ErrorKind::NotFound)?;
        state.name_changes.push(NameChange::Remove(name.to_owned()));
        Ok(())
    }

    fn sync_names(&self) -> io::Result<()> {
        let mut state = self.state();
        state.count_step()?;
        state.safe_names = state.names.clone();
        state.name_changes.clear();
        Ok(())
    }

    fn boot(&self) -> Option<u128> {
        Some(self.state().boot)
    }
}

#[derive(Debug)]
struct SimFile {
    disk: SimDisk,
    id: u64,
    process: u64,
}

impl SimFile {
    fn contents<T>(&self, with: impl FnOnce(&mut State, u64) -> io::Result<T>) -> io::Result<T> {
        let mut state = self.disk.state();
        if state.process != self.process || !state.files.contains_key(&self.id) {
            return Err(io::Error::other("the file was opened by an earlier process"));
        }
        with(&mut state, self.id)
    }
}

impl DiskFile for SimFile {
    fn len(&self) -> io::Result<u64> {
        self.contents(|state, id| Ok(state.files[&id].is.len() as u64))
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        self.contents(|state, id| {
            let from = state.files[&id].is.get(offset as usize..).unwrap_or_default();
            let count = from.len().min(bytes.len());
            bytes[..count].copy_from_slice(&from[..count]);
            Ok(count)
        })
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.contents(|state, id| {
            let stops = state.step()?;
            let mut taken = bytes.len();
            if stops {
                taken = (state.random() % (bytes.len() as u64 + 1)) as usize;
            }
            let end = offset + bytes.len() as u64;
            let growth = end.saturating_sub(state.files[&id].is.len() as u64);
            let room = state.capacity.map_or(u64::MAX, |capacity| capacity.saturating_sub(state.used()));
            let is_full = growth > room;
            if is_full {
                taken = taken.min(bytes.len().saturating_sub((growth - room) as usize));
            }
            let written = &bytes[..taken];
            if let Some(contents) = state.files.get_mut(&id) {
                write(&mut contents.is, offset as usize, written);
                contents.changes.push(ContentChange::Write(offset as usize, written.to_vec()));
            }
            state.check()?;
            if is_full { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
        })
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        self.contents(|state, id| {
            state.count_step()?;
            if let Some(contents) = state.files.get_mut(&id) {
                contents.is.truncate(len as usize);
                contents.changes.push(ContentChange::Truncate(len as usize));
            }
            Ok(())
        })
    }

    fn sync(&self) -> io::Result<()> {
        self.contents(|state, id| {
            state.count_step()?;
            let fails = state.sync_fails_at.is_some_and(|at| state.steps >= at);
            if fails {
                state.sync_fails_at = None;
            }
            let Some(contents) = state.files.get_mut(&id) else { return Ok(()) };
            contents.changes.clear();
            if fails {
                return Err(io::Error::other("injected fault"));
            }
            contents.safe = contents.is.clone();
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_bytes_survive_a_kill_and_synced_bytes_a_power_failure() {
        for seed in 0..50 {
            let disk = SimDisk::new(seed);
            let file = disk.create("a").unwrap();
            disk.sync_names().unwrap();
            file.write_at(b"safe", 0).unwrap();
            file.sync().unwrap();
            file.write_at(b"lost", 4).unwrap();
            disk.restart(Crash::Kill);
            assert_eq!(disk.contents("a").unwrap(), b"safelost");
            disk.restart(Crash::PowerLoss);
            assert!(disk.contents("a").unwrap().starts_with(b"safe"));
        }
    }

    #[test]
    fn a_power_failure_loses_unsynced_bytes_in_some_runs_only() {
        let kept = |seed| {
            let disk = SimDisk::new(seed);
            disk.create("a").unwrap().write_at(&[7; 4 * SECTOR], 0).unwrap();
            disk.restart(Crash::PowerLoss);
            disk.contents("a")
        };
        let runs: Vec<_> = (0..200).map(kept).collect();
        assert!(runs.iter().any(Option::is_none), "the name is lost");
        assert!(runs.iter().flatten().any(Vec::is_empty), "the contents are lost");
        assert!(runs.iter().flatten().any(|bytes| bytes.len() == 4 * SECTOR && bytes.contains(&0)), "a hole");
        assert_eq!(kept(3), kept(3), "the seed decides");
    }

    #[test]
    fn a_full_disk_writes_the_part_that_fits() {
        let disk = SimDisk::new(1);
        disk.set_capacity(Some(10));
        let file = disk.create("a").unwrap();
        file.write_at(b"12345678", 0).unwrap();
        assert_eq!(file.write_at(b"9012", 8).unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(disk.contents("a").unwrap(), b"1234567890");
        file.write_at(b"abc", 0).unwrap();
    }

    #[test]
    fn a_killed_process_writes_no_more() {
        let disk = SimDisk::new(1);
        let file = disk.create("a").unwrap();
        disk.crash_after(1);
        file.write_at(&[1; 100], 0).unwrap_err();
        assert!(disk.is_crashed() && disk.list().is_err());
        disk.restart(Crash::Kill);
        file.write_at(b"x", 0).unwrap_err();
        assert!(disk.contents("a").unwrap().len() <= 100);
    }
}
