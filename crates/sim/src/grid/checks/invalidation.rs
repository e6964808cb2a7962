//! Invalidation mode, in which every member keeps the entries that it has put itself. After a write is
//! acknowledged, no member reads an older value, and once the cluster is quiet one member at most has a key.
//!
//! Excused are reads as in [`super::register`]. If partitions have gone on without each other, only reads
//! after the merge are judged, and not against writes of members that did not know of the merge.

use super::super::GridWorld;
use super::super::history::Operation;
use super::super::keys::Kind;
use super::super::member::alive;
use super::contents::contents;
use super::{describe, merges};
use crate::checks::Broken;

pub(super) fn check(world: &GridWorld, key: &[u8], operations: &[&Operation]) -> Result<(), Broken> {
    if Kind::of(key) == Kind::Counter {
        // Each member is judged for itself, because values do not name their writers.
        return Ok(());
    }
    let has_parted = merges::has_parted(world);
    let done = |operation: &&&Operation| operation.written().is_some_and(|(written, _)| written.is_done);
    let acknowledged: Vec<&Operation> = operations.iter().filter(done).copied().collect();
    for read in operations {
        let Some((Some(stored), ended)) = read.read() else { continue };
        let mut writers = operations.iter().filter(|write| write.value() == Some(&stored.value));
        let Some(writer) = writers.find(|write| write.began <= ended) else {
            return Err(("a read value was written", describe(world, key, read)));
        };
        let is_judged = if has_parted { read.is_look() } else { !read.is_excused };
        let Some((_, written)) = writer.written().filter(|_| is_judged) else { continue };
        // A member that did not know of the merge yet has written in a partition that the other members have given up, even
        // later.
        let is_given_up = |other: &Operation| {
            let topology = |write: &Operation| write.written().map(|(written, _)| written.version.topology());
            has_parted && other.is_excused && topology(other) < topology(writer)
        };
        let is_newer = |other: &&&Operation| other.began > written && !is_given_up(other);
        let mut newer = acknowledged.iter().filter(is_newer);
        if let Some(newer) = newer.find(|other| other.ended.is_some_and(|at| at < read.began)) {
            let what = format!("{}\n  misses {}", describe(world, key, read), describe(world, key, newer));
            return Err(("no read returns a value that an acknowledged write has replaced", what));
        }
    }
    Ok(())
}

pub(crate) fn one_holder(world: &GridWorld) -> Result<(), Broken> {
    let mut holders = std::collections::BTreeMap::new();
    for (node, member) in alive(world) {
        for segment in (0..member.container.segment_count()).map(consort_grid::Segment) {
            for key in contents(&member.container, segment, node.application_clock(world.now)).into_keys() {
                if let Some(other) = holders.insert(key.clone(), &node.name) {
                    return Err(("one member has a key", format!("{key:?}: {other} and {}", node.name)));
                }
            }
        }
    }
    Ok(())
}
