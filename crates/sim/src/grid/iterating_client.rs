//! Readers that iterate again and again. Their own random generator leaves a seed's members, clients and
//! faults as without iterations.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use consort_grid::{
    Guarantee, IterationError, IterationId, Next, Projection, Publication, ReadFrom, Segment, Version,
};
use consort_group::{Rng, Time};

use super::turns::Turn;
use super::{GridWorld, outdated_members};

const ITERATING_CLIENTS: usize = 2;

const REST: Duration = Duration::from_millis(300);

/// A reader takes at most this long for the received entries.
const LOOK: Duration = Duration::from_millis(15);

const PAUSE: Duration = Duration::from_millis(100);

#[derive(Clone, Debug)]
pub(crate) struct Iteration {
    pub(crate) node: usize,
    pub(crate) publication: Publication,
    pub(crate) began: Time,
    /// `None` if it goes on, or its member has ended before.
    pub(crate) ended: Option<Time>,
    /// `None` as `ended`, or if the reader stopped early.
    pub(crate) result: Option<Result<u64, IterationError>>,
    pub(crate) found: Vec<(Bytes, Version, Bytes)>,
    pub(crate) held: usize,
    /// Since when it may have entries from a removed member.
    pub(crate) excused_since: Option<Time>,
}

impl Iteration {
    pub(crate) fn passes(&self, segment: Segment) -> bool {
        self.publication.segments.as_ref().is_none_or(|wanted| wanted.contains(&segment))
    }
}

#[derive(Clone, Copy)]
struct IteratingClient {
    node: usize,
    current: Option<(IterationId, usize)>,
}

pub(crate) struct IteratingClients {
    rng: Rng,
    all: Vec<IteratingClient>,
    pub(crate) iterations: Vec<Iteration>,
}

impl IteratingClients {
    pub(crate) fn new(rng: Rng) -> Self {
        Self { rng, all: Vec::new(), iterations: Vec::new() }
    }

    pub(crate) fn counts(&self) -> (usize, usize) {
        let of = |is_good: bool| {
            let is_it = |iteration: &&Iteration| {
                iteration.result.as_ref().is_some_and(|result| result.is_ok() == is_good)
            };
            self.iterations.iter().filter(is_it).count()
        };
        (of(true), of(false))
    }

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

pub(super) fn add(world: &mut GridWorld, node: usize) {
    let Some(clients) = &mut world.app.iterating_clients else { return };
    let first = clients.all.len();
    clients.all.resize_with(first + ITERATING_CLIENTS, || IteratingClient { node, current: None });
    for client in first..first + ITERATING_CLIENTS {
        rest(world, client, REST);
    }
}

pub(super) fn begin_last_iterations(world: &mut GridWorld) -> Option<usize> {
    let grid = &mut world.app;
    let clients = grid.iterating_clients.as_mut()?;
    let first = clients.iterations.len();
    let mut begun = Vec::new();
    for client in (0..clients.all.len()).step_by(ITERATING_CLIENTS) {
        let node = clients.all[client].node;
        if !world.nodes[node].is_alive() {
            continue;
        }
        let member = &mut grid.members[node];
        let publication = Publication { batch: 7, ..Publication::default() };
        if let Ok(id) = member.node.iterate(member.cache, publication.clone()) {
            clients.begin(client, id, publication, world.now);
            begun.push(client);
        }
    }
    for client in begun {
        world.schedule(world.now, Turn::Iteration(client));
    }
    Some(first)
}

fn rest(world: &mut GridWorld, client: usize, most: Duration) {
    let Some(clients) = &mut world.app.iterating_clients else { return };
    let after = clients.rng.duration(Duration::ZERO, most);
    world.schedule(world.now + after, Turn::Iteration(client));
}

pub(super) fn wake(world: &mut GridWorld, node: usize, iteration: IterationId) {
    let Some(clients) = &world.app.iterating_clients else { return };
    let is_it = |client: &IteratingClient| {
        client.node == node && client.current.is_some_and(|(current, _)| current == iteration)
    };
    if let Some(client) = clients.all.iter().position(is_it) {
        world.schedule(world.now, Turn::Iteration(client));
    }
}

pub(super) fn run(world: &mut GridWorld, client: usize) {
    let grid = &mut world.app;
    let is_busy = grid.is_busy;
    let Some(clients) = &mut grid.iterating_clients else { return };
    let IteratingClient { node, current } = clients.all[client];
    let one = &world.nodes[node];
    let own = one.application_clock(world.now);
    if !one.is_alive() {
        clients.all[client].current = None;
        return;
    }
    if one.is_paused {
        return world.schedule(world.now + PAUSE, Turn::Iteration(client));
    }
    let member = &mut grid.members[node];
    let (id, at) = match current {
        Some(current) => current,
        None if !is_busy || member.is_left => return,
        None => {
            let publication = clients.draw(grid.config.segments);
            let Ok(id) = member.node.iterate(member.cache, publication.clone()) else {
                return world.schedule(world.now + PAUSE, Turn::Iteration(client));
            };
            (id, clients.begin(client, id, publication, world.now))
        }
    };
    let iteration = &mut clients.iterations[at];
    if is_busy && clients.rng.chance(0.01) {
        // Its reader stops early.
        member.node.cancel(member.cache, id);
        iteration.ended = Some(world.now);
        clients.all[client].current = None;
        return rest(world, client, REST);
    }
    let taken = member.node.take(own, member.cache, id);
    iteration.held = iteration.held.max(member.node.unconsumed(member.cache, id));
    let result = match taken {
        Ok(Next::Items(items)) => {
            iteration.found.extend(items.into_iter().map(|item| (item.key, item.version, item.value)));
            rest(world, client, LOOK);
            None
        }
        Ok(Next::Nothing) => None,
        Ok(Next::End { count }) => Some(Ok(count)),
        Err(error) => Some(Err(error)),
    };
    judge(world, at);
    if let Some(result) = result {
        end(world, client, at, result);
    }
    world.work(node);
}

fn end(world: &mut GridWorld, client: usize, at: usize, result: Result<u64, IterationError>) {
    let (now, grid) = (world.now, &mut world.app);
    let Some(clients) = &mut grid.iterating_clients else { return };
    let iteration = &mut clients.iterations[at];
    if grid.with_operations {
        let text = format!(
            "{}: walk {:?} {:?} since {:?}: {} of {result:?}{}",
            world.nodes[iteration.node].name,
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
    clients.all[client].current = None;
    rest(world, client, REST);
}

/// Marks those that may get entries from a removed member.
pub(super) fn judge_running(world: &mut GridWorld) {
    let clients = world.app.iterating_clients.iter();
    let running: Vec<usize> = clients.flat_map(IteratingClients::running).collect();
    running.into_iter().for_each(|at| judge(world, at));
}

fn judge(world: &mut GridWorld, at: usize) {
    let Some(clients) = &world.app.iterating_clients else { return };
    let sources = outdated_members::iteration_sources(world, clients.iterations[at].node);
    let grid = &mut world.app;
    let since = sources.iter().filter_map(|source| grid.left_out.get(source)).min().copied();
    if let Some(clients) = &mut grid.iterating_clients {
        let iteration = &mut clients.iterations[at];
        iteration.excused_since = iteration.excused_since.into_iter().chain(since).min();
    }
}
