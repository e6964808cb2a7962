//! Client operations on several keys, as `cache` does them.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use consort_grid::{
    Action, CacheMode, Change, Condition, IterationId, Next, Outcome, Projection, Publication, ReadFrom,
    Write,
};
use consort_group::Time;

use super::actions::{put, remove};
use super::keys::Kind;
use super::turns::{Turn, think};
use super::{GridWorld, operations, outdated_members};

/// The probability for a client's next turn, and the limit of its keys.
const MANY: f64 = 0.03;
const MANY_MAX: u64 = 20;

const CLEAR: f64 = 0.004;

const CLEAR_AT_ONCE: usize = 16;

const PAUSE: Duration = Duration::from_millis(100);

pub(crate) struct BulkOperation {
    client: usize,
    pub(crate) node: usize,
    pub(crate) began: Time,
    pub(crate) ended: Option<Time>,
    pub(crate) is_clear: bool,
    iteration: Option<IterationId>,
    left: BTreeSet<usize>,
    is_over: bool,
    is_failed: bool,
    /// As [`super::history::Operation::is_excused`].
    pub(crate) is_excused: bool,
}

pub(super) fn begin(world: &mut GridWorld, client: usize) -> bool {
    let grid = &mut world.app;
    let is_clear = grid.workload.clears && grid.own.chance(CLEAR);
    if !(is_clear || grid.workload.many && grid.own.chance(MANY)) {
        return false;
    }
    let node = grid.clients[client].node;
    let nth = grid.bulk.len();
    grid.bulk.push(BulkOperation {
        client,
        node,
        began: world.now,
        ended: None,
        is_clear,
        iteration: None,
        left: BTreeSet::new(),
        is_over: false,
        is_failed: false,
        is_excused: false,
    });
    if is_clear {
        begin_clear(world, nth);
    } else {
        begin_many(world, nth);
    }
    true
}

fn begin_many(world: &mut GridWorld, nth: usize) {
    let (keys, rng) = (world.app.keys, &mut world.app.own);
    let (count, what) = (rng.between(2, MANY_MAX), rng.below(4));
    let all: Vec<Bytes> = (0..count).map(|_| keys.any(rng)).collect();
    // Other keys have a writer of their own, or are counters.
    let free = |key: &Bytes| matches!(Kind::of(key), Kind::Register | Kind::Atom | Kind::Mortal);
    for key in all.into_iter().filter(free) {
        let value = world.app.history.len();
        let action = match what {
            0 => remove(Condition::Always, false),
            1 | 2 => put(Bytes::from(format!("v{value}")), Condition::Always, false),
            _ => Action::Read(ReadFrom::Primary),
        };
        submit(world, nth, key, action);
    }
    finish(world, nth);
}

fn begin_clear(world: &mut GridWorld, nth: usize) {
    let grid = &mut world.app;
    if grid.config.mode == CacheMode::Invalidation {
        let (condition, change) = (Condition::Always, Change::Clear);
        let clear = Action::Write(Write { condition, change, wants_previous: false });
        submit(world, nth, Bytes::new(), clear);
        return finish(world, nth);
    }
    let keys =
        Publication { projection: Projection::Removable, batch: CLEAR_AT_ONCE, ..Publication::default() };
    let bulk = &mut grid.bulk[nth];
    let member = &mut grid.members[bulk.node];
    let iteration = member.node.iterate(member.cache, keys).ok();
    bulk.is_failed = iteration.is_none();
    bulk.iteration = iteration;
    judge(world, nth);
    world.schedule(world.now, Turn::Clear(nth));
}

pub(super) fn wake_clear(world: &mut GridWorld, node: usize, iteration: IterationId) {
    let is_it = |one: &BulkOperation| one.node == node && one.iteration == Some(iteration);
    if let Some(nth) = world.app.bulk.iter().position(is_it) {
        world.schedule(world.now, Turn::Clear(nth));
    }
}

pub(super) fn clear(world: &mut GridWorld, nth: usize) {
    let grid = &mut world.app;
    let bulk = &mut grid.bulk[nth];
    let node = bulk.node;
    let one = &world.nodes[node];
    if one.is_paused {
        return world.schedule(world.now + PAUSE, Turn::Clear(nth));
    }
    if !one.is_alive() {
        return;
    }
    let own = one.application_clock(world.now);
    let member = &mut grid.members[node];
    if let (Some(iteration), true) = (bulk.iteration, bulk.left.is_empty()) {
        match member.node.take(own, member.cache, iteration) {
            Ok(Next::Items(items)) => {
                let keys: Vec<Bytes> = items.into_iter().map(|item| item.key).collect();
                keys.into_iter().for_each(|key| submit(world, nth, key, remove(Condition::Always, false)));
                world.schedule(world.now, Turn::Clear(nth));
            }
            Ok(Next::Nothing) => {}
            Ok(Next::End { .. }) => bulk.iteration = None,
            Err(_) => (bulk.iteration, bulk.is_failed) = (None, true),
        }
    }
    judge(world, nth);
    finish(world, nth);
    world.work(node);
}

fn submit(world: &mut GridWorld, nth: usize, key: Bytes, action: Action) {
    let node = world.app.bulk[nth].node;
    let at = operations::submit(world, node, key, action);
    let grid = &mut world.app;
    let operation = &mut grid.history[at];
    operation.is_of_bulk = true;
    match &operation.result {
        None => drop(grid.bulk[nth].left.insert(at)),
        Some(Err(_)) => grid.bulk[nth].is_failed = true,
        Some(Ok(_)) => {}
    }
}

pub(super) fn note_end(world: &mut GridWorld, at: usize) {
    let grid = &mut world.app;
    let Some(nth) = grid.bulk.iter().rposition(|one| one.left.contains(&at)) else { return };
    let is_done = matches!(&grid.history[at].result, Some(Ok(Outcome::Read(_) | Outcome::Written(_))));
    let bulk = &mut grid.bulk[nth];
    bulk.left.remove(&at);
    bulk.is_failed |= !is_done;
    if bulk.iteration.is_some() && bulk.left.is_empty() {
        return world.schedule(world.now, Turn::Clear(nth));
    }
    finish(world, nth);
}

fn finish(world: &mut GridWorld, nth: usize) {
    let bulk = &mut world.app.bulk[nth];
    if bulk.is_over || bulk.iteration.is_some() || !bulk.left.is_empty() {
        return;
    }
    bulk.is_over = true;
    bulk.ended = (!bulk.is_failed).then_some(world.now);
    let client = bulk.client;
    judge(world, nth);
    think(world, client);
}

pub(super) fn judge_clears(world: &mut GridWorld) {
    let bulk = world.app.bulk.iter().enumerate();
    let open: Vec<usize> = bulk.filter(|(_, one)| one.is_clear && !one.is_over).map(|(nth, _)| nth).collect();
    open.into_iter().for_each(|nth| judge(world, nth));
}

fn judge(world: &mut GridWorld, nth: usize) {
    let sources = outdated_members::iteration_sources(world, world.app.bulk[nth].node);
    let grid = &mut world.app;
    grid.bulk[nth].is_excused |= sources.iter().any(|source| grid.left_out.contains_key(source));
}
