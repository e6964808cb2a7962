use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::entry::{Change, Entry, Segment};
use crate::error::StoreError;
use crate::store::{Counters, Entries, Part, Stats, Store, check_segment, without_value};

/// A volatile [`Store`] in memory, for tests.
#[derive(Debug)]
pub struct MemoryStore {
    segments: Mutex<Vec<BTreeMap<Bytes, Entry>>>,
    segments_count: u16,
    note: Mutex<Bytes>,
    counters: Counters,
    closed: AtomicBool,
}

impl MemoryStore {
    /// Creates an empty store.
    pub fn new(segments: u16) -> Self {
        Self {
            segments: Mutex::new(vec![BTreeMap::new(); usize::from(segments)]),
            segments_count: segments,
            note: Mutex::default(),
            counters: Counters::default(),
            closed: AtomicBool::new(false),
        }
    }

    fn lock(&self) -> Result<MutexGuard<'_, Vec<BTreeMap<Bytes, Entry>>>, StoreError> {
        if self.closed.load(Ordering::Acquire) {
            return Err(StoreError::Closed);
        }
        Ok(self.segments.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Store for MemoryStore {
    fn segments(&self) -> u16 {
        self.segments_count
    }

    fn load(&self, segment: Segment, key: &[u8]) -> Result<Option<Entry>, StoreError> {
        check_segment(segment, self.segments_count)?;
        let found = self.lock()?[usize::from(segment)].get(key).cloned();
        Counters::add(&self.counters.entries_read, u64::from(found.is_some()));
        Ok(found)
    }

    fn store(&self, changes: &[Change]) -> Result<(), StoreError> {
        for change in changes {
            check_segment(change.segment(), self.segments_count)?;
        }
        let mut segments = self.lock()?;
        for change in changes {
            let segment = &mut segments[usize::from(change.segment())];
            match change {
                Change::Put(entry) => drop(segment.insert(entry.key.clone(), entry.clone())),
                Change::Remove { key, .. } => drop(segment.remove(key)),
            }
        }
        Counters::add(&self.counters.changes, changes.len() as u64);
        Ok(())
    }

    fn entries(&self, segment: Segment, part: Part) -> Result<Entries, StoreError> {
        check_segment(segment, self.segments_count)?;
        let entries: Vec<Entry> = self.lock()?[usize::from(segment)].values().cloned().collect();
        Counters::add(&self.counters.entries_read, entries.len() as u64);
        Ok(Box::new(entries.into_iter().map(move |entry| {
            Ok(match part {
                Part::Whole => entry,
                Part::Keys => without_value(entry),
            })
        })))
    }

    fn count(&self, segment: Segment) -> Result<u64, StoreError> {
        check_segment(segment, self.segments_count)?;
        Ok(self.lock()?[usize::from(segment)].len() as u64)
    }

    fn remove_segment(&self, segment: Segment) -> Result<(), StoreError> {
        check_segment(segment, self.segments_count)?;
        self.lock()?[usize::from(segment)].clear();
        Ok(())
    }

    fn clear(&self) -> Result<(), StoreError> {
        self.lock()?.iter_mut().for_each(BTreeMap::clear);
        Ok(())
    }

    fn purge(&self, now: u64, limit: usize, expired: &mut dyn FnMut(Entry)) -> Result<usize, StoreError> {
        let mut gone = Vec::new();
        for segment in self.lock()?.iter_mut() {
            let keys: Vec<Bytes> = segment
                .values()
                .filter(|entry| entry.times.expires_at().is_some_and(|at| at <= now))
                .take(limit - gone.len())
                .map(|entry| entry.key.clone())
                .collect();
            gone.extend(keys.iter().filter_map(|key| segment.remove(key)));
        }
        let count = gone.len();
        gone.into_iter().for_each(expired);
        Ok(count)
    }

    fn maintain(&self, _budget_bytes: u64) -> Result<bool, StoreError> {
        self.lock().map(|_| false)
    }

    fn remember(&self, note: &[u8]) -> Result<(), StoreError> {
        let _open = self.lock()?;
        *self.note.lock().unwrap_or_else(PoisonError::into_inner) = Bytes::copy_from_slice(note);
        Ok(())
    }

    fn recall(&self) -> Result<Option<Bytes>, StoreError> {
        let _open = self.lock()?;
        let note = self.note.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Ok((!note.is_empty()).then_some(note))
    }

    fn flush(&self) -> Result<(), StoreError> {
        self.lock().map(drop)
    }

    fn close(&self) -> Result<(), StoreError> {
        self.closed.store(true, Ordering::Release);
        Ok(())
    }

    fn stats(&self) -> Stats {
        let segments = self.segments.lock().unwrap_or_else(PoisonError::into_inner);
        Stats { entries: segments.iter().map(|segment| segment.len() as u64).sum(), ..self.counters.stats() }
    }
}
