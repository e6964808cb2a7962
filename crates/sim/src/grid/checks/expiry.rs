//! Entries that live for a while: nobody is given one when its time is over, whoever crashes, joins, comes back or is merged
//! meanwhile, and what says how old it is says what is true. That nobody misses one before is for [`super::register`] and
//! the others, which take an entry for gone no sooner than the fastest clock does.
//!
//! Clocks differ in their speed ([`SLOWEST`], [`FASTEST`]), and an entry is younger by as much at an owner as the frame took
//! that brought it.

use std::time::Duration;

use consort_grid::{Outcome, Segment, Stored};
use consort_group::Time;

use super::super::history::Operation;
use super::agreement::contents;
use super::{merges, tell};
use crate::checks::Broken;
use crate::faults::{FASTEST, SLOWEST};
use crate::world::World;

/// Stores keep times in milliseconds, and round each time that they are asked.
pub(crate) const ROUNDED: Duration = Duration::from_millis(20);

/// How often an entry of a few seconds is handed on at most, each time with a frame that is late: to whoever has a segment
/// next, and from there to the next one.
const HOPS: u32 = 3;

/// What holds for each operation by itself, and for what it was given.
pub(super) fn check(world: &World, key: &[u8], operations: &[&Operation]) -> Result<(), Broken> {
    for operation in operations {
        let (Some(stored), Some(ended)) = (given(operation), operation.ended) else { continue };
        let tell = || tell(world, key, operation);
        if stored.lifetime.lifespan.is_some_and(|lifespan| stored.age >= lifespan) {
            return Err(("nobody is given what has expired", tell()));
        }
        let Some(writer) = writer(operations, stored) else { continue };
        let Some(lifespan) = writer.lifespan() else { continue };
        // What is decided at a merge is written anew, for the rest of its life.
        let is_as_written = merges::has_parted(world) || stored.lifetime.lifespan == Some(lifespan);
        let youngest = ended.since(writer.began).mul_f64(FASTEST) + ROUNDED;
        let is_young = stored.age <= youngest;
        let written = || format!("{}\n  {}", tell(), super::tell(world, key, writer));
        if !is_as_written || !is_young && !merges::has_parted(world) {
            return Err(("entries say how old they are", written()));
        }
        let Some((_, acknowledged)) = writer.acknowledged() else { continue };
        let late = late(world, writer.began, ended);
        let oldest = operation.began.since(acknowledged).mul_f64(SLOWEST).saturating_sub(late + ROUNDED);
        if stored.age < oldest && !merges::has_parted(world) {
            return Err(("entries say how old they are", written()));
        }
        if operation.began > acknowledged + lifespan.div_f64(SLOWEST) + late + ROUNDED {
            return Err(("nobody is given what has expired", written()));
        }
    }
    Ok(())
}

/// By how much later owners may have heard of a write than whoever it was of.
pub(super) fn late(world: &World, from: Time, to: Time) -> Duration {
    let transit = world.grid.as_ref().and_then(|grid| grid.transit.as_ref());
    transit.map_or(Duration::ZERO, |transit| transit.longest(from, to) * HOPS)
}

/// What an operation was given of its key.
pub(super) fn given(operation: &Operation) -> Option<&Stored> {
    match operation.result.as_ref()?.as_ref().ok()? {
        Outcome::Read(found) => found.as_ref(),
        Outcome::Written(written) => written.previous.as_ref(),
    }
}

fn writer<'a>(operations: &[&'a Operation], stored: &Stored) -> Option<&'a Operation> {
    operations.iter().copied().find(|write| write.value() == Some(&stored.value))
}

/// Once the time of everything is over that is to end within the run: nothing is left of it in anybody's memory.
pub(crate) fn nothing_left(world: &World) -> Result<(), Broken> {
    for node in world.nodes.iter().filter(|node| node.is_alive()) {
        let Some(member) = &node.member else { continue };
        for segment in (0..member.container.segment_count()).map(Segment) {
            let at = |time| contents(&member.container, segment, time);
            let there = at(node.member_clock(world.now));
            if let Some((key, (version, _))) =
                at(Time::ZERO).iter().find(|(key, _)| !there.contains_key(*key))
            {
                let what = format!("{} still has {key:?} with {version} in segment {segment}", node.name);
                return Err(("nothing is left of what has expired", what));
            }
        }
    }
    Ok(())
}
