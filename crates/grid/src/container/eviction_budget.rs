//! Making room in a container with a size limit.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::bound::{Full, Limit, MemoryBound, WhenFull};
use super::key_hash::KeyHash;
use super::outcome::Taken;
use super::shards::Shards;
use super::{Container, Entry, table};
use crate::Segment;

/// Additional entries that a write evicts after the limit was reduced: few enough that other threads do not
/// wait for long.
const EVICTED_AT_ONCE: usize = 4_096;

pub(super) struct Eviction {
    bound: Option<MemoryBound>,
    allowed: AtomicU64,
    /// Where the next victim is taken if the written segment has none.
    next_segment: AtomicUsize,
}

impl Eviction {
    pub(super) fn new(bound: Option<MemoryBound>) -> Self {
        let allowed = AtomicU64::new(bound.map_or(0, |bound| bound.limit.amount()));
        Self { bound, allowed, next_segment: AtomicUsize::new(0) }
    }

    #[inline]
    pub(super) fn bound(&self) -> Option<MemoryBound> {
        let bound = self.bound?;
        Some(MemoryBound { limit: bound.limit.with_amount(self.allowed.load(Ordering::Relaxed)), ..bound })
    }

    pub(super) fn set_limit(&self, limit: Limit) -> bool {
        let is_same_unit = self.bound.is_some_and(|bound| bound.limit.with_amount(limit.amount()) == limit);
        if is_same_unit {
            self.allowed.store(limit.amount(), Ordering::Relaxed);
        }
        is_same_unit
    }

    pub(super) fn evicts(&self) -> bool {
        self.bound.is_some_and(|bound| bound.when_full == WhenFull::Remove)
    }

    /// Evicts in the written segment, then in the others in turn.
    pub(super) fn make_room(
        &self,
        shards: &Shards,
        MemoryBound { limit, when_full }: MemoryBound,
        segment: Segment,
        (hash, key): (KeyHash, &[u8]),
        entry: &Entry,
    ) -> Result<Vec<Taken>, Full> {
        let table = shards.lock(segment);
        table.assert_present(segment);
        let replaced = table.cost_of(hash, key);
        drop(table);
        let cost = table::cost(key.len(), entry.value.len(), !entry.lifetime.is_forever(), self.evicts());
        // The size that cannot be evicted, the current size, and the size after the write.
        let (least, used, mut needed) = match limit {
            Limit::Entries(_) => {
                let active = shards.statistics().len() - shards.statistics().passive_len();
                (1, active, active + u64::from(replaced.is_none()))
            }
            Limit::Bytes(_) => {
                let removals = shards.statistics().removal_bytes();
                let used = shards.statistics().bounded_bytes();
                (removals + cost, used, used + cost - replaced.unwrap_or(0))
            }
        };
        let is_no_growth = when_full == WhenFull::Refuse && needed <= used;
        if needed <= limit.amount() || is_no_growth {
            return Ok(self.evict_for_process(
                shards,
                when_full,
                segment,
                (hash, key),
                cost.saturating_sub(replaced.unwrap_or(0)),
            ));
        }
        if when_full == WhenFull::Refuse || least > limit.amount() {
            let needed = if when_full == WhenFull::Refuse { needed } else { least };
            return Err(Full { limit, needed });
        }
        let mut evicted = Vec::new();
        while needed > limit.amount()
            && (evicted.len() < EVICTED_AT_ONCE || needed > used.max(limit.amount()))
        {
            let here = evict(shards, segment, Some((hash, key)));
            let Some(taken) = here.or_else(|| self.evict_elsewhere(shards, segment)) else { break };
            needed -= match limit {
                Limit::Entries(_) => 1,
                Limit::Bytes(_) => {
                    let entry = &taken.entry;
                    table::cost(taken.key.len(), entry.value.len(), !entry.lifetime.is_forever(), true)
                }
            };
            evicted.push(taken);
        }
        Ok(evicted)
    }

    /// If the process has no room for the bytes that a write adds.
    fn evict_for_process(
        &self,
        shards: &Shards,
        when_full: WhenFull,
        segment: Segment,
        (hash, key): (KeyHash, &[u8]),
        growth: u64,
    ) -> Vec<Taken> {
        let mut evicted = Vec::new();
        let has_room = shards.memory().is_none_or(|memory| memory.has_room(growth));
        if when_full == WhenFull::Refuse || has_room {
            return evicted;
        }
        let mut freed = 0;
        while freed < growth && evicted.len() < EVICTED_AT_ONCE {
            let here = evict(shards, segment, Some((hash, key)));
            let Some(taken) = here.or_else(|| self.evict_elsewhere(shards, segment)) else { break };
            let entry = &taken.entry;
            freed += table::cost(taken.key.len(), entry.value.len(), !entry.lifetime.is_forever(), true);
            evicted.push(taken);
        }
        evicted
    }

    fn evict_elsewhere(&self, shards: &Shards, written: Segment) -> Option<Taken> {
        let count = shards.count();
        let start = self.next_segment.load(Ordering::Relaxed);
        let mut others = (start..count).chain(0..start).filter(|&index| index != usize::from(written.0));
        others.find_map(|index| {
            let taken = evict(shards, Segment(index as u16), None)?;
            self.next_segment.store((index + 1) % count, Ordering::Relaxed);
            Some(taken)
        })
    }
}

fn evict(shards: &Shards, segment: Segment, kept: Option<(KeyHash, &[u8])>) -> Option<Taken> {
    let hash_of = |key: &[u8]| shards.hash_of(key);
    let stored = shards.update(segment, |table| table.evict(kept, shards.is_backed(), hash_of))?;
    shards.statistics().note_eviction();
    Some(stored.into_taken(segment))
}

impl Container {
    /// Returns the current limit.
    #[inline]
    pub fn bound(&self) -> Option<MemoryBound> {
        self.eviction.bound()
    }

    /// Changes a limit in the same unit; returns whether there is one. Under a smaller limit the next writes
    /// evict entries, some thousand each.
    pub fn set_limit(&self, limit: Limit) -> bool {
        self.eviction.set_limit(limit)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use consort_group::Time;

    use super::super::ContainerSettings;
    use super::*;
    use crate::Version;

    const SEG: Segment = Segment(0);

    fn bounded(limit: Limit, when_full: WhenFull) -> Container {
        let bound = Some(MemoryBound { limit, when_full });
        let settings = ContainerSettings { segment_count: 1, bound, is_backed: false, is_shared: false };
        let container = Container::new(&settings, 7);
        container.own(SEG);
        container
    }

    fn put(container: &Container, key: u32) -> Result<usize, Full> {
        let entry = Entry::new(Bytes::from_static(b"value"), Version::new(1, 1), Time::ZERO);
        container.put(SEG, &key.to_be_bytes(), entry, Time::ZERO).map(|put| put.evicted.len())
    }

    #[test]
    fn a_smaller_limit_is_reached_by_writes_that_evict_so_many_each() {
        let container = bounded(Limit::Entries(20_000), WhenFull::Remove);
        (0..20_000).for_each(|key| assert_eq!(put(&container, key), Ok(0)));
        assert!(container.set_limit(Limit::Entries(10_000)));
        let evicted: Vec<usize> = (20_000..20_004).map(|key| put(&container, key).unwrap()).collect();
        assert_eq!(evicted, [EVICTED_AT_ONCE, EVICTED_AT_ONCE, 10_003 - 2 * EVICTED_AT_ONCE, 1]);
        assert_eq!(
            (container.len(), container.statistics().evictions()),
            (10_000, evicted.iter().sum::<usize>() as u64)
        );
        assert!(container.set_limit(Limit::Entries(10_001)));
        assert_eq!((put(&container, 30_000), put(&container, 30_001)), (Ok(0), Ok(1)));
    }

    #[test]
    fn one_large_value_makes_all_the_room_that_it_needs() {
        let limit = Limit::Bytes(4_000_000);
        let container = bounded(limit, WhenFull::Remove);
        (0..30_000).for_each(|key| assert!(put(&container, key).is_ok()));
        let large = Entry::new(Bytes::from(vec![0; 3_900_000]), Version::new(1, 1), Time::ZERO);
        let evicted = container.put(SEG, b"large", large, Time::ZERO).unwrap().evicted.len();
        assert!(evicted > 2 * EVICTED_AT_ONCE, "{evicted}");
        assert!(container.bytes() <= limit.amount());
    }

    #[test]
    fn a_container_that_refuses_takes_nothing_new_until_it_is_below_a_smaller_limit() {
        let container = bounded(Limit::Entries(3), WhenFull::Refuse);
        (0..3).for_each(|key| assert_eq!(put(&container, key), Ok(0)));
        assert!(container.set_limit(Limit::Entries(1)));
        let full = Full { limit: Limit::Entries(1), needed: 4 };
        assert_eq!((put(&container, 3), put(&container, 2)), (Err(full), Ok(0)));
        (0..3u32)
            .for_each(|key| drop(container.remove(SEG, &key.to_be_bytes(), Version::new(1, 2), Time::ZERO)));
        assert_eq!((put(&container, 3), put(&container, 2).is_err()), (Ok(0), true));
    }

    #[test]
    fn only_a_limit_of_the_same_unit_can_be_set() {
        let container = bounded(Limit::Entries(3), WhenFull::Remove);
        assert!(!container.set_limit(Limit::Bytes(1_000)));
        assert_eq!(container.bound().map(|bound| bound.limit), Some(Limit::Entries(3)));
        let settings =
            ContainerSettings { segment_count: 1, bound: None, is_backed: false, is_shared: false };
        let unbounded = Container::new(&settings, 7);
        assert!(!unbounded.set_limit(Limit::Entries(1)) && unbounded.bound().is_none());
    }
}
