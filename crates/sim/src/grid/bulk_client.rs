//! Client operations on several keys: reads, puts or removals of many keys, and clears, as `cache` does them: many concurrent
//! operations, and for a clear an iteration over all keys and their removals.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use consort_grid::{
    Action, CacheMode, Change, Condition, IterationId, Next, Outcome, Projection, Publication, ReadFrom,
    Write,
};
use consort_group::Time;

use super::client::put;
use super::keys::Kind;
use crate::world::World;

/// The probability that a client's next turn uses many keys, and their limit.
const MANY: f64 = 0.03;
const MANY_MAX: u64 = 20;

/// The probability that it is a clear.
const CLEAR: f64 = 0.004;

/// The number of keys that a clear fetches at a time.
const CLEAR_AT_ONCE: usize = 16;

/// The interval at which a clear checks whether its member goes on.
const PAUSE: Duration = Duration::from_millis(100);

/// An operation on several keys.
pub(crate) struct BulkOperation {
    client: usize,
    pub(crate) node: usize,
    pub(crate) began: Time,
    /// When it was acknowledged, if it was.
    pub(crate) ended: Option<Time>,
    pub(crate) is_clear: bool,
    /// The iteration over the remaining keys, if it is a clear.
    iteration: Option<IterationId>,
    /// Indices of its unfinished operations in the history.
    left: BTreeSet<usize>,
    is_over: bool,
    is_failed: bool,
    /// Whether it may have keys from a member that was removed from the topology and did not know it.
    pub(crate) is_excused: bool,
}

impl World {
    /// Draws whether a client's turn is an operation on several keys, and begins it.
    pub(super) fn begin_bulk(&mut self, client: usize) -> bool {
        let Some(grid) = &mut self.grid else { return false };
        let is_clear = grid.workload.clears && grid.own.chance(CLEAR);
        if !(is_clear || grid.workload.many && grid.own.chance(MANY)) {
            return false;
        }
        let node = grid.clients[client].node;
        let nth = grid.bulk.len();
        grid.bulk.push(BulkOperation {
            client,
            node,
            began: self.now,
            ended: None,
            is_clear,
            iteration: None,
            left: BTreeSet::new(),
            is_over: false,
            is_failed: false,
            is_excused: false,
        });
        if is_clear {
            self.begin_clear(nth);
        } else {
            self.begin_many(nth);
        }
        true
    }

    fn begin_many(&mut self, nth: usize) {
        let Some(grid) = &mut self.grid else { return };
        let (keys, rng) = (grid.keys, &mut grid.own);
        let (count, what) = (rng.between(2, MANY_MAX), rng.below(4));
        let all: Vec<Bytes> = (0..count).map(|_| keys.any(rng)).collect();
        // Other keys have a writer of their own, or are counters.
        let free = |key: &Bytes| matches!(Kind::of(key), Kind::Register | Kind::Atom | Kind::Mortal);
        for key in all.into_iter().filter(free) {
            let value = self.grid.as_ref().map_or(0, |grid| grid.history.len());
            let action = match what {
                0 => remove(),
                1 | 2 => put(Bytes::from(format!("v{value}")), Condition::Always, false),
                _ => Action::Read(ReadFrom::Primary),
            };
            self.submit_bulk(nth, key, action);
        }
        self.finish_bulk(nth);
    }

    fn begin_clear(&mut self, nth: usize) {
        let Some(grid) = &mut self.grid else { return };
        let node = grid.bulk[nth].node;
        if grid.config.mode == CacheMode::Invalidation {
            let (condition, change) = (Condition::Always, Change::Clear);
            self.submit_bulk(
                nth,
                Bytes::new(),
                Action::Write(Write { condition, change, wants_previous: false }),
            );
            return self.finish_bulk(nth);
        }
        let keys =
            Publication { projection: Projection::Removable, batch: CLEAR_AT_ONCE, ..Publication::default() };
        let member = self.nodes[node].member.as_mut();
        let iteration = member.and_then(|member| member.node.iterate(member.cache, keys).ok());
        let bulk = &mut grid.bulk[nth];
        bulk.is_failed = iteration.is_none();
        bulk.iteration = iteration;
        self.judge_bulk(nth);
        self.schedule_clear(self.now, nth);
    }

    /// Wakes a clear for which keys have arrived.
    pub(super) fn fetched_for_clear(&mut self, node: usize, iteration: IterationId) {
        let bulk = self.grid.iter().flat_map(|grid| &grid.bulk);
        let found = bulk.enumerate().find(|(_, one)| one.node == node && one.iteration == Some(iteration));
        if let Some((nth, _)) = found {
            self.schedule_clear(self.now, nth);
        }
    }

    /// Continues a clear.
    pub(crate) fn clear(&mut self, nth: usize) {
        let Some(grid) = &mut self.grid else { return };
        let bulk = &mut grid.bulk[nth];
        let one = &mut self.nodes[bulk.node];
        if one.is_paused {
            return self.schedule_clear(self.now + PAUSE, nth);
        }
        let own = one.member_clock(self.now);
        let Some(member) = one.member.as_mut().filter(|_| one.stack.is_some()) else { return };
        if let (Some(iteration), true) = (bulk.iteration, bulk.left.is_empty()) {
            match member.node.take(own, member.cache, iteration) {
                Ok(Next::Items(items)) => {
                    let keys: Vec<Bytes> = items.into_iter().map(|item| item.key).collect();
                    keys.into_iter().for_each(|key| self.submit_bulk(nth, key, remove()));
                    self.schedule_clear(self.now, nth);
                }
                Ok(Next::Nothing) => {}
                Ok(Next::End { .. }) => bulk.iteration = None,
                Err(_) => (bulk.iteration, bulk.is_failed) = (None, true),
            }
        }
        self.judge_bulk(nth);
        self.finish_bulk(nth);
        let node = self.grid.as_ref().map_or(0, |grid| grid.bulk[nth].node);
        self.work(node);
    }

    fn submit_bulk(&mut self, nth: usize, key: Bytes, action: Action) {
        let Some(node) = self.grid.as_ref().map(|grid| grid.bulk[nth].node) else { return };
        let at = self.submit(node, None, key, action);
        let Some(grid) = &mut self.grid else { return };
        if let Some(operation) = grid.history.get_mut(at) {
            operation.is_of_bulk = true;
        }
        match grid.history.get(at).map(|operation| operation.result.as_ref()) {
            Some(None) => drop(grid.bulk[nth].left.insert(at)),
            Some(Some(Err(_))) => grid.bulk[nth].is_failed = true,
            _ => {}
        }
    }

    /// Handles the end of an operation that may be one of several.
    pub(super) fn note_bulk_end(&mut self, at: usize) {
        let Some(grid) = &mut self.grid else { return };
        let Some(nth) = grid.bulk.iter().rposition(|one| one.left.contains(&at)) else { return };
        let is_done = matches!(&grid.history[at].result, Some(Ok(Outcome::Read(_) | Outcome::Written(_))));
        let bulk = &mut grid.bulk[nth];
        bulk.left.remove(&at);
        bulk.is_failed |= !is_done;
        if bulk.iteration.is_some() && bulk.left.is_empty() {
            return self.schedule_clear(self.now, nth);
        }
        self.finish_bulk(nth);
    }

    fn finish_bulk(&mut self, nth: usize) {
        let Some(grid) = &mut self.grid else { return };
        let bulk = &mut grid.bulk[nth];
        if bulk.is_over || bulk.iteration.is_some() || !bulk.left.is_empty() {
            return;
        }
        bulk.is_over = true;
        bulk.ended = (!bulk.is_failed).then_some(self.now);
        let client = bulk.client;
        self.judge_bulk(nth);
        self.think(client);
    }

    /// Marks the running clears that may get keys from a member that was removed from the topology.
    pub(super) fn judge_clears(&mut self) {
        let bulk = self.grid.iter().flat_map(|grid| grid.bulk.iter().enumerate());
        let open: Vec<usize> =
            bulk.filter(|(_, one)| one.is_clear && !one.is_over).map(|(nth, _)| nth).collect();
        open.into_iter().for_each(|nth| self.judge_bulk(nth));
    }

    fn judge_bulk(&mut self, nth: usize) {
        let Some(node) = self.grid.as_ref().map(|grid| grid.bulk[nth].node) else { return };
        let iteration_sources = self.iteration_sources(node);
        let Some(grid) = &mut self.grid else { return };
        let is_excused = iteration_sources.iter().any(|giver| grid.left_out.contains_key(giver));
        grid.bulk[nth].is_excused |= is_excused;
    }
}

fn remove() -> Action {
    let (condition, change) = (Condition::Always, Change::Remove);
    Action::Write(Write { condition, change, wants_previous: false })
}
