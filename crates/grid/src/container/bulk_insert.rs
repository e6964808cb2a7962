//! Bulk insertion of entries, as in the chunks of a state transfer.
//!
//! Put one after the other, each entry would wait for memory twice: for the index line that may have its key,
//! and for its copied value, because the CPU writes in order, so later writes can be read only once the copy
//! is in a cache. So the index lines and the memory for the values are prefetched first; items are read once
//! all values are copied.

use bytes::Bytes;
use consort_group::Time;
use smallvec::SmallVec;

use super::item::{self, Item};
use super::key_hash::KeyHash;
use super::prefetch::fetch;
use super::{Container, Entry};
use crate::{Lifetime, Segment, Version};

/// Enough entries to keep the CPU's memory requests busy, few enough for 1 KiB of each to stay in the nearest
/// cache, and for readers to get the lock in between.
const AT_A_TIME: usize = 16;

/// The smallest allocation in bytes that is prefetched: smaller ones are next to others of their size.
const FETCHED_MIN: usize = 257;

/// At most 1.2 MB of index are reserved at once. For more entries the index grows when they arrive.
const EXPECTED_MAX: usize = 1 << 16;

/// Borrowed from the received bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NewEntry<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) value: &'a [u8],
    pub(crate) version: Version,
    /// Time of the first write.
    pub(crate) created: Time,
    pub(crate) last_used: Time,
    pub(crate) lifetime: Lifetime,
}

impl NewEntry<'_> {
    fn entry(&self) -> Entry {
        let &Self { version, created, last_used, lifetime, .. } = self;
        Entry { value: Bytes::new(), version, created, last_used, lifetime }
    }
}

/// Most allocators return the block that was freed last, so this prefetches the memory that items of these
/// entries will get. With other allocators the prefetch is useless.
fn fetch_memory(arrived: &[(KeyHash, NewEntry<'_>)]) {
    let sizes = arrived.iter().filter_map(|(_, one)| item::size_together(one.key.len(), one.value.len()));
    let blocks = sizes.filter(|&size| size >= FETCHED_MIN).map(Vec::<u8>::with_capacity);
    let mut blocks: SmallVec<[Vec<u8>; AT_A_TIME]> = blocks.collect();
    blocks.iter_mut().for_each(|block| fetch(block.spare_capacity_mut()));
}

impl Container {
    /// Each step of growth moves the whole index. Reserves at most [`EXPECTED_MAX`] entries, and with a bound
    /// none, because most entries may be evicted again.
    pub(crate) fn reserve(&self, segment: Segment, entries: usize) {
        if self.bound().is_none() {
            self.shards.lock(segment).reserve(entries.min(EXPECTED_MAX));
        }
    }

    /// Writes each entry as [`Container::put_if_newer`] does.
    ///
    /// # Panics
    ///
    /// If the container has a bound, because a caller that puts an entry then must process the evicted
    /// entries.
    pub(crate) fn insert_batch<'a>(
        &self,
        segment: Segment,
        entries: impl IntoIterator<Item = NewEntry<'a>>,
        now: Time,
    ) {
        assert!(self.bound().is_none(), "arrivals are put where none has to make room");
        let mut entries = entries.into_iter();
        let mut arrived: SmallVec<[(KeyHash, NewEntry<'_>); AT_A_TIME]> = SmallVec::new();
        let mut items: Vec<Item> = Vec::with_capacity(AT_A_TIME);
        loop {
            let some = entries.by_ref().take(AT_A_TIME);
            arrived.extend(some.map(|one| (self.shards.hash_of(one.key), one)));
            if arrived.is_empty() {
                return;
            }
            let table = self.shards.lock(segment);
            arrived.iter().for_each(|(hash, _)| table.fetch_cell(*hash));
            drop(table);
            fetch_memory(&arrived);
            items.extend(arrived.iter().map(|(_, one)| Item::copied(one.key, one.value)));
            self.shards.write(segment, |table| {
                for ((hash, one), item) in arrived.drain(..).zip(items.drain(..)) {
                    if table.version_of(hash, one.key) < one.version {
                        table.put(hash, item, &one.entry(), now);
                    }
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use consort_group::Rng;

    use super::*;
    use crate::container::{ChunkLimits, ContainerSettings, Cursor};

    const SEGMENT: Segment = Segment(0);

    fn receiving() -> Container {
        let settings = ContainerSettings { segment_count: 1, bound: None, is_backed: false, is_shared: true };
        let container = Container::new(&settings, 1);
        container.receive(SEGMENT);
        container
    }

    fn arrival<'a>(key: &'a [u8], entry: &'a Entry) -> NewEntry<'a> {
        let &Entry { ref value, version, created, last_used, lifetime } = entry;
        NewEntry { key, value, version, created, last_used, lifetime }
    }

    #[test]
    fn arrivals_are_put_as_one_after_the_other() {
        let (batched, single) = (receiving(), receiving());
        let mut rng = Rng::new(1);
        for round in 0..300_u64 {
            let now = Time::ZERO + Duration::from_secs(round);
            let arrivals: Vec<(Bytes, Entry)> = (0..rng.below(3 * AT_A_TIME as u64))
                .map(|_| {
                    let key = Bytes::from(vec![7; rng.below(60) as usize]);
                    let value = Bytes::from(vec![round as u8; rng.below(9_000) as usize]);
                    let lifespan = rng.chance(0.3).then(|| Duration::from_secs(rng.below(100)));
                    let entry = Entry::new(value, Version::new(1, rng.below(1_000)), now)
                        .with_lifetime(Lifetime { lifespan, max_idle: None });
                    (key, entry)
                })
                .collect();
            for (key, entry) in &arrivals {
                single.put_if_newer(SEGMENT, key, entry.clone(), now).unwrap();
            }
            batched.insert_batch(SEGMENT, arrivals.iter().map(|(key, entry)| arrival(key, entry)), now);
            for container in [&batched, &single] {
                let removed = vec![7; (round % 60) as usize];
                container.remove_if_newer(SEGMENT, &removed, Version::new(1, round), now);
            }
            let limits = ChunkLimits { entries_max: usize::MAX, bytes_max: usize::MAX };
            let all = |container: &Container| {
                let entries = container.chunk(SEGMENT, Cursor::START, limits, now).unwrap().entries;
                (entries, container.len(), container.bytes(), container.expiry().next_deadline())
            };
            assert_eq!(all(&batched), all(&single));
        }
        assert!(batched.len() > 30 && batched.expiry().next_deadline().is_some());
    }

    #[test]
    fn segment_reserves_expected_entries_within_bounds_and_not_with_eviction() {
        use crate::container::{Limit, MemoryBound, WhenFull};
        let ready = |container: &Container, entries| {
            allocation_counter::measure(|| container.reserve(SEGMENT, entries)).bytes_current
        };
        assert!((12_000..40_000).contains(&ready(&receiving(), 1_000)));
        assert!(ready(&receiving(), usize::MAX) <= 1_200_000);
        let bound = Some(MemoryBound { limit: Limit::Entries(5), when_full: WhenFull::Remove });
        let settings = ContainerSettings { segment_count: 1, bound, is_backed: false, is_shared: false };
        assert_eq!(ready(&Container::new(&settings, 1), 1_000), 0);
    }

    #[test]
    #[should_panic(expected = "make room")]
    fn a_container_with_a_bound_takes_none() {
        use crate::container::{Limit, MemoryBound, WhenFull};
        let bound = Some(MemoryBound { limit: Limit::Entries(5), when_full: WhenFull::Refuse });
        let settings = ContainerSettings { segment_count: 1, bound, is_backed: false, is_shared: false };
        Container::new(&settings, 1).insert_batch(SEGMENT, [], Time::ZERO);
    }
}
