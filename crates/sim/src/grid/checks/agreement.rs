//! Once it is quiet, all owners of a segment have the same entries with the same versions, and nobody else has any.

use std::collections::BTreeMap;

use bytes::Bytes;
use consort_grid::{CacheMode, ChunkLimits, Container, Cursor, Segment, SegmentState, Version};
use consort_group::Time;

use crate::checks::Broken;
use crate::world::World;

type Contents = BTreeMap<Bytes, (Version, Bytes)>;

pub(crate) fn check(world: &World) -> Result<(), Broken> {
    let alive: Vec<_> = world.nodes.iter().filter(|node| node.is_alive()).collect();
    let first = alive.iter().find_map(|node| node.member.as_ref()?.topology());
    let Some(topology) = first else { return Ok(()) };
    if world.grid.as_ref().is_some_and(|grid| grid.config.mode == CacheMode::Invalidation) {
        return super::invalidation::one_holder(world);
    }
    for segment in topology.current.segments() {
        let mut known: Option<(&str, Contents)> = None;
        for node in &alive {
            let Some(member) = &node.member else { continue };
            let state = member.container.state(segment);
            let is_owner = topology.current.owners(segment).any(|owner| *owner == node.address);
            let wanted = if is_owner { SegmentState::Owned } else { SegmentState::Absent };
            if state != wanted {
                let what = format!("{}: segment {segment} is {state:?}, not {wanted:?}", node.name);
                return Err(("only owners have a segment", what));
            }
            if !is_owner {
                continue;
            }
            let own = contents(&member.container, segment, node.clock(world.now));
            match &known {
                Some((other, contents)) if *contents != own => {
                    let is_other = |key: &&Bytes| contents.get(*key) != own.get(*key);
                    let key = contents.keys().chain(own.keys()).find(is_other).cloned().unwrap_or_default();
                    let what = format!(
                        "{key:?} in segment {segment} is {:?} at {other} and {:?} at {}",
                        contents.get(&key),
                        own.get(&key),
                        node.name
                    );
                    return Err(("owners agree", what));
                }
                Some(_) => {}
                None => known = Some((&node.name, own)),
            }
        }
    }
    Ok(())
}

/// What the owners have, and in which version.
pub(crate) fn there(world: &World) -> BTreeMap<Bytes, Version> {
    let alive = || world.nodes.iter().filter(|node| node.is_alive());
    let first = alive().find_map(|node| node.member.as_ref()?.topology());
    let mut all = BTreeMap::new();
    for (topology, node) in first.into_iter().flat_map(|topology| alive().map(move |node| (topology, node))) {
        let Some(member) = &node.member else { continue };
        for segment in topology.current.segments_of(&node.address) {
            let own = contents(&member.container, segment, node.clock(world.now));
            all.extend(own.into_iter().map(|(key, (version, _))| (key, version)));
        }
    }
    all
}

pub(super) fn contents(container: &Container, segment: Segment, now: Time) -> Contents {
    let limits = ChunkLimits { entries_max: usize::MAX, bytes_max: usize::MAX };
    let Ok(chunk) = container.chunk(segment, Cursor::START, limits, now) else { return Contents::new() };
    chunk.entries.into_iter().map(|(key, entry)| (key, (entry.version, entry.value))).collect()
}
