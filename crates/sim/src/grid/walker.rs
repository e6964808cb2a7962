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
const WALKERS: usize = 2;

/// The longest pause between two iterations.
const REST: Duration = Duration::from_millis(300);

/// The longest time that a reader takes for the entries that it has received.
const LOOK: Duration = Duration::from_millis(15);

/// The interval at which a reader checks whether its member goes on.
const PAUSE: Duration = Duration::from_millis(100);

/// An iteration as its reader saw it.
#[derive(Clone, Debug)]
pub(crate) struct Walk {
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

impl Walk {
    /// Returns whether it covers this segment.
    pub(crate) fn passes(&self, segment: Segment) -> bool {
        self.publication.segments.as_ref().is_none_or(|wanted| wanted.contains(&segment))
    }
}

/// A reader.
#[derive(Clone, Copy)]
struct Walker {
    node: usize,
    /// The iteration, and its index among all.
    current: Option<(IterationId, usize)>,
}

/// All readers of a run, and their iterations.
pub(crate) struct Walkers {
    rng: Rng,
    all: Vec<Walker>,
    pub(crate) walks: Vec<Walk>,
}

impl Walkers {
    pub(crate) fn new(rng: Rng) -> Self {
        Self { rng, all: Vec::new(), walks: Vec::new() }
    }

    /// Returns the number of completed iterations, and of failed ones.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let of = |is_good: bool| {
            let is_it = |walk: &&Walk| walk.result.as_ref().is_some_and(|result| result.is_ok() == is_good);
            self.walks.iter().filter(is_it).count()
        };
        (of(true), of(false))
    }

    /// Returns the running iterations, as indices among all.
    fn running(&self) -> impl Iterator<Item = usize> {
        self.all.iter().filter_map(|walker| walker.current.map(|(_, at)| at))
    }

    fn begin(&mut self, walker: usize, id: IterationId, publication: Publication, now: Time) -> usize {
        let at = self.walks.len();
        self.walks.push(Walk {
            node: self.all[walker].node,
            publication,
            began: now,
            ended: None,
            result: None,
            found: Vec::new(),
            held: 0,
            excused_since: None,
        });
        self.all[walker].current = Some((id, at));
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
    pub(super) fn add_walkers(&mut self, node: usize) {
        let Some(walkers) = self.grid.as_mut().and_then(|grid| grid.walkers.as_mut()) else { return };
        let first = walkers.all.len();
        walkers.all.resize_with(first + WALKERS, || Walker { node, current: None });
        for walker in first..first + WALKERS {
            self.rest(walker, REST);
        }
    }

    /// Begins one more iteration by the first reader of every live member, once the cluster is quiet. Returns the first
    /// iteration's index among all, if there are readers.
    pub(super) fn begin_last_walks(&mut self) -> Option<usize> {
        let grid = self.grid.as_mut()?;
        let walkers = grid.walkers.as_mut()?;
        let first = walkers.walks.len();
        let mut begun = Vec::new();
        for walker in (0..walkers.all.len()).step_by(WALKERS) {
            let node = walkers.all[walker].node;
            if !self.nodes[node].is_alive() {
                continue;
            }
            let Some(member) = &mut self.nodes[node].member else { continue };
            let publication = Publication { batch: 7, ..Publication::default() };
            if let Ok(id) = member.node.iterate(member.cache, publication.clone()) {
                walkers.begin(walker, id, publication, self.now);
                begun.push(walker);
            }
        }
        for walker in begun {
            self.walk_at(self.now, walker);
        }
        Some(first)
    }

    fn rest(&mut self, walker: usize, most: Duration) {
        let Some(walkers) = self.grid.as_mut().and_then(|grid| grid.walkers.as_mut()) else { return };
        let after = walkers.rng.duration(Duration::ZERO, most);
        self.walk_at(self.now + after, walker);
    }

    /// Wakes a reader for which entries have arrived.
    pub(super) fn fetched(&mut self, node: usize, iteration: IterationId) {
        let Some(walkers) = self.grid.as_ref().and_then(|grid| grid.walkers.as_ref()) else { return };
        let is_it = |walker: &Walker| {
            walker.node == node && walker.current.is_some_and(|(current, _)| current == iteration)
        };
        if let Some(walker) = walkers.all.iter().position(is_it) {
            self.walk_at(self.now, walker);
        }
    }

    /// Runs a reader's turn.
    pub(crate) fn walk(&mut self, walker: usize) {
        let Some(grid) = &mut self.grid else { return };
        let is_busy = grid.is_busy;
        let Some(walkers) = &mut grid.walkers else { return };
        let Walker { node, current } = walkers.all[walker];
        let one = &mut self.nodes[node];
        let own = one.member_clock(self.now);
        if !one.is_alive() {
            walkers.all[walker].current = None;
            return;
        }
        if one.is_paused {
            return self.walk_at(self.now + PAUSE, walker);
        }
        let Some(member) = &mut one.member else { return };
        let (id, at) = match current {
            Some(current) => current,
            None if !is_busy || member.is_left => return,
            None => {
                let publication = walkers.draw(grid.config.segments);
                let Ok(id) = member.node.iterate(member.cache, publication.clone()) else {
                    return self.walk_at(self.now + PAUSE, walker);
                };
                (id, walkers.begin(walker, id, publication, self.now))
            }
        };
        let walk = &mut walkers.walks[at];
        if is_busy && walkers.rng.chance(0.01) {
            // Its reader stops early.
            member.node.cancel(member.cache, id);
            walk.ended = Some(self.now);
            walkers.all[walker].current = None;
            return self.rest(walker, REST);
        }
        let taken = member.node.take(own, member.cache, id);
        walk.held = walk.held.max(member.node.unconsumed(member.cache, id));
        let result = match taken {
            Ok(Next::Items(items)) => {
                walk.found.extend(items.into_iter().map(|item| (item.key, item.version, item.value)));
                self.rest(walker, LOOK);
                None
            }
            Ok(Next::Nothing) => None,
            Ok(Next::End { count }) => Some(Ok(count)),
            Err(error) => Some(Err(error)),
        };
        self.judge_walk(at);
        if let Some(result) = result {
            self.end_walk(walker, at, result);
        }
        self.work(node);
    }

    fn end_walk(&mut self, walker: usize, at: usize, result: Result<u64, IterationError>) {
        let now = self.now;
        let Some(grid) = &mut self.grid else { return };
        let Some(walkers) = &mut grid.walkers else { return };
        let walk = &mut walkers.walks[at];
        if grid.tells_all {
            let text = format!(
                "{}: walk {:?} {:?} since {:?}: {} of {result:?}{}",
                self.nodes[walk.node].name,
                walk.publication.projection,
                walk.publication.guarantee,
                walk.began,
                walk.found.len(),
                if walk.excused_since.is_some() { " (left out)" } else { "" }
            );
            grid.story.push((now, text));
        }
        walk.ended = Some(now);
        walk.result = Some(result);
        walkers.all[walker].current = None;
        self.rest(walker, REST);
    }

    /// Marks the running iterations that may get entries from a member that was removed from the topology.
    pub(super) fn judge_walks(&mut self) {
        let walkers = self.grid.as_ref().and_then(|grid| grid.walkers.as_ref());
        let running: Vec<usize> = walkers.map(|walkers| walkers.running().collect()).unwrap_or_default();
        running.into_iter().for_each(|at| self.judge_walk(at));
    }

    fn judge_walk(&mut self, at: usize) {
        let walks = |world: &Self| Some(world.grid.as_ref()?.walkers.as_ref()?.walks[at].node);
        let Some(node) = walks(self) else { return };
        let givers = self.givers(node);
        let Some(grid) = &mut self.grid else { return };
        let since = givers.iter().filter_map(|giver| grid.left_out.get(giver)).min().copied();
        if let Some(walk) = grid.walkers.as_mut().map(|walkers| &mut walkers.walks[at]) {
            walk.excused_since = walk.excused_since.into_iter().chain(since).min();
        }
    }
}
