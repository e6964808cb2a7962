//! The costs of a cache by the cluster's size. The network is quiet; a distributed cache has two owners and 256
//! segments. Members do one operation at a time, so that no two operations share a message.

use std::time::Duration;

use bytes::Bytes;
use consort_grid::{Action, CacheConfig, Condition, ConsistentHash, Next, Publication, ReadFrom};
use consort_group::Rng;

use super::actions::put;
use super::keys::Keys;
use super::{Grid, GridWorld, operations, settle};
use crate::after_faults::advance;
use crate::faults::{Faults, Mix};
use crate::stock::{Discovery, QUICK, stock};
use crate::world::World;

/// The measurements of one size.
#[derive(Clone, PartialEq, Debug)]
pub struct Growth {
    /// The number of members.
    pub members: usize,
    /// Messages for a put, up to the last acknowledgement.
    pub per_put: f64,
    /// Messages for a read from the nearest owner.
    pub per_read: f64,
    /// Messages for a read from the primary.
    pub per_primary_read: f64,
    /// The most entries that an iteration over the whole cache has requested or holds.
    pub iteration_held: usize,
    /// Copies that move at a join, as a part of all. The ideal is one by the new size.
    pub moved: f64,
    /// Messages of a join, until all members have the new stable topology.
    pub per_join: u64,
    /// A join's duration.
    pub joined_after: Duration,
}

const OPERATIONS: usize = 400;

/// Small beside the entries, so that a reader that holds more is noticed.
const BATCH: usize = 64;

const STEP: Duration = Duration::from_millis(10);

/// Measures a cluster of `members` during operations and the join of one more.
///
/// # Errors
///
/// An unknown stack, or members that do not form a cluster.
pub fn grow(stack_name: &str, members: usize, seed: u64) -> Result<Growth, String> {
    let mut grid = Grid::new(
        CacheConfig::new("growth"),
        Keys { registers: 1, atoms: 1, counters: 1, steady: 0, mortals: 0, idlers: 0 },
    );
    grid.is_busy = false;
    let config = stock(stack_name, QUICK, Discovery::Local)?;
    let mut world = World::new(Rng::new(seed), config, grid);
    let now = world.now;
    let _ = Faults::begin(&mut world, Mix::NONE, members, now);
    for _ in 0..members {
        join(&mut world)?;
    }
    let per_put =
        per_operation(&mut world, &|n| put(Bytes::from(format!("value {n}")), Condition::Always, false))?;
    let per_read = per_operation(&mut world, &|_| Action::Read(ReadFrom::Nearest))?;
    let per_primary_read = per_operation(&mut world, &|_| Action::Read(ReadFrom::Primary))?;
    let iteration_held = iterate_all(&mut world)?;
    let (before, since) = (owners(&world)?, world.now);
    let sent = frames(&world);
    join(&mut world)?;
    let (after, joined_after) = (owners(&world)?, world.now.since(since));
    let copies = |is_counted: &dyn Fn(usize, &consort_group::Address) -> bool| {
        let of = |segment: consort_grid::Segment| {
            let entries = world
                .app
                .members
                .iter()
                .map(|member| member.container.segment_len(segment))
                .max()
                .unwrap_or(0);
            let owners = after.owners(segment).filter(|owner| is_counted(usize::from(segment.0), owner));
            entries * owners.count() as u64
        };
        after.segments().map(of).sum::<u64>()
    };
    let is_new = |segment: usize, owner: &consort_group::Address| {
        !before.owners(consort_grid::Segment(segment as u16)).any(|old| old == owner)
    };
    Ok(Growth {
        members,
        per_put,
        per_read,
        per_primary_read,
        iteration_held,
        moved: copies(&is_new) as f64 / copies(&|_, _| true).max(1) as f64,
        per_join: frames(&world) - sent,
        joined_after,
    })
}

fn iterate_all(world: &mut GridWorld) -> Result<usize, String> {
    let publication = Publication { batch: BATCH, ..Publication::default() };
    let (mut begun, mut held) = (None, 0);
    loop {
        let own = world.nodes[0].application_clock(world.now);
        let member = &mut world.app.members[0];
        let (node, cache) = (&mut member.node, member.cache);
        let id = match begun {
            Some(id) => id,
            None => {
                *begun.insert(node.iterate(cache, publication.clone()).map_err(|error| error.to_string())?)
            }
        };
        let next = node.take(own, cache, id).map_err(|error| error.to_string())?;
        held = held.max(node.unconsumed(cache, id));
        world.work(0);
        match next {
            Next::Items(_) => {}
            Next::Nothing => advance(world, STEP),
            Next::End { count } if count == OPERATIONS as u64 => return Ok(held),
            Next::End { count } => return Err(format!("a walk gave {count} of {OPERATIONS} entries")),
        }
    }
}

fn join(world: &mut GridWorld) -> Result<(), String> {
    let node = world.start()?;
    settle::wait_for(world, node).map_err(|(_, what)| what)?;
    let limit = world.now + Duration::from_secs(60);
    settle::settle(world, limit, Duration::from_secs(60)).map_err(|(_, what)| what)?;
    Ok(())
}

fn owners(world: &GridWorld) -> Result<ConsistentHash, String> {
    let topology = world.app.members.first().and_then(|member| member.topology());
    topology.map(|topology| topology.current.clone()).ok_or_else(|| "no topology".to_owned())
}

fn frames(world: &GridWorld) -> u64 {
    world.app.frames
}

fn per_operation(world: &mut GridWorld, action: &dyn Fn(usize) -> Action) -> Result<f64, String> {
    let before = frames(world);
    for n in 0..OPERATIONS {
        let node = n % world.nodes.len();
        let at = operations::submit(world, node, Bytes::from(format!("key {n}")), action(n));
        advance(world, STEP);
        let result = &world.app.history[at].result;
        if !matches!(result, Some(Ok(_))) {
            return Err(format!("operation {n}: {result:?}"));
        }
    }
    Ok((frames(world) - before) as f64 / OPERATIONS as f64)
}
