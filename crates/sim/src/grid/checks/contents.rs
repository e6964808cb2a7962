use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use consort_grid::{ChunkLimits, Container, Cursor, Entry, Segment, Version};
use consort_group::Time;

use super::super::history::least;

/// No value where only the store has it.
pub(super) type Contents = BTreeMap<Bytes, (Version, Option<Bytes>)>;

pub(super) fn contents(container: &Container, segment: Segment, now: Time) -> Contents {
    judged(container, segment, now, |_| true)
}

pub(super) fn judged(
    container: &Container,
    segment: Segment,
    now: Time,
    is_judged: impl Fn(Option<Duration>) -> bool,
) -> Contents {
    let limits = ChunkLimits { entries_max: usize::MAX, bytes_max: usize::MAX };
    let Ok(chunk) = container.chunk(segment, Cursor::START, limits, now) else { return Contents::new() };
    let value = |entry: &Entry| (!entry.is_passive()).then(|| entry.value.clone());
    let entries = chunk.entries.into_iter().filter(|(_, entry)| is_judged(least(entry.lifetime)));
    entries.map(|(key, entry)| (key, (entry.version, value(&entry)))).collect()
}
