use std::fmt;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use thiserror::Error;

use crate::Budget;

/// The margin between the high-water mark and the limit is one part in this many.
const MARGIN_PART: u64 = 4;

/// The largest margin: 2 GiB hold all buffers of a member.
const MARGIN_MAX: u64 = 2 << 30;

/// Sixteenths of the entries' bytes at the begin of a shortage: below, new entries reuse the memory of removed
/// ones, also later, because a measurement does not reveal how much of that memory the allocator still has.
const REUSE_BEGINS: u64 = 14;

/// The end of reuse, in sixteenths.
const REUSE_ENDS: u64 = 15;

/// A limit of a process's memory, and its source.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemoryLimit {
    /// The most bytes that the process may use.
    pub bytes: u64,
    /// An option, or the path of a control group.
    pub of: Arc<str>,
}

/// The process has too little memory for a write. Nothing was written.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{used} bytes are in use of the {limit} bytes that {of} allows")]
pub struct Shortage {
    /// The bytes in use.
    pub used: u64,
    /// The limit in bytes.
    pub limit: u64,
    /// The source of the limit.
    pub of: Arc<str>,
}

/// The figures of a process's memory at one moment, for metrics and health.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemoryUsage {
    /// The nearest limit.
    pub limit: MemoryLimit,
    /// The use above which writes are refused.
    pub high_water_mark: u64,
    /// The bytes in use, as that limit counts them.
    pub used: u64,
    /// The part that entries use.
    pub entries: u64,
    /// Writes that need more memory are refused now.
    pub is_short: bool,
    /// The number of shortages.
    pub shortages: u64,
    /// The number of refused writes.
    pub refused: u64,
}

/// The memory of a process: its limits, its use, and whether writes may add entries. Clones are handles to the
/// same process.
///
/// The edge measures the process regularly ([`ProcessMemory::note_used`]); containers count the bytes of
/// entries in between. Above the high-water mark, writes that need more memory are refused, until the use falls
/// below the low-water mark, or new entries fit into the memory that the allocator kept from removed ones.
#[derive(Clone)]
pub struct ProcessMemory(Arc<Inner>);

struct Inner {
    limits: Vec<Marks>,
    nearest: AtomicUsize,
    used: AtomicU64,
    /// The bytes now, and at the last measurement.
    entries: AtomicU64,
    entries_then: AtomicU64,
    state: AtomicU8,
    /// The bytes at the begin of the last shortage.
    entries_full: AtomicU64,
    shortages: AtomicU64,
    refused: AtomicU64,
    reserved: AtomicU64,
    changing: Mutex<()>,
    buffers: Budget,
}

struct Marks {
    limit: MemoryLimit,
    low: u64,
    high: u64,
    /// Above this, transfers that can wait are delayed, too.
    critical: u64,
}

const AMPLE: u8 = 0;
/// Writes that need more memory are refused.
const SHORT: u8 = 1;
/// Writes have to fit into the memory of removed entries.
const REUSING: u8 = 2;

impl Marks {
    fn new(limit: MemoryLimit) -> Self {
        let margin = (limit.bytes / MARGIN_PART).min(MARGIN_MAX);
        let high = limit.bytes - margin;
        Self { low: high - margin / 8, high, critical: high + margin / 2, limit }
    }
}

impl ProcessMemory {
    /// Creates the memory of a process with these limits.
    ///
    /// # Panics
    ///
    /// If there is no limit.
    pub fn new(limits: Vec<MemoryLimit>) -> Self {
        assert!(!limits.is_empty(), "a process needs at least one limit");
        let limits: Vec<Marks> = limits.into_iter().map(Marks::new).collect();
        let margin = limits.iter().map(|marks| marks.limit.bytes - marks.high).min().unwrap_or_default();
        Self(Arc::new(Inner {
            limits,
            nearest: AtomicUsize::new(0),
            used: AtomicU64::new(0),
            entries: AtomicU64::new(0),
            entries_then: AtomicU64::new(0),
            state: AtomicU8::new(AMPLE),
            entries_full: AtomicU64::new(0),
            shortages: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            reserved: AtomicU64::new(0),
            changing: Mutex::new(()),
            buffers: Budget::new("buffers of the process", margin / 4 * 3),
        }))
    }

    /// The budget of all buffers of the process: three quarters of the margin, so that entries and buffers
    /// together stay below the limit. Budgets of connections are its children.
    pub fn buffers(&self) -> &Budget {
        &self.0.buffers
    }

    /// Reports a measurement: the use as each limit counts it, in the order of the limits.
    pub fn note_used(&self, used: &[u64]) {
        let inner = &*self.0;
        let used: Vec<u64> = used.iter().map(|used| used.saturating_sub(self.unused_reserve())).collect();
        let room = |nth: usize| inner.limits[nth].high as i128 - i128::from(used[nth]);
        let nearest = (0..inner.limits.len().min(used.len())).min_by_key(|&nth| room(nth));
        let Some(nearest) = nearest else { return };
        let changing = self.lock();
        inner.nearest.store(nearest, Ordering::Relaxed);
        inner.used.store(used[nearest], Ordering::Relaxed);
        inner.entries_then.store(inner.entries.load(Ordering::Relaxed), Ordering::Relaxed);
        drop(changing);
        self.update_state();
    }

    /// Reports memory that the process has allocated in advance and keeps. Its unused part counts as free.
    pub fn note_reserved(&self, bytes: u64) {
        self.0.reserved.store(bytes, Ordering::Relaxed);
    }

    /// Entries use a quarter more than their counted bytes, with the allocator's overhead.
    fn unused_reserve(&self) -> u64 {
        self.0.reserved.load(Ordering::Relaxed).saturating_sub(self.entries() / 4 * 5)
    }

    /// Counts a change of the bytes of entries.
    #[inline]
    pub fn count_entries(&self, before: u64, after: u64) {
        if before != after {
            self.0.entries.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
        }
    }

    /// Checks whether a write may add this many bytes. A write that adds none is refused only if memory is critical.
    pub fn admit(&self, growth: u64) -> Result<(), Shortage> {
        if self.is_admitted(growth) {
            return Ok(());
        }
        self.update_state();
        // Entries may have been removed since the shortage was noticed.
        if self.is_admitted(growth) {
            return Ok(());
        }
        self.0.refused.fetch_add(1, Ordering::Relaxed);
        Err(self.shortage())
    }

    fn is_admitted(&self, growth: u64) -> bool {
        let (marks, sum) = (self.marks(), self.used_now() + growth);
        match self.0.state.load(Ordering::Relaxed) {
            _ if growth == 0 => sum <= marks.critical,
            AMPLE if sum <= marks.high => true,
            AMPLE | REUSING => sum <= marks.critical && self.entries() + growth <= self.reuse_end(),
            _ => false,
        }
    }

    /// Returns whether this many bytes are certainly admitted. Counts no refusal.
    #[inline]
    pub fn has_room(&self, growth: u64) -> bool {
        self.0.state.load(Ordering::Relaxed) == AMPLE && self.used_now() + growth <= self.marks().high
    }

    /// Returns whether writes that need more memory are refused now.
    pub fn is_short(&self) -> bool {
        match self.0.state.load(Ordering::Relaxed) {
            SHORT => true,
            AMPLE if self.used_now() <= self.marks().high => false,
            _ => {
                self.update_state();
                self.0.state.load(Ordering::Relaxed) == SHORT
            }
        }
    }

    /// Returns whether transfers to this member have to wait, too.
    pub fn is_critical(&self) -> bool {
        self.used_now() > self.marks().critical
    }

    /// The nearest limit and its use.
    pub fn shortage(&self) -> Shortage {
        let MemoryLimit { bytes, of } = self.marks().limit.clone();
        Shortage { used: self.used_now(), limit: bytes, of }
    }

    /// The figures for metrics and health.
    pub fn usage(&self) -> MemoryUsage {
        MemoryUsage {
            limit: self.marks().limit.clone(),
            high_water_mark: self.marks().high,
            used: self.used_now(),
            entries: self.entries(),
            is_short: self.is_short(),
            shortages: self.0.shortages.load(Ordering::Relaxed),
            refused: self.0.refused.load(Ordering::Relaxed),
        }
    }

    fn marks(&self) -> &Marks {
        &self.0.limits[self.0.nearest.load(Ordering::Relaxed)]
    }

    fn entries(&self) -> u64 {
        self.0.entries.load(Ordering::Relaxed)
    }

    /// The last measurement plus bytes that entries added since. The allocator may still hold bytes that they freed.
    fn used_now(&self) -> u64 {
        let grown = self.entries().saturating_sub(self.0.entries_then.load(Ordering::Relaxed));
        self.0.used.load(Ordering::Relaxed) + grown
    }

    fn reuse_end(&self) -> u64 {
        self.0.entries_full.load(Ordering::Relaxed) / 16 * REUSE_ENDS
    }

    fn update_state(&self) {
        let _changing = self.lock();
        let (marks, used, entries) = (self.marks(), self.used_now(), self.entries());
        let full = self.0.entries_full.load(Ordering::Relaxed);
        let state = match self.0.state.load(Ordering::Relaxed) {
            AMPLE if used <= marks.low => AMPLE,
            // The state changes shortly before the mark, because a further write would be refused, too.
            AMPLE if used <= marks.high && marks.high - used > (marks.high - marks.low) / 4 => AMPLE,
            AMPLE if entries < full / 16 * REUSE_BEGINS && used <= marks.critical => REUSING,
            AMPLE => {
                self.0.entries_full.store(entries, Ordering::Relaxed);
                self.0.shortages.fetch_add(1, Ordering::Relaxed);
                SHORT
            }
            _ if used < marks.low => AMPLE,
            SHORT if entries < full / 16 * REUSE_BEGINS && used <= marks.critical => REUSING,
            REUSING if entries < full / 64 * (4 * REUSE_ENDS - 1) && used <= marks.critical => REUSING,
            _ => SHORT,
        };
        self.0.state.store(state, Ordering::Relaxed);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, ()> {
        self.0.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for ProcessMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.usage().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn limit(bytes: u64, of: &str) -> MemoryLimit {
        MemoryLimit { bytes, of: of.into() }
    }

    /// 128 MiB: low 92, high 96, critical 112.
    fn pod() -> ProcessMemory {
        ProcessMemory::new(vec![limit(128 * MIB, "the control group /pod")])
    }

    #[test]
    fn write_beyond_the_high_water_mark_is_refused_with_limit_and_use() {
        let memory = pod();
        memory.note_used(&[90 * MIB]);
        assert!(memory.admit(6 * MIB).is_ok() && !memory.is_short());
        let error = memory.admit(7 * MIB).unwrap_err();
        assert_eq!(
            error.to_string(),
            "94371840 bytes are in use of the 134217728 bytes that the control group /pod allows"
        );
        assert!(!memory.is_short(), "a smaller write fits");
        memory.count_entries(0, 7 * MIB);
        assert!(memory.is_short(), "entries that were added since the measurement count");
        assert!(memory.admit(1).is_err());
        assert_eq!((memory.usage().refused, memory.usage().shortages), (2, 1));
    }

    #[test]
    fn shortage_ends_below_the_low_water_mark_only() {
        let memory = pod();
        memory.note_used(&[97 * MIB]);
        assert!(memory.is_short());
        memory.note_used(&[93 * MIB]);
        assert!(memory.is_short());
        memory.note_used(&[91 * MIB]);
        assert!(!memory.is_short() && memory.admit(MIB).is_ok());
    }

    #[test]
    fn write_that_adds_nothing_is_admitted_until_memory_is_critical() {
        let memory = pod();
        memory.note_used(&[112 * MIB]);
        assert!(memory.admit(0).is_ok() && memory.admit(1).is_err() && !memory.is_critical());
        memory.note_used(&[113 * MIB]);
        assert!(memory.admit(0).is_err() && memory.is_critical());
    }

    #[test]
    fn entries_that_were_removed_are_replaced_though_the_allocator_keeps_their_memory() {
        let memory = pod();
        memory.count_entries(0, 64 * MIB);
        memory.note_used(&[97 * MIB]);
        memory.count_entries(64 * MIB, 57 * MIB);
        assert!(memory.admit(1).is_err(), "too little is removed yet");
        memory.count_entries(57 * MIB, 55 * MIB);
        assert!(memory.admit(1).is_ok() && !memory.is_short());
        memory.count_entries(55 * MIB, 60 * MIB);
        memory.note_used(&[97 * MIB]);
        assert!(memory.admit(1).is_err() && memory.is_short());
        memory.count_entries(60 * MIB, 40 * MIB);
        memory.note_used(&[113 * MIB]);
        assert!(memory.admit(1).is_err(), "new entries did not fit into what the old ones left");
    }

    #[test]
    fn memory_of_removed_entries_is_used_again_also_after_a_measurement_below_the_mark() {
        let memory = pod();
        memory.count_entries(0, 64 * MIB);
        memory.note_used(&[97 * MIB]);
        memory.count_entries(64 * MIB, 40 * MIB);
        memory.note_used(&[91 * MIB]);
        assert!(!memory.is_short());
        assert!(memory.admit(15 * MIB).is_ok(), "the allocator has this and more");
        memory.count_entries(40 * MIB, 55 * MIB);
        assert!(memory.admit(MIB).is_ok() && !memory.is_short());
        memory.note_used(&[97 * MIB]);
        assert!(memory.admit(MIB).is_ok() && !memory.is_short());
        assert!(memory.admit(6 * MIB).is_err(), "as many entries as when the shortage began");
        assert_eq!(memory.usage().shortages, 1);
        memory.count_entries(55 * MIB, 60 * MIB);
        assert!(memory.is_short());
    }

    #[test]
    fn reserve_that_no_entry_takes_yet_is_free() {
        let memory = pod();
        memory.note_reserved(80 * MIB);
        memory.note_used(&[100 * MIB]);
        assert!(memory.admit(70 * MIB).is_ok());
        memory.count_entries(0, 64 * MIB);
        memory.note_used(&[100 * MIB]);
        assert!(memory.admit(1).is_err());
    }

    #[test]
    fn nearest_of_several_limits_counts() {
        let memory =
            ProcessMemory::new(vec![limit(1_000, "--memory"), limit(2_000, "the control group /pod")]);
        memory.note_used(&[300, 1_600]);
        assert_eq!(
            memory.admit(1).unwrap_err(),
            Shortage { used: 1_600, limit: 2_000, of: "the control group /pod".into() }
        );
        memory.note_used(&[800, 900]);
        assert_eq!(memory.admit(1).unwrap_err(), Shortage { used: 800, limit: 1_000, of: "--memory".into() });
        memory.note_used(&[300, 900]);
        assert!(memory.admit(1).is_ok());
    }
}
