//! Before the faults, members begin one after the other; in the quiet afterwards every entry is inspected.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use consort_grid::{Action, CacheMode, Condition, ReadFrom, Segment, segment_of};
use consort_group::Time;

use super::GridWorld;
use super::actions::put;
use super::checks::{agreement, bounds, expiry, iterations, listeners};
use super::fault_preconditions::{grid_state, is_settled};
use super::iterating_client;
use super::keys::{private, steady};
use super::operations::{TIMEOUT, submit};
use crate::after_faults::advance;
use crate::checks::{self, Broken};

const BEGIN_LIMIT: Duration = Duration::from_secs(60);

/// While a member listens, if no primary has expired entries removed.
const UNTOLD_FOR: Duration = Duration::from_secs(65);

pub(super) fn wait_for(world: &mut GridWorld, node: usize) -> Result<(), Broken> {
    let limit = world.now + BEGIN_LIMIT;
    while !world.app.members[node].is_usable() {
        advance(world, Duration::from_millis(50));
        if world.now > limit {
            return Err((
                "members join",
                format!("{} does not{}", world.nodes[node].name, grid_state(world)),
            ));
        }
    }
    Ok(())
}

/// One view until `limit`, and from then on one topology. Returns how long each took.
pub(super) fn settle(
    world: &mut GridWorld,
    limit: Time,
    settle_limit: Duration,
) -> Result<(Duration, Duration), Broken> {
    let began = world.now;
    while !checks::is_one_view(&world.nodes) {
        advance(world, Duration::from_millis(100));
        if world.now > limit {
            return checks::one_view(&world.nodes).map(|()| (Duration::ZERO, Duration::ZERO));
        }
    }
    let has_view = world.now;
    while !(is_settled(world) && checks::is_one_view(&world.nodes)) {
        advance(world, Duration::from_millis(50));
        // A leaving member is gone later than the first common view.
        if world.now.since(has_view) > settle_limit {
            return Err(("one topology after faults", grid_state(world)));
        }
    }
    Ok((has_view.since(began), world.now.since(has_view)))
}

pub(super) fn stop_clients(world: &mut GridWorld) {
    world.app.is_busy = false;
    advance(world, TIMEOUT + Duration::from_secs(2));
}

/// Stores handle one request after the other.
pub(super) fn settle_timeout(world: &GridWorld) -> Duration {
    Duration::from_secs(if world.app.stores.is_some() { 5 } else { 1 })
}

pub(super) fn populate(world: &mut GridWorld) {
    let keys = world.app.keys.steady;
    let nodes = live_nodes(world);
    for (n, &node) in (0..keys).zip(nodes.iter().cycle()) {
        submit(world, node, steady(n), put(Bytes::from(format!("first {n}")), Condition::Always, false));
    }
    if keys > 0 {
        advance(world, settle_timeout(world));
    }
}

pub(super) fn iterate_everywhere(world: &mut GridWorld) -> Result<(), Broken> {
    iterations::none_left(world)?;
    let Some(first) = iterating_client::begin_last_iterations(world) else { return Ok(()) };
    advance(world, Duration::from_secs(5));
    iterations::none_left(world)?;
    if world.app.config.mode == CacheMode::Invalidation {
        return Ok(());
    }
    iterations::whole(world, first, &agreement::there(world))
}

/// Every listener has received all events.
pub(super) fn drain_listeners(world: &mut GridWorld) -> Result<(), Broken> {
    if world.app.listener_clients.is_none() {
        return Ok(());
    }
    advance(world, Duration::from_secs(2));
    listeners::replicas(world, &agreement::there(world))
}

/// So that all members learn of finished writes.
pub(super) fn write_every_segment(world: &mut GridWorld) -> Result<(), Broken> {
    let keys = key_of_each_segment(world);
    for round in 0..2 {
        let mut writes = Vec::new();
        for node in live_nodes(world) {
            for key in &keys {
                let value = Bytes::from(format!("round {round} of {node}"));
                writes.push(submit(world, node, key.clone(), put(value, Condition::Always, false)));
            }
        }
        advance(world, settle_timeout(world));
        check_all_succeeded(world, &writes)?;
    }
    bounds::nothing_left(world)
}

pub(super) fn read_every_key(world: &mut GridWorld) -> Result<(), Broken> {
    if world.app.workload.has_expiry() && world.app.listener_clients.is_some() {
        // Other owners wait for the primary's message, which it does not send for an entry that it never had.
        advance(world, UNTOLD_FOR);
    }
    read_all(world)?;
    expiry::nothing_left(world)?;
    checks::credits(&world.nodes)
}

pub(super) fn read_all(world: &mut GridWorld) -> Result<(), Broken> {
    let grid = &world.app;
    let is_written = |key: &Bytes| grid.history.iter().any(|one| one.key == key);
    let written = (0..grid.clients.len()).map(private).filter(is_written);
    let keys: Vec<Bytes> = grid.keys.all().into_iter().chain(written).collect();
    let mut reads = Vec::new();
    for from in [ReadFrom::Nearest, ReadFrom::Primary] {
        for node in live_nodes(world) {
            for key in &keys {
                reads.push(submit(world, node, key.clone(), Action::Read(from)));
            }
        }
    }
    advance(world, settle_timeout(world));
    check_all_succeeded(world, &reads)?;
    agreement::check(world)
}

pub(super) fn live_nodes(world: &GridWorld) -> Vec<usize> {
    (0..world.nodes.len()).filter(|&node| world.nodes[node].is_alive()).collect()
}

pub(super) fn check_all_succeeded(world: &GridWorld, operations: &[usize]) -> Result<(), Broken> {
    for operation in operations.iter().map(|&at| &world.app.history[at]) {
        if !matches!(operation.result, Some(Ok(_))) {
            let what = format!("{operation:?}{}", grid_state(world));
            return Err(("a quiet cluster serves at once", what));
        }
    }
    Ok(())
}

pub(super) fn key_of_each_segment(world: &GridWorld) -> Vec<Bytes> {
    let segments = world.app.config.segments;
    let mut keys: BTreeMap<Segment, Bytes> = BTreeMap::new();
    for key in (0..10_000).map(|n| Bytes::from(format!("s{n}"))) {
        if keys.len() == usize::from(segments) {
            break;
        }
        keys.entry(segment_of(&key, segments)).or_insert(key);
    }
    keys.into_values().collect()
}
