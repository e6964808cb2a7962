use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use consort_group::Time;
use consort_memory::ProcessMemory;
use foldhash::fast::FixedState;

use super::field_index::IndexedFields;
use super::key_hash::KeyHash;
use super::statistics::ContainerStatistics;
use super::table::Table;
use crate::Segment;

const NEVER: u64 = u64::MAX;

pub(super) struct Shards {
    shards: Box<[Shard]>,
    hash: FixedState,
    statistics: ContainerStatistics,
    is_backed: bool,
    memory: Option<ProcessMemory>,
    /// Those of the segments' indexes, or of the ones that they are about to get.
    pub(super) fields: RwLock<Option<Arc<dyn IndexedFields>>>,
}

struct Shard {
    table: Mutex<Table>,
    next_expiry: AtomicU64,
}

impl Shards {
    pub(super) fn new(count: u16, hash_seed: u64, is_backed: bool, table: impl Fn() -> Table) -> Self {
        let shard = || Shard { table: Mutex::new(table()), next_expiry: AtomicU64::new(NEVER) };
        Self {
            shards: (0..count).map(|_| shard()).collect(),
            hash: FixedState::with_seed(hash_seed),
            statistics: ContainerStatistics::default(),
            is_backed,
            memory: None,
            fields: RwLock::default(),
        }
    }

    pub(super) fn count(&self) -> usize {
        self.shards.len()
    }

    pub(super) fn statistics(&self) -> &ContainerStatistics {
        &self.statistics
    }

    pub(super) fn is_backed(&self) -> bool {
        self.is_backed
    }

    pub(super) fn memory(&self) -> Option<&ProcessMemory> {
        self.memory.as_ref()
    }

    pub(super) fn set_memory(&mut self, memory: ProcessMemory) {
        self.memory = Some(memory);
    }

    #[inline]
    pub(super) fn hash_of(&self, key: &[u8]) -> KeyHash {
        use std::hash::{BuildHasher, Hasher};
        let mut hasher = self.hash.build_hasher();
        hasher.write(key);
        KeyHash((hasher.finish() >> 32) as u32)
    }

    #[inline]
    pub(super) fn lock(&self, segment: Segment) -> MutexGuard<'_, Table> {
        // A panic under the lock comes from a closure of the reader, which cannot leave the table half changed.
        self.shards[usize::from(segment.0)].table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn write<R>(&self, segment: Segment, change: impl FnOnce(&mut Table) -> R) -> R {
        self.update(segment, |table| {
            table.assert_present(segment);
            change(table)
        })
    }

    pub(super) fn update<R>(&self, segment: Segment, change: impl FnOnce(&mut Table) -> R) -> R {
        let mut table = self.lock(segment);
        let before = table.size();
        let result = change(&mut table);
        let after = table.size();
        self.statistics.note_change(before, after, self.is_backed);
        if let Some(memory) = &self.memory {
            memory.count_entries(before.bytes(), after.bytes());
        }
        let next_expiry = table.next_expiry().map_or(NEVER, |next| next.0);
        self.shards[usize::from(segment.0)].next_expiry.store(next_expiry, Ordering::Relaxed);
        result
    }

    pub(super) fn next_expiry(&self, segment: Segment) -> Option<Time> {
        deadline(&self.shards[usize::from(segment.0)])
    }

    pub(super) fn next_expiries(&self) -> impl Iterator<Item = (Segment, Time)> {
        // In this order, because no segment is counted beyond the maximum number of segments.
        let deadlines = self.shards.iter().map(deadline).zip((0..).map(Segment));
        deadlines.filter_map(|(next, segment)| Some((segment, next?)))
    }
}

fn deadline(shard: &Shard) -> Option<Time> {
    let next = shard.next_expiry.load(Ordering::Relaxed);
    (next != NEVER).then_some(Time(next))
}
