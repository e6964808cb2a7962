//! Clients: each does one operation after the other on its member.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use consort_grid::{
    Action, Change, Condition, Lifetime, Outcome, PartitionHandling, ReadFrom, Stored, Write,
};

use super::keys::{Keys, Kind, private};
use super::workload_mix::{idle_lifetime, lifetime};
use crate::world::World;

/// The timeout of an operation.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);

/// The number of clients of each member.
const CLIENTS: usize = 3;

/// The mean time between two operations of a client.
const THINK: Duration = Duration::from_millis(20);

/// The interval at which a client checks whether its member goes on.
const PAUSE: Duration = Duration::from_millis(100);

/// A client.
pub(crate) struct Client {
    pub(crate) node: usize,
    /// The last entry that it has seen of each key.
    seen: BTreeMap<Bytes, Stored>,
    /// Its next operation.
    next: Option<(Bytes, Action)>,
}

pub(crate) fn put(value: Bytes, condition: Condition, wants_previous: bool) -> Action {
    put_for(Lifetime::FOREVER, value, condition, wants_previous)
}

fn put_for(lifetime: Lifetime, value: Bytes, condition: Condition, wants_previous: bool) -> Action {
    Action::Write(Write { condition, change: Change::Put { value, lifetime }, wants_previous })
}

impl World {
    /// Adds the clients of a member that has become usable.
    pub(super) fn add_clients(&mut self, node: usize) {
        let Some(grid) = &mut self.grid else { return };
        let first = grid.clients.len();
        let last = first + CLIENTS;
        let new = || Client { node, seen: BTreeMap::new(), next: None };
        grid.clients.resize_with(last, new);
        for client in first..last {
            self.think(client);
        }
    }

    pub(super) fn think(&mut self, client: usize) {
        let after = self.rng.duration(Duration::ZERO, THINK * 2);
        self.schedule_turn(self.now + after, client);
    }

    /// Runs a client's turn.
    pub(crate) fn turn(&mut self, client: usize) {
        let Some(grid) = &mut self.grid else { return };
        if !grid.is_busy {
            return;
        }
        let (node, keys, is_quiet) = (grid.clients[client].node, grid.keys, grid.is_quiet);
        if is_quiet {
            return self.schedule_turn(self.now + PAUSE, client);
        }
        let Some(grid) = &mut self.grid else { return };
        let decided = grid.clients[client].next.take();
        let one = &self.nodes[node];
        if !one.is_alive() || one.member.as_ref().is_none_or(|member| member.is_left) {
            return;
        }
        if one.is_paused {
            return self.schedule_turn(self.now + PAUSE, client);
        }
        if decided.is_none() && self.begin_bulk(client) {
            return;
        }
        let (key, action) = match decided {
            Some(decided) => decided,
            None => self.decide(client, keys),
        };
        self.submit(node, Some(client), key, action);
    }

    fn decide(&mut self, client: usize, keys: Keys) -> (Bytes, Action) {
        let merges = self
            .grid
            .as_ref()
            .is_some_and(|grid| grid.config.partitions == PartitionHandling::AllowReadWrites);
        if merges && self.rng.chance(0.3) {
            let nth = self.grid.as_ref().map_or(0, |grid| grid.history.len());
            return (private(client), put(Bytes::from(format!("v{nth}")), Condition::Always, true));
        }
        let key = keys.any(&mut self.rng);
        let Some(grid) = &self.grid else { return (key, Action::Read(ReadFrom::Primary)) };
        let nth = grid.history.len();
        let seen = grid.clients[client].seen.get(&key).cloned();
        let rng = &mut self.rng;
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
            let action = if rng.chance(0.5) {
                Action::Read(read)
            } else {
                put(value, Condition::Always, wants_previous)
            };
            return (key, action);
        }
        let lifetime = match Kind::of(&key) {
            Kind::Mortal => self.grid.as_mut().map(|grid| lifetime(&mut grid.own)),
            Kind::Idle => self.grid.as_mut().map(|grid| idle_lifetime(&mut grid.idle)),
            _ => None,
        };
        if let Some(lifetime) = lifetime {
            return (key, self.decide_mortal(lifetime, read, value, seen));
        }
        let rng = &mut self.rng;
        let remove = |condition| Action::Write(Write { condition, change: Change::Remove, wants_previous });
        let action = match (rng.below(20), seen) {
            (0..8, _) => Action::Read(read),
            (8..12, _) => put(value, Condition::Always, wants_previous),
            (12, _) => put(value, Condition::Absent, wants_previous),
            (13, _) => put(value, Condition::Present, wants_previous),
            (14, Some(seen)) => put(value, Condition::Value(seen.value), wants_previous),
            (15 | 16, Some(seen)) => put(value, Condition::Version(seen.version), wants_previous),
            (17, Some(seen)) => remove(Condition::Version(seen.version)),
            (18, Some(seen)) => remove(Condition::Value(seen.value)),
            _ => remove(Condition::Always),
        };
        (key, action)
    }

    /// Decides an operation on an entry with a lifespan. It is mostly a read, because a write replaces the entry before it
    /// expires.
    fn decide_mortal(
        &mut self,
        lifetime: Lifetime,
        read: ReadFrom,
        value: Bytes,
        seen: Option<Stored>,
    ) -> Action {
        let rng = &mut self.rng;
        let wants_previous = rng.chance(0.5);
        match (rng.below(20), seen) {
            (0..15, _) => Action::Read(read),
            (15 | 16, _) => put_for(lifetime, value, Condition::Always, wants_previous),
            (17, _) => put_for(lifetime, value, Condition::Absent, wants_previous),
            (18, Some(seen)) => put_for(lifetime, value, Condition::Version(seen.version), wants_previous),
            (_, seen) => {
                let condition = seen.map_or(Condition::Always, |seen| Condition::Value(seen.value));
                Action::Write(Write { condition, change: Change::Remove, wants_previous })
            }
        }
    }

    /// Handles the end of a client's operation.
    pub(super) fn turn_over(&mut self, client: usize, at: usize) {
        let Some(grid) = &mut self.grid else { return };
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
        self.think(client);
    }
}

/// Increments a counter.
fn count_up(found: Option<&Stored>) -> Action {
    let condition = found.map_or(Condition::Absent, |found| Condition::Version(found.version));
    let count = found.map_or(0, |found| count(&found.value));
    put(Bytes::from((count + 1).to_string()), condition, false)
}

/// Returns a counter's value as a number.
pub(crate) fn count(value: &[u8]) -> u64 {
    std::str::from_utf8(value).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}
