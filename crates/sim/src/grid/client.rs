//! Each client does one operation after the other on its member.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use consort_grid::{Action, Condition, Lifetime, Outcome, PartitionHandling, ReadFrom, Stored};
use consort_group::Rng;

use super::actions::{put, put_for, remove};
use super::keys::{Keys, Kind, private};
use super::turns::{Turn, think};
use super::workload_mix::{idle_lifetime, lifetime};
use super::{GridWorld, bulk_client, operations};

const CLIENTS: usize = 3;

const PAUSE: Duration = Duration::from_millis(100);

pub(crate) struct Client {
    pub(crate) node: usize,
    seen: BTreeMap<Bytes, Stored>,
    next: Option<(Bytes, Action)>,
}

pub(super) fn add(world: &mut GridWorld, node: usize) {
    let clients = &mut world.app.clients;
    let first = clients.len();
    let last = first + CLIENTS;
    let new = || Client { node, seen: BTreeMap::new(), next: None };
    clients.resize_with(last, new);
    for client in first..last {
        think(world, client);
    }
}

pub(super) fn turn(world: &mut GridWorld, client: usize) {
    let grid = &mut world.app;
    if !grid.is_busy {
        return;
    }
    let (node, keys, is_quiet) = (grid.clients[client].node, grid.keys, grid.is_quiet);
    if is_quiet {
        return world.schedule(world.now + PAUSE, Turn::Client(client));
    }
    let decided = grid.clients[client].next.take();
    let one = &world.nodes[node];
    if !one.is_alive() || grid.members[node].is_left {
        return;
    }
    if one.is_paused {
        return world.schedule(world.now + PAUSE, Turn::Client(client));
    }
    if decided.is_none() && bulk_client::begin(world, client) {
        return;
    }
    let (key, action) = match decided {
        Some(decided) => decided,
        None => decide(world, client, keys),
    };
    let (at, is_ended) = operations::begin(world, node, Some(client), key, action);
    if is_ended {
        turn_over(world, client, at);
    }
    world.work(node);
}

fn decide(world: &mut GridWorld, client: usize, keys: Keys) -> (Bytes, Action) {
    let (rng, grid) = (&mut world.rng, &mut world.app);
    let nth = grid.history.len();
    let merges = grid.config.partitions == PartitionHandling::AllowReadWrites;
    if merges && rng.chance(0.3) {
        return (private(client), put(Bytes::from(format!("v{nth}")), Condition::Always, true));
    }
    let key = keys.any(rng);
    let seen = grid.clients[client].seen.get(&key).cloned();
    let read = match Kind::of(&key) {
        Kind::Counter => return (key, Action::Read(ReadFrom::Primary)),
        Kind::Atom => ReadFrom::Primary,
        Kind::Mortal if rng.chance(0.4) => ReadFrom::Primary,
        Kind::Register | Kind::Private | Kind::Steady if rng.chance(0.2) => ReadFrom::Primary,
        Kind::Idle if rng.chance(0.2) => ReadFrom::Primary,
        Kind::Register | Kind::Private | Kind::Steady | Kind::Mortal | Kind::Idle => ReadFrom::Nearest,
    };
    // Some values need several packets.
    let size = if rng.chance(0.05) { 2_000 } else { 0 };
    let value = Bytes::from(format!("v{nth:<size$}"));
    let wants_previous = rng.chance(0.5);
    if Kind::of(&key) == Kind::Steady {
        let action =
            if rng.chance(0.5) { Action::Read(read) } else { put(value, Condition::Always, wants_previous) };
        return (key, action);
    }
    let lifetime = match Kind::of(&key) {
        Kind::Mortal => Some(lifetime(&mut grid.own)),
        Kind::Idle => Some(idle_lifetime(&mut grid.idle)),
        _ => None,
    };
    if let Some(lifetime) = lifetime {
        return (key, decide_mortal(rng, lifetime, read, value, seen));
    }
    let action = match (rng.below(20), seen) {
        (0..8, _) => Action::Read(read),
        (8..12, _) => put(value, Condition::Always, wants_previous),
        (12, _) => put(value, Condition::Absent, wants_previous),
        (13, _) => put(value, Condition::Present, wants_previous),
        (14, Some(seen)) => put(value, Condition::Value(seen.value), wants_previous),
        (15 | 16, Some(seen)) => put(value, Condition::Version(seen.version), wants_previous),
        (17, Some(seen)) => remove(Condition::Version(seen.version), wants_previous),
        (18, Some(seen)) => remove(Condition::Value(seen.value), wants_previous),
        _ => remove(Condition::Always, wants_previous),
    };
    (key, action)
}

/// Mostly a read, because a write replaces the entry before it expires.
fn decide_mortal(
    rng: &mut Rng,
    lifetime: Lifetime,
    read: ReadFrom,
    value: Bytes,
    seen: Option<Stored>,
) -> Action {
    let wants_previous = rng.chance(0.5);
    match (rng.below(20), seen) {
        (0..15, _) => Action::Read(read),
        (15 | 16, _) => put_for(lifetime, value, Condition::Always, wants_previous),
        (17, _) => put_for(lifetime, value, Condition::Absent, wants_previous),
        (18, Some(seen)) => put_for(lifetime, value, Condition::Version(seen.version), wants_previous),
        (_, seen) => {
            let condition = seen.map_or(Condition::Always, |seen| Condition::Value(seen.value));
            remove(condition, wants_previous)
        }
    }
}

pub(super) fn turn_over(world: &mut GridWorld, client: usize, at: usize) {
    let grid = &mut world.app;
    let operation = &grid.history[at];
    let one = &mut grid.clients[client];
    if let Some(Ok(outcome)) = &operation.result {
        let key = operation.key.clone();
        if let (Outcome::Read(found), Kind::Counter) = (outcome, Kind::of(&key)) {
            one.next = Some((key.clone(), count_up(found.as_ref())));
        }
        let stored = match outcome {
            Outcome::Read(found) => found.clone(),
            Outcome::Written(_) => None,
        };
        if let Some(stored) = stored {
            one.seen.insert(key, stored);
        }
    }
    think(world, client);
}

fn count_up(found: Option<&Stored>) -> Action {
    let condition = found.map_or(Condition::Absent, |found| Condition::Version(found.version));
    let count = found.map_or(0, |found| count(&found.value));
    put(Bytes::from((count + 1).to_string()), condition, false)
}

pub(crate) fn count(value: &[u8]) -> u64 {
    std::str::from_utf8(value).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}
