//! The sending side of state transfer, to a new owner or a member that merges this partition.

use bytes::BytesMut;
use consort_group::{Address, Time};

use crate::command::{Body, Chunk, Pull};
use crate::container::{ChunkLimits, Cursor};
use crate::cx::CHUNK_BYTES;
use crate::cx::Cx;
use crate::encoded_entries::put_copy;
use crate::history::SegmentHistory;
use crate::injected_bugs::InjectedBug;
use crate::replica::Shared;
use crate::replica::store::Store;
use crate::replica::store::loads::{AwaitingLoad, Found, LOAD_KEYS};
use crate::replica::write::handover::give_records;
use crate::{SegmentState as ContainerState, Stored};

/// So that a chunk's iteration does not block other threads for long.
const CHUNK_ENTRIES: usize = 4_096;

#[derive(Clone, Copy)]
struct GivenWalk {
    start: Cursor,
    limits: ChunkLimits,
    alive_at: Time,
}

enum Given {
    Written,
    IsLast,
    Not,
}

/// `is_listened`: a listener of the cluster receives events of the cache.
pub(crate) fn send_chunk(
    shared: &mut Shared,
    store: &mut Store,
    cx: &mut Cx,
    from: &Address,
    pull: Pull,
    loaded: Found,
    is_listened: bool,
) {
    let Pull { rebalance, side, segment, cursor, bytes_max } = pull;
    // Before this member knows of that rebalance, it does not send its writes to the requesting member. A topology with the
    // same id from another partition may lack that member.
    let is_known = shared.topology().is_some_and(|topology| topology.rebalance >= rebalance);
    let is_given = match side {
        None => {
            let is_orphaned = || shared.topology().is_some_and(|topology| topology.is_orphaned(segment));
            let is_owned = shared.container.state(segment) == ContainerState::Owned;
            is_known && (is_owned || shared.is_restoring() || is_orphaned())
        }
        Some(side) => shared.is_kept_for(side, segment),
    };
    if !is_given {
        return refuse(shared, cx, from, pull);
    }
    let start = cursor.map_or(Cursor::START, Cursor::from);
    let entries_max = if shared.container.statistics().passive_len() > 0 { LOAD_KEYS } else { CHUNK_ENTRIES };
    let mut limits = ChunkLimits { entries_max, bytes_max: bytes_max.min(CHUNK_BYTES) as usize };
    // The primary that removes an expired entry reports it, and the requesting member may become that primary.
    let tells_expired = side.is_none() && is_listened;
    let alive_at = if tells_expired { Time::ZERO } else { cx.now };
    if !tells_expired {
        // The requesting member then learns of the removal, in case of a network partition.
        store.expire_untold(shared, cx, |one| one == segment, cx.now);
    }
    let walk = GivenWalk { start, limits, alive_at };
    if send_chunk_in_place(shared, store, cx, from, &pull, walk) {
        return;
    }
    let found = loop {
        let Ok(mut found) = shared.container.chunk(segment, start, limits, alive_at) else {
            return refuse(shared, cx, from, pull);
        };
        let is_over = |entry: &crate::Entry| entry.is_expired(cx.now) && !entry.is_idle(cx.now);
        found.entries.retain(|(_, entry)| tells_expired || !(entry.is_passive() && is_over(entry)));
        // The value is not needed any more.
        let over = found.entries.iter_mut().filter(|(_, entry)| entry.is_passive() && is_over(entry));
        over.for_each(|(_, entry)| entry.value = bytes::Bytes::new());
        let missing = store.fill(segment, &mut found.entries, &loaded);
        match missing.first() {
            None => break found,
            // Entries whose values were not loaded come with the next chunk.
            Some((nth, ..)) if *nth > 0 && !loaded.is_empty() => limits.entries_max = *nth,
            Some(_) => {
                let asked = missing.into_iter().map(|(_, place, version)| (place, version)).collect();
                return store.load(
                    shared,
                    cx,
                    asked,
                    AwaitingLoad::Pull { from: from.clone(), pull, found: loaded },
                );
            }
        }
    };
    let history = match found.next {
        None => finish_segment(shared, store, cx, from, &pull),
        Some(_) => None,
    };
    let entries = found.entries.into_iter();
    let chunk = Chunk {
        entries: entries.map(|(key, entry)| (key, Stored::of(entry, cx.now))).collect(),
        next: found.next.map(Cursor::into),
        history,
        segment_bytes: shared.container.segment_content_bytes(segment),
        ..Chunk::nothing_for(&pull)
    };
    shared.send(cx, from, Body::Chunk(chunk));
}

/// Writes values that are all in memory once, into the frames. Returns false, with no chunk sent, if values
/// are missing or the segment's lock was held for too long.
fn send_chunk_in_place(
    shared: &mut Shared,
    store: &Store,
    cx: &mut Cx,
    from: &Address,
    pull: &Pull,
    walk: GivenWalk,
) -> bool {
    if *from == cx.local || shared.container.statistics().passive_len() > 0 {
        return false;
    }
    let (segment, GivenWalk { start, limits, alive_at }) = (pull.segment, walk);
    let (cache, topology, now) = (shared.id, shared.topology_id(), cx.now);
    let segment_bytes = shared.container.segment_content_bytes(segment);
    let mut end = None;
    loop {
        let given = shared.container.part(segment, start, limits, alive_at, |part| {
            if part.has_passive() {
                return Given::Not;
            }
            let history = match (part.next(), end.take()) {
                (None, None) => return Given::IsLast,
                (None, Some(history)) => history,
                (Some(_), _) => None,
            };
            let next = part.next().map(Cursor::into);
            let chunk = Chunk { next, history, segment_bytes, ..Chunk::nothing_for(pull) };
            let entries = |out: &mut BytesMut| part.each(|visited| put_copy(out, visited, now));
            cx.write_to(from, |frames| {
                let body = |out: &mut BytesMut| chunk.put_body(out, part.count(), entries);
                frames.push_with(cache, topology, part.bytes(), body);
            });
            Given::Written
        });
        match given {
            Ok(Some(Given::Written)) => return true,
            // The records before it are written to the same frames.
            Ok(Some(Given::IsLast)) => end = Some(finish_segment(shared, store, cx, from, pull)),
            Ok(None | Some(Given::Not)) | Err(_) => return false,
        }
    }
}

/// Sends the records before the segment's last chunk, and returns the history.
fn finish_segment(
    shared: &mut Shared,
    store: &Store,
    cx: &mut Cx,
    from: &Address,
    pull: &Pull,
) -> Option<SegmentHistory> {
    if pull.side.is_none() && !cx.has(InjectedBug::RecordsNotGiven) {
        give_records(shared, store, cx, from, pull.segment);
    }
    shared.history_of(pull.segment)
}

fn refuse(shared: &Shared, cx: &mut Cx, from: &Address, pull: Pull) {
    let chunk = Chunk { is_refused: true, ..Chunk::nothing_for(&pull) };
    shared.send(cx, from, Body::Chunk(chunk));
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use consort_group::Rng;

    use super::*;
    use crate::config::CacheId;
    use crate::encoded_entries::EncodedEntries;
    use crate::wire::FrameWriter;
    use crate::{Container, ContainerSettings, Entry, Lifetime, Segment, Version};

    const SEGMENT: Segment = Segment(0);

    #[test]
    fn chunk_sent_in_place_equals_a_collected_chunk() {
        let settings = ContainerSettings { segment_count: 1, bound: None, is_backed: false, is_shared: true };
        let container = Container::new(&settings, 1);
        container.own(SEGMENT);
        let mut rng = Rng::new(8);
        for n in 0..300_u64 {
            let written = Time::ZERO + Duration::from_millis(rng.below(1_000));
            let value = Bytes::from(vec![n as u8; rng.below(5_000) as usize]);
            let span = |rng: &mut Rng| rng.chance(0.3).then(|| Duration::from_secs(1 + rng.below(3)));
            let lifetime = Lifetime { lifespan: span(&mut rng), max_idle: span(&mut rng) };
            let entry = Entry::new(value, Version::new(2, n), written).with_lifetime(lifetime);
            container.put(SEGMENT, &n.to_be_bytes(), entry, written).unwrap();
        }
        let now = Time::ZERO + Duration::from_secs(2);
        let mut at = Some(Cursor::START);
        while let Some(from) = at {
            let cursor = (from != Cursor::START).then(|| from.into());
            let pull = Pull { rebalance: 3, side: None, segment: SEGMENT, cursor, bytes_max: 0 };
            let bytes_max = rng.below(70_000) as usize;
            let limits = ChunkLimits { entries_max: CHUNK_ENTRIES, bytes_max };
            let found = container.chunk(SEGMENT, from, limits, now).unwrap();
            let entries = found.entries.into_iter().map(|(key, entry)| (key, Stored::of(entry, now)));
            let next = found.next.map(Cursor::into);
            let gathered =
                Chunk { entries: entries.collect(), next, segment_bytes: 7, ..Chunk::nothing_for(&pull) };
            let (mut one, mut other) = (FrameWriter::default(), FrameWriter::default());
            one.push(CacheId(1), 4, &Body::Chunk(gathered.clone()));
            let written = container.part(SEGMENT, from, limits, now, |part| {
                let chunk = Chunk { entries: EncodedEntries::default(), ..gathered };
                let entries = |out: &mut BytesMut| part.each(|visited| put_copy(out, visited, now));
                other.push_with(CacheId(1), 4, part.bytes(), |out| {
                    chunk.put_body(out, part.count(), entries);
                });
            });
            assert_eq!(written, Ok(Some(())));
            assert_eq!(one.next(5), other.next(5));
            at = found.next;
        }
    }
}
