//! Expiration. Ages of entries stay true if members crash, join, come back or merge. For the other checkers
//! an entry is gone no sooner than by the fastest clock.
//!
//! Clocks differ in speed ([`SLOWEST`], [`FASTEST`]). An entry is younger at an owner by the transit time of
//! its frame.

use std::time::Duration;

use consort_grid::{Outcome, Segment, Stored};
use consort_group::Time;

use super::super::GridWorld;
use super::super::history::{Operation, ROUNDED};
use super::super::member::alive;
use super::contents::contents;
use super::{describe, merges};
use crate::checks::Broken;
use crate::faults::{FASTEST, SLOWEST};

/// An entry that lives a few seconds moves this often: each hop uses a late frame, to a segment's next owner,
/// and on to the one after it.
const HOPS: u32 = 3;

pub(super) fn check(world: &GridWorld, key: &[u8], operations: &[&Operation]) -> Result<(), Broken> {
    for operation in operations {
        let (Some(stored), Some(ended)) = (given(operation), operation.ended) else { continue };
        let describe = || describe(world, key, operation);
        if stored.lifetime.lifespan.is_some_and(|lifespan| stored.age >= lifespan) {
            return Err(("no read returns an expired entry", describe()));
        }
        let Some(writer) = writer(operations, stored) else { continue };
        let Some(lifespan) = writer.lifespan() else { continue };
        // A merge writes its result anew, with the rest of the entry's lifespan.
        let is_as_written = merges::has_parted(world) || stored.lifetime.lifespan == Some(lifespan);
        let youngest = ended.since(writer.began).mul_f64(FASTEST) + ROUNDED;
        let is_young = stored.age <= youngest;
        let written = || format!("{}\n  {}", describe(), super::describe(world, key, writer));
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
            return Err(("no read returns an expired entry", written()));
        }
    }
    Ok(())
}

/// How much later than the writer owners may have received a write.
pub(super) fn late(world: &GridWorld, from: Time, to: Time) -> Duration {
    let transit = world.app.transit.as_ref();
    transit.map_or(Duration::ZERO, |transit| transit.longest(from, to) * HOPS)
}

pub(super) fn given(operation: &Operation) -> Option<&Stored> {
    match operation.result.as_ref()?.as_ref().ok()? {
        Outcome::Read(found) => found.as_ref(),
        Outcome::Written(written) => written.previous.as_ref(),
    }
}

fn writer<'a>(operations: &[&'a Operation], stored: &Stored) -> Option<&'a Operation> {
    operations.iter().copied().find(|write| write.value() == Some(&stored.value))
}

pub(crate) fn nothing_left(world: &GridWorld) -> Result<(), Broken> {
    for (node, member) in alive(world) {
        for segment in (0..member.container.segment_count()).map(Segment) {
            let at = |time| contents(&member.container, segment, time);
            let there = at(node.application_clock(world.now));
            if let Some((key, (version, _))) =
                at(Time::ZERO).iter().find(|(key, _)| !there.contains_key(*key))
            {
                let what = format!("{} still has {key:?} with {version} in segment {segment}", node.name);
                return Err(("nothing is left of expired entries", what));
            }
        }
    }
    Ok(())
}
