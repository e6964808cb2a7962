//! A part of an iteration for a caller that must first write its extent, and writes the entries directly into
//! a frame.

use consort_group::Time;

use super::cursor::Budget;
use super::prefetch::fetch;
use super::table::{PrefetchScope, Table, Walk};
use super::{ChunkLimits, Container, Cursor, SegmentGone, Visited};
use crate::Segment;

/// Used under the lock: the caller must not call the container.
pub(crate) struct SizedChunk<'t> {
    table: &'t Table,
    from: Cursor,
    limits: ChunkLimits,
    now: Time,
    entries: usize,
    bytes: usize,
    has_passive: bool,
    next: Option<Cursor>,
}

impl SizedChunk<'_> {
    pub(crate) fn count(&self) -> usize {
        self.entries
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn has_passive(&self) -> bool {
        self.has_passive
    }

    /// None at the end.
    pub(crate) fn next(&self) -> Option<Cursor> {
        self.next
    }

    pub(crate) fn each(&self, mut give: impl FnMut(Visited<'_>)) {
        let (mut cursor, mut budget) = (self.from, Budget::new(self.limits));
        self.table.walk(&mut cursor, &mut budget, self.now, PrefetchScope::Slots, &mut give);
    }
}

impl Container {
    /// Continues an iteration as [`Container::chunk`] does, and calls `using` once under one lock. Returns
    /// `None` without the call if the iteration must release the lock before the part ends.
    ///
    /// # Errors
    ///
    /// As for [`Container::chunk`].
    pub(crate) fn part<R>(
        &self,
        segment: Segment,
        from: Cursor,
        limits: ChunkLimits,
        now: Time,
        using: impl FnOnce(SizedChunk<'_>) -> R,
    ) -> Result<Option<R>, SegmentGone> {
        let table = &*self.shards.lock(segment);
        let (mut cursor, mut budget) = (from, Budget::new(limits));
        let (mut entries, mut bytes, mut has_passive) = (0, 0, false);
        let walked =
            table.walk(&mut cursor, &mut budget, now, PrefetchScope::Slots, &mut |visited: Visited<'_>| {
                // All at once, because copies in between would compete with their own memory reads.
                fetch(visited.first_bytes());
                entries += 1;
                bytes += visited.data_len();
                has_passive |= visited.is_passive();
            });
        let next = match walked {
            Walk::Spent => Some(cursor),
            Walk::End => None,
            Walk::More => return Ok(None),
            Walk::Gone => return Err(SegmentGone(segment)),
        };
        Ok(Some(using(SizedChunk { table, from, limits, now, entries, bytes, has_passive, next })))
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use consort_group::Rng;

    use super::*;
    use crate::container::{Chunk, ContainerSettings};
    use crate::{Entry, Lifetime, Version};

    const SEGMENT: Segment = Segment(0);

    fn container(entries: u64, rng: &mut Rng) -> Container {
        let settings = ContainerSettings { segment_count: 1, bound: None, is_backed: false, is_shared: true };
        let container = Container::new(&settings, 1);
        container.own(SEGMENT);
        for n in 0..entries {
            let value = Bytes::from(vec![n as u8; rng.below(6_000) as usize]);
            let lifespan = rng.chance(0.2).then(|| std::time::Duration::from_secs(rng.below(3)));
            let entry = Entry::new(value, Version::new(1, n + 1), Time::ZERO)
                .with_lifetime(Lifetime { lifespan, max_idle: None });
            container.put(SEGMENT, &n.to_be_bytes(), entry, Time::ZERO).unwrap();
        }
        container
    }

    #[test]
    fn parts_equal_chunks_and_have_the_announced_size() {
        let mut rng = Rng::new(3);
        let container = container(500, &mut rng);
        let now = Time::ZERO + std::time::Duration::from_secs(1);
        let mut at = Some(Cursor::START);
        let mut parts = 0;
        while let Some(from) = at {
            let limits =
                ChunkLimits { entries_max: rng.below(40) as usize, bytes_max: rng.below(60_000) as usize };
            let Chunk { entries, next } = container.chunk(SEGMENT, from, limits, now).unwrap();
            let mut given = Vec::new();
            let said = container.part(SEGMENT, from, limits, now, |part| {
                part.each(|visited| given.push((Bytes::copy_from_slice(visited.key()), visited.entry())));
                (part.count(), part.bytes(), part.next())
            });
            let bytes = entries.iter().map(|(key, entry)| key.len() + entry.value.len()).sum();
            assert_eq!(said, Ok(Some((entries.len(), bytes, next))));
            assert_eq!(given, entries);
            (at, parts) = (next, parts + 1);
        }
        assert!(parts > 10, "{parts}");
    }

    #[test]
    fn a_part_that_would_keep_the_lock_is_none() {
        let container = container(2_000, &mut Rng::new(4));
        let all = ChunkLimits { entries_max: usize::MAX, bytes_max: usize::MAX };
        let taken = container.part(SEGMENT, Cursor::START, all, Time::ZERO, |_| unreachable!("too long"));
        assert_eq!(taken, Ok(None));
    }

    #[test]
    fn a_segment_that_is_not_here_has_none() {
        let container = container(1, &mut Rng::new(5));
        container.drop_segment(SEGMENT);
        let one = ChunkLimits { entries_max: 1, bytes_max: 1 };
        let taken = container.part(SEGMENT, Cursor::START, one, Time::ZERO, |_| unreachable!("gone"));
        assert_eq!(taken, Err(SegmentGone(SEGMENT)));
    }
}
