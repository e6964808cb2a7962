//! Readers of iterations: each iterates over the cache again and again, and remembers the returned entries.
//!
//! They draw from a random generator of their own, so that a seed's members, clients and faults are drawn as they would be
//! without iterations.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use consort_grid::{
    Guarantee, IterationError, IterationId, Next, Projection, Publication, ReadFrom, Segment, Version,
};
use consort_group::{Rng, Time};

use crate::world::World;

/// The number of readers of each member.
const ITERATING_CLIENTS: usize = 2;

/// The longest pause between two iterations.
const REST: Duration = Duration::from_millis(300);

/// The longest time that a reader takes for the entries that it has received.
const LOOK: Duration = Duration::from_millis(15);

/// The interval at which a reader checks whether its member goes on.
const PAUSE: Duration = Duration::from_millis(100);

/// An iteration as its reader saw it.
#[derive(Clone, Debug)]
pub(crate) struct Iteration {
    pub(crate) node: usize,
    pub(crate) publication: Publication,
    pub(crate) began: Time,
    /// `None` = it goes on, or its member has ended before.
    pub(crate) ended: Option<Time>,
    /// The result: the number of entries, or the error. `None` = as `ended`, or the reader stopped early.
    pub(crate) result: Option<Result<u64, IterationError>>,
    /// The returned entries, in their order.
    pub(crate) found: Vec<(Bytes, Version, Bytes)>,
    /// The maximum of entries that were requested or held.
    pub(crate) held: usize,
    /// Since when it may have entries from a member that was removed from the topology and did not know it.
    pub(crate) excused_since: Option<Time>,
}

impl Iteration {
    /// Returns whether it covers this segment.
    pub(crate) fn passes(&self, segment: Segment) -> bool {
        self.publication.segments.as_ref().is_none_or(|wanted| wanted.contains(&segment))
    }
}

/// A reader.
#[derive(Clone, Copy)]
struct IteratingClient {
    node: usize,
    /// The iteration, and its index among all.
    current: Option<(IterationId, usize)>,
}

/// All readers of a run, and their iterations.
pub(crate) struct IteratingClients {
    rng: Rng,
    all: Vec<IteratingClient>,
    pub(crate) iterations: Vec<Iteration>,
}

impl IteratingClients {
    pub(crate) fn new(rng: Rng) -> Self {
        Self { rng, all: Vec::new(), iterations: Vec::new() }
    }

    /// Returns the number of completed iterations, and of failed ones.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let of = |is_good: bool| {
            let is_it = |iteration: &&Iteration| {
                iteration.result.as_ref().is_some_and(|result| result.is_ok() == is_good)
            };
            self.iterations.iter().filter(is_it).count()
        };
        (of(true), of(false))
    }

    /// Returns the running iterations, as indices among all.
    fn running(&self) -> impl Iterator<Item = usize> {
        self.all.iter().filter_map(|iterating_client| iterating_client.current.map(|(_, at)| at))
    }

    fn begin(
        &mut self,
        iterating_client: usize,
        id: IterationId,
        publication: Publication,
        now: Time,
    ) -> usize {
        let at = self.iterations.len();
        self.iterations.push(Iteration {
            node: self.all[iterating_client].node,
            publication,
            began: now,
            ended: None,
            result: None,
            found: Vec::new(),
            held: 0,
            excused_since: None,
        });
        self.all[iterating_client].current = Some((id, at));
        at
    }

    fn draw(&mut self, segments: u16) -> Publication {
        let rng = &mut self.rng;
        let guarantee = match rng.below(10) {
            0 => Guarantee::AtMostOnce,
            1 => Guarantee::AtLeastOnce,
            _ => Guarantee::ExactlyOnce,
        };
        let projection = match rng.below(10) {
            0..7 => Projection::Entries,
            7 | 8 => Projection::Keys,
            _ => Projection::Count,
        };
        let some = rng.chance(0.1).then(|| (0..segments).filter(|_| rng.chance(0.5)).map(Segment));
        let segments = some.map(|some| Arc::from(some.collect::<Vec<_>>()));
        let (batch, lanes) = (rng.between(1, 40) as usize, rng.between(1, 5) as usize);
        // This choice is as good as a drawn one, and earlier seeds stay the same runs.
        let whole = batch.is_multiple_of(2);
        let from = if batch.is_multiple_of(5) { ReadFrom::Primary } else { ReadFrom::Nearest };
        Publication { projection, guarantee, transform: None, segments, batch, lanes, from, whole }
    }
}

impl World {
    /// Adds the readers of a member that has become usable.
    pub(super) fn add_iterating_clients(&mut self, node: usize) {
        let Some(iterating_clients) = self.grid.as_mut().and_then(|grid| grid.iterating_clients.as_mut())
        else {
            return;
        };
        let first = iterating_clients.all.len();
        iterating_clients
            .all
            .resize_with(first + ITERATING_CLIENTS, || IteratingClient { node, current: None });
        for iterating_client in first..first + ITERATING_CLIENTS {
            self.rest(iterating_client, REST);
        }
    }

    /// Begins one more iteration by the first reader of every live member, once the cluster is quiet. Returns the first
    /// iteration's index among all, if there are readers.
    pub(super) fn begin_last_iterations(&mut self) -> Option<usize> {
        let grid = self.grid.as_mut()?;
        let iterating_clients = grid.iterating_clients.as_mut()?;
        let first = iterating_clients.iterations.len();
        let mut begun = Vec::new();
        for iterating_client in (0..iterating_clients.all.len()).step_by(ITERATING_CLIENTS) {
            let node = iterating_clients.all[iterating_client].node;
            if !self.nodes[node].is_alive() {
                continue;
            }
            let Some(member) = &mut self.nodes[node].member else { continue };
            let publication = Publication { batch: 7, ..Publication::default() };
            if let Ok(id) = member.node.iterate(member.cache, publication.clone()) {
                iterating_clients.begin(iterating_client, id, publication, self.now);
                begun.push(iterating_client);
            }
        }
        for iterating_client in begun {
            self.schedule_iterating_client(self.now, iterating_client);
        }
        Some(first)
    }

    fn rest(&mut self, iterating_client: usize, most: Duration) {
        let Some(iterating_clients) = self.grid.as_mut().and_then(|grid| grid.iterating_clients.as_mut())
        else {
            return;
        };
        let after = iterating_clients.rng.duration(Duration::ZERO, most);
        self.schedule_iterating_client(self.now + after, iterating_client);
    }

    /// Wakes a reader for which entries have arrived.
    pub(super) fn fetched(&mut self, node: usize, iteration: IterationId) {
        let Some(iterating_clients) = self.grid.as_ref().and_then(|grid| grid.iterating_clients.as_ref())
        else {
            return;
        };
        let is_it = |iterating_client: &IteratingClient| {
            iterating_client.node == node
                && iterating_client.current.is_some_and(|(current, _)| current == iteration)
        };
        if let Some(iterating_client) = iterating_clients.all.iter().position(is_it) {
            self.schedule_iterating_client(self.now, iterating_client);
        }
    }

    /// Runs a reader's turn.
    pub(crate) fn run_iterating_client(&mut self, iterating_client: usize) {
        let Some(grid) = &mut self.grid else { return };
        let is_busy = grid.is_busy;
        let Some(iterating_clients) = &mut grid.iterating_clients else { return };
        let IteratingClient { node, current } = iterating_clients.all[iterating_client];
        let one = &mut self.nodes[node];
        let own = one.member_clock(self.now);
        if !one.is_alive() {
            iterating_clients.all[iterating_client].current = None;
            return;
        }
        if one.is_paused {
            return self.schedule_iterating_client(self.now + PAUSE, iterating_client);
        }
        let Some(member) = &mut one.member else { return };
        let (id, at) = match current {
            Some(current) => current,
            None if !is_busy || member.is_left => return,
            None => {
                let publication = iterating_clients.draw(grid.config.segments);
                let Ok(id) = member.node.iterate(member.cache, publication.clone()) else {
                    return self.schedule_iterating_client(self.now + PAUSE, iterating_client);
                };
                (id, iterating_clients.begin(iterating_client, id, publication, self.now))
            }
        };
        let iteration = &mut iterating_clients.iterations[at];
        if is_busy && iterating_clients.rng.chance(0.01) {
            // Its reader stops early.
            member.node.cancel(member.cache, id);
            iteration.ended = Some(self.now);
            iterating_clients.all[iterating_client].current = None;
            return self.rest(iterating_client, REST);
        }
        let taken = member.node.take(own, member.cache, id);
        iteration.held = iteration.held.max(member.node.unconsumed(member.cache, id));
        let result = match taken {
            Ok(Next::Items(items)) => {
                iteration.found.extend(items.into_iter().map(|item| (item.key, item.version, item.value)));
                self.rest(iterating_client, LOOK);
                None
            }
            Ok(Next::Nothing) => None,
            Ok(Next::End { count }) => Some(Ok(count)),
            Err(error) => Some(Err(error)),
        };
        self.judge_iteration(at);
        if let Some(result) = result {
            self.end_iteration(iterating_client, at, result);
        }
        self.work(node);
    }

    fn end_iteration(&mut self, iterating_client: usize, at: usize, result: Result<u64, IterationError>) {
        let now = self.now;
        let Some(grid) = &mut self.grid else { return };
        let Some(iterating_clients) = &mut grid.iterating_clients else { return };
        let iteration = &mut iterating_clients.iterations[at];
        if grid.with_operations {
            let text = format!(
                "{}: walk {:?} {:?} since {:?}: {} of {result:?}{}",
                self.nodes[iteration.node].name,
                iteration.publication.projection,
                iteration.publication.guarantee,
                iteration.began,
                iteration.found.len(),
                if iteration.excused_since.is_some() { " (removed)" } else { "" }
            );
            grid.story.push((now, text));
        }
        iteration.ended = Some(now);
        iteration.result = Some(result);
        iterating_clients.all[iterating_client].current = None;
        self.rest(iterating_client, REST);
    }

    /// Marks the running iterations that may get entries from a member that was removed from the topology.
    pub(super) fn judge_iterations(&mut self) {
        let iterating_clients = self.grid.as_ref().and_then(|grid| grid.iterating_clients.as_ref());
        let running: Vec<usize> = iterating_clients
            .map(|iterating_clients| iterating_clients.running().collect())
            .unwrap_or_default();
        running.into_iter().for_each(|at| self.judge_iteration(at));
    }

    fn judge_iteration(&mut self, at: usize) {
        let iterations =
            |world: &Self| Some(world.grid.as_ref()?.iterating_clients.as_ref()?.iterations[at].node);
        let Some(node) = iterations(self) else { return };
        let iteration_sources = self.iteration_sources(node);
        let Some(grid) = &mut self.grid else { return };
        let since = iteration_sources.iter().filter_map(|giver| grid.left_out.get(giver)).min().copied();
        if let Some(iteration) =
            grid.iterating_clients.as_mut().map(|iterating_clients| &mut iterating_clients.iterations[at])
        {
            iteration.excused_since = iteration.excused_since.into_iter().chain(since).min();
        }
    }
}
