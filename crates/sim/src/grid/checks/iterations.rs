//! Iterations. An entry that exists from an iteration's beginning to its end comes as often as guaranteed, or
//! the iteration fails because owners are unreachable. An entry is no older than the version acknowledged
//! when the iteration began.
//!
//! Excused is, as in [`super::register`], an iteration that may have entries from a removed member; except
//! for keys that are never removed, because such a member has an older entry of them.

use std::collections::BTreeMap;

use bytes::Bytes;
use consort_grid::{CacheMode, Guarantee, IterationError, OperationError, Projection, Version, segment_of};
use consort_group::Time;

use super::super::GridWorld;
use super::super::fault_preconditions::grid_state;
use super::super::iterating_client::Iteration;
use super::super::keys::Kind;
use super::OfKey;
use crate::checks::Broken;

pub(super) fn all(world: &GridWorld) -> Result<(), Broken> {
    for iteration in iterations(world) {
        if iteration.held > iteration.publication.batch {
            return Err(("iterations hold no more than their batch", describe(world, iteration)));
        }
        if iteration.publication.guarantee != Guarantee::AtLeastOnce
            && let Some((key, times)) = counts(iteration).into_iter().find(|(_, times)| *times > 1)
        {
            let what = format!("{key:?} came {times} times in {}", describe(world, iteration));
            return Err(("nothing comes twice", what));
        }
        if let Some(Err(error)) = &iteration.result
            && !is_right(world, iteration, error)
        {
            return Err(("iterations end or report unreachable owners", describe(world, iteration)));
        }
    }
    Ok(())
}

pub(crate) fn none_left(world: &GridWorld) -> Result<(), Broken> {
    let is_left =
        |iteration: &&Iteration| iteration.ended.is_none() && world.nodes[iteration.node].is_alive();
    match iterations(world).iter().find(is_left) {
        Some(iteration) => {
            Err(("no iteration hangs", format!("{}{}", describe(world, iteration), grid_state(world))))
        }
        None => Ok(()),
    }
}

fn is_right(world: &GridWorld, iteration: &Iteration, error: &IterationError) -> bool {
    match error {
        IterationError::Operation(OperationError::StoreReadFailed { .. }) => {
            world.app.stores.as_ref().is_some_and(super::super::Stores::has_faults)
        }
        IterationError::Operation(OperationError::Degraded { .. }) => true,
        IterationError::Operation(OperationError::Closed) => world.app.members[iteration.node].is_left,
        _ => false,
    }
}

pub(super) type Found<'a> = (usize, Version, &'a Bytes);

/// By key, because a key's check reads its own entries only.
pub(super) fn found(world: &GridWorld) -> BTreeMap<&Bytes, Vec<Found<'_>>> {
    let mut by_key: BTreeMap<&Bytes, Vec<Found<'_>>> = BTreeMap::new();
    for (nth, iteration) in iterations(world).iter().enumerate() {
        for (key, version, value) in &iteration.found {
            by_key.entry(key).or_default().push((nth, *version, value));
        }
    }
    by_key
}

pub(super) fn check(of_key: &OfKey<'_>, mut found: &[Found<'_>]) -> Result<(), Broken> {
    let world = of_key.world;
    let grid = &world.app;
    if grid.config.mode == CacheMode::Invalidation {
        return Ok(());
    }
    let segment = segment_of(of_key.key, grid.config.segments);
    let is_steady = Kind::of(of_key.key) == Kind::Steady && !grid.workload.clears;
    let all = iterations(world).iter().enumerate();
    for (nth, iteration) in all.filter(|(_, iteration)| iteration.publication.projection != Projection::Count)
    {
        // The entries before belong to iterations that only count.
        found = &found[found.partition_point(|(of, ..)| *of < nth)..];
        let of_walk = &found[..found.partition_point(|(of, ..)| *of == nth)];
        for (_, version, value) in of_walk {
            let describe = || {
                format!("{:?} came as {value:?} with {version} in {}", of_key.key, describe(world, iteration))
            };
            let last = of_key.acknowledged_before(iteration.began);
            if *version < last && iteration.excused_since.is_none() {
                let what = format!("{}\n  misses {}", describe(), of_key.tell_version(last));
                return Err(("iterations return the last acknowledged write", what));
            }
            let known = of_key.values.get(version);
            if iteration.publication.projection == Projection::Entries
                && known.is_some_and(|known| known != value)
            {
                return Err(("one value of a version", describe()));
            }
        }
        let (Some(Ok(_)), Some(ended)) = (&iteration.result, iteration.ended) else { continue };
        let is_owed = of_walk.is_empty()
            && iteration.publication.guarantee != Guarantee::AtMostOnce
            && iteration.passes(segment)
            && iteration.excused_since.is_none_or(|since| is_steady && is_put_before(of_key, since))
            && is_there(of_key, iteration, ended);
        if is_owed {
            let what = format!("{:?} is missing in {}", of_key.key, describe(world, iteration));
            return Err(("an entry that is present all the time is returned", what));
        }
    }
    Ok(())
}

fn is_put_before(of_key: &OfKey<'_>, at: Time) -> bool {
    of_key.acknowledged_before(at) != Version::NONE
}

/// Whether the key certainly existed all the time. A removal under way meanwhile may have been done at its
/// primary, and undone with it, whatever its final result.
fn is_there(of_key: &OfKey<'_>, iteration: &Iteration, ended: Time) -> bool {
    let last = of_key.acknowledged_before(iteration.began);
    let is_put = of_key.done.get(&last).is_some_and(|done| !done.is_removal && !done.may_be_absent(ended));
    let may_remove = |other: &&&super::Operation| {
        let is_older = other.acknowledged().is_some_and(|(version, _)| version < last);
        let is_over = other.ended.is_some_and(|at| at < iteration.began) && !other.is_uncertain();
        other.may_be_absent(ended) && !is_older && !is_over
    };
    is_put && of_key.operations.iter().find(may_remove).is_none()
}

/// Each last iteration has returned the owners' entries.
pub(crate) fn whole(world: &GridWorld, first: usize, there: &BTreeMap<Bytes, Version>) -> Result<(), Broken> {
    for iteration in iterations(world).iter().skip(first) {
        let found: BTreeMap<Bytes, Version> =
            iteration.found.iter().map(|(key, version, _)| (key.clone(), *version)).collect();
        if !matches!(iteration.result, Some(Ok(_))) || found != *there {
            let what = format!("{} entries are there, but {}", there.len(), describe(world, iteration));
            return Err(("an iteration in a quiet cluster returns the entries", what));
        }
    }
    Ok(())
}

fn iterations(world: &GridWorld) -> &[Iteration] {
    world
        .app
        .iterating_clients
        .as_ref()
        .map(|iterating_clients| &iterating_clients.iterations[..])
        .unwrap_or_default()
}

fn counts(iteration: &Iteration) -> BTreeMap<&Bytes, usize> {
    let mut counts = BTreeMap::new();
    for (key, ..) in &iteration.found {
        *counts.entry(key).or_default() += 1;
    }
    counts
}

fn describe(world: &GridWorld, iteration: &Iteration) -> String {
    format!(
        "an iteration of {} from {:?} to {:?}, {:?}: {:?}, {} entries, {} held at most{}",
        world.nodes[iteration.node].name,
        iteration.began,
        iteration.ended,
        iteration.publication,
        iteration.result,
        iteration.found.len(),
        iteration.held,
        if iteration.excused_since.is_some() { " (removed)" } else { "" },
    )
}
