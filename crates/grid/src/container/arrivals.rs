//! Entries that come together, as the chunks of a transfer bring them.
//!
//! Put one after the other, each would wait for memory twice: for the line of the index where its key may be, and, as
//! the CPU writes in order, until all of its copied value has got to a cache before what was written behind that can be
//! read. So the lines of the index and the memory for the values are asked for first, then values are copied, and what holds
//! them is looked at when all are.

use bytes::Bytes;
use consort_group::Time;
use smallvec::SmallVec;

use super::ahead::fetch;
use super::item::{self, Item};
use super::table::KeyHash;
use super::{Container, Entry};
use crate::Segment;

/// So many at a time: enough to keep the CPU's requests for memory busy, few enough for a kilobyte of each to stay in its
/// nearest cache, and for readers to get the lock in between.
const AT_A_TIME: usize = 16;

/// Bytes of the smallest allocation that is fetched before something is copied to it: what is smaller lies beside others
/// of its size.
const FETCHED_MIN: usize = 257;

/// Fetches the memory that items of these entries will get: allocators give what was freed last to who asks next. With one
/// that does not, something else is fetched in vain.
fn fetch_memory(arrived: &[(KeyHash, Bytes, Entry)]) {
    let sizes =
        arrived.iter().filter_map(|(_, key, entry)| item::size_together(key.len(), entry.value.len()));
    let blocks = sizes.filter(|&size| size >= FETCHED_MIN).map(Vec::<u8>::with_capacity);
    let mut blocks: SmallVec<[Vec<u8>; AT_A_TIME]> = blocks.collect();
    blocks.iter_mut().for_each(|block| fetch(block.spare_capacity_mut()));
}

impl Container {
    /// Writes each entry unless something as new is known of its key, as [`Container::put_if_newer`] does.
    ///
    /// # Panics
    ///
    /// If the container has a bound: where an entry may have to make room, who puts it hears of that.
    pub fn put_arrivals(
        &self,
        segment: Segment,
        entries: impl IntoIterator<Item = (Bytes, Entry)>,
        now: Time,
    ) {
        assert!(self.bound.is_none(), "arrivals are put where none has to make room");
        let mut entries = entries.into_iter();
        let mut arrived: Vec<(KeyHash, Bytes, Entry)> = Vec::with_capacity(AT_A_TIME);
        let mut items: Vec<Item> = Vec::with_capacity(AT_A_TIME);
        loop {
            let some = entries.by_ref().take(AT_A_TIME);
            arrived.extend(some.map(|(key, entry)| (self.hash_of(&key), key, entry)));
            if arrived.is_empty() {
                return;
            }
            let table = self.lock(segment);
            arrived.iter().for_each(|(hash, ..)| table.fetch_cell(*hash));
            drop(table);
            fetch_memory(&arrived);
            for (_, key, entry) in &mut arrived {
                items.push(Item::new(key, std::mem::take(&mut entry.value)));
            }
            self.write(segment, |table| {
                for ((hash, key, entry), item) in arrived.drain(..).zip(items.drain(..)) {
                    if table.version_of(hash, &key) < entry.version {
                        table.put(hash, item, &entry, now);
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
    use crate::{Lifetime, Version};

    const SEGMENT: Segment = Segment(0);

    fn receiving() -> Container {
        let settings = ContainerSettings { segment_count: 1, bound: None, is_backed: false, is_shared: true };
        let container = Container::new(&settings, 1);
        container.receive(SEGMENT);
        container
    }

    #[test]
    fn arrivals_are_put_as_one_after_the_other() {
        let (together, single) = (receiving(), receiving());
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
            together.put_arrivals(SEGMENT, arrivals, now);
            for container in [&together, &single] {
                let removed = vec![7; (round % 60) as usize];
                container.remove_if_newer(SEGMENT, &removed, Version::new(1, round), now);
            }
            let limits = ChunkLimits { entries_max: usize::MAX, bytes_max: usize::MAX };
            let all = |container: &Container| {
                let entries = container.chunk(SEGMENT, Cursor::START, limits, now).unwrap().entries;
                (entries, container.len(), container.bytes(), container.next_expiry())
            };
            assert_eq!(all(&together), all(&single));
        }
        assert!(together.len() > 30 && together.next_expiry().is_some());
    }

    #[test]
    #[should_panic(expected = "make room")]
    fn a_container_with_a_bound_takes_none() {
        use crate::container::{Limit, MemoryBound, WhenFull};
        let bound = Some(MemoryBound { limit: Limit::Entries(5), when_full: WhenFull::Refuse });
        let settings = ContainerSettings { segment_count: 1, bound, is_backed: false, is_shared: false };
        Container::new(&settings, 1).put_arrivals(SEGMENT, [], Time::ZERO);
    }
}
