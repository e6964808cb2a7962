use std::time::Duration;

use consort_grid::{Availability, CapacityFactor, PartitionHandling};

use super::GridWorld;
use super::fault_preconditions::{grid_state, is_settled};
use super::member::alive;
use super::settle::{self, live_nodes};
use super::stores::{self, Stores};
use crate::after_faults::advance;
use crate::checks::Broken;
use crate::faults::Faults;

/// Segments move, and the last member keeps them.
const END_LIMIT: Duration = Duration::from_secs(60);

/// A leaving member alone with a degraded cache waits this long, as in `cache`.
const ALONE_LIMIT: Duration = Duration::from_secs(8);

/// Members have to find each other first.
const BEGIN_LIMIT: Duration = Duration::from_secs(60);

const SETTLE_LIMIT: Duration = Duration::from_secs(30);

const TRIES: usize = 50;

pub(super) fn restart_count(world: &GridWorld) -> u64 {
    world.app.stores.as_ref().map_or(0, |stores| stores.kind.ends)
}

pub(super) fn uptime(world: &mut GridWorld, longest: Duration) -> Duration {
    let uptime = draw_from_stores(world, |stores| stores.rng.duration(Duration::from_secs(1), longest));
    uptime.unwrap_or(longest)
}

/// Every member of a topology can come back with its entries, and no two partitions have gone on without
/// knowing of each other.
fn may_end(world: &GridWorld) -> bool {
    let grid = &world.app;
    let is_last = |node: usize| world.nodes[node].is_alive() || world.may_restart(node);
    let comes_back = |address| grid.indices.get(address).is_some_and(|&node| is_last(node));
    let mut topologies = alive(world).filter_map(|(_, member)| member.topology()).peekable();
    topologies.peek().is_some()
        && topologies.all(|topology| topology.addresses().all(comes_back))
        && (grid.config.partitions != PartitionHandling::AllowReadWrites || is_settled(world))
}

/// Only the members that stay count.
fn is_together(world: &GridWorld) -> bool {
    let staying = || alive(world).filter(|(node, _)| !node.is_leaving);
    let topologies = || staying().filter_map(|(_, member)| member.topology());
    let first = topologies().next();
    topologies().all(|topology| first.is_some_and(|first| first.split_points == topology.split_points))
        && topologies().all(|topology| staying().all(|(node, _)| topology.contains(&node.address)))
}

fn draw_from_stores<R>(world: &mut GridWorld, draw: impl FnOnce(&mut Stores) -> R) -> Option<R> {
    world.app.stores.as_mut().map(draw)
}

pub(super) fn stop_and_restart_all(world: &mut GridWorld) -> Result<(), Broken> {
    let mut tries = 0;
    while !may_end(world) {
        advance(world, Duration::from_millis(20));
        tries += 1;
        if tries == TRIES {
            world.note_story("the cluster is not to end now".to_owned());
            return Ok(());
        }
    }
    let kills = draw_from_stores(world, |stores| stores.kind.outlives_kills() && stores.rng.chance(0.7))
        == Some(true);
    if kills {
        kill_all(world);
        Faults::end(world);
    } else {
        Faults::end(world);
        // A member that leaves cannot hand entries over to unreachable members, or before the loss of others is known.
        let limit = world.now + BEGIN_LIMIT;
        settle::settle(world, limit, SETTLE_LIMIT)?;
        shut_down(world)?;
    }
    let pause = draw_from_stores(world, |stores| stores.rng.duration(Duration::ZERO, Duration::from_secs(8)));
    advance(world, pause.unwrap_or_default());
    let outlives_kills = draw_from_stores(world, |stores| stores.kind.outlives_kills()) == Some(true);
    start_all(world)?;
    while outlives_kills && draw_from_stores(world, |stores| stores.rng.chance(0.3)) == Some(true) {
        let moment =
            draw_from_stores(world, |stores| stores.rng.duration(Duration::ZERO, Duration::from_secs(2)));
        advance(world, moment.unwrap_or_default());
        // Once the other members have removed a member, it has no state to come back with.
        if !may_end(world) && live_nodes(world).iter().any(|&node| has_topology(world, node)) {
            break;
        }
        kill_all(world);
        start_all(world)?;
    }
    wait_until_all_open(world)
}

fn has_topology(world: &GridWorld, node: usize) -> bool {
    world.app.members[node].topology().is_some()
}

fn kill_all(world: &mut GridWorld) {
    world.note_story("all members are killed".to_owned());
    for node in live_nodes(world) {
        world.crash(node);
    }
    discard_topologies(world);
}

fn discard_topologies(world: &mut GridWorld) {
    let (count, now, grid) = (world.nodes.len(), world.now, &mut world.app);
    grid.newest.clear();
    grid.elected = None;
    grid.left_out.clear();
    // Stores do not know an entry's last use.
    grid.lost.extend((0..count).map(|node| (node, now)));
}

fn shut_down(world: &mut GridWorld) -> Result<(), Broken> {
    world.note_story("all members are shut down".to_owned());
    let limit = world.now + END_LIMIT;
    let passivates = draw_from_stores(world, |stores| stores.kind.passivation) == Some(true);
    let parts = world.app.config.partitions == PartitionHandling::AllowReadWrites;
    let mut nodes = live_nodes(world);
    // If members with capacity factor zero stay alone with entries, no member keeps them.
    nodes.sort_by_key(|&node| world.app.members[node].capacity != CapacityFactor::ZERO);
    for node in nodes {
        let pause =
            draw_from_stores(world, |stores| stores.rng.duration(Duration::ZERO, Duration::from_millis(300)));
        advance(world, pause.unwrap_or_default());
        // A member that ends while all others are unreachable takes along the entries that they do not have.
        while parts && !is_together(world) && world.now <= limit {
            advance(world, Duration::from_millis(50));
        }
        if world.nodes[node].is_alive() && !world.nodes[node].is_leaving {
            world.leave(node);
        }
        // A member that stays alone after others that have left at the same moment keeps the entries that only memory has.
        let takes = world.app.members[node].capacity != CapacityFactor::ZERO;
        while (passivates || !takes) && world.nodes[node].is_alive() && world.now <= limit {
            advance(world, Duration::from_millis(50));
        }
    }
    let mut alone_since = None;
    while !live_nodes(world).is_empty() {
        advance(world, Duration::from_millis(50));
        if world.now > limit {
            return Err(("a cluster can be shut down", grid_state(world)));
        }
        let alone = live_nodes(world).into_iter().find(|&node| is_alone(world, node)).filter(|_| !passivates);
        let Some(node) = alone else {
            alone_since = None;
            continue;
        };
        if world.now.since(*alone_since.get_or_insert(world.now)) >= ALONE_LIMIT {
            stores::end_alone(world, node);
        }
    }
    discard_topologies(world);
    Ok(())
}

fn is_alone(world: &GridWorld, node: usize) -> bool {
    let topology = world.app.members[node].topology();
    world.nodes[node].view().is_some_and(|view| view.len() == 1)
        && topology.is_some_and(|topology| topology.availability != Availability::Available)
}

fn start_all(world: &mut GridWorld) -> Result<(), Broken> {
    let mut nodes = stores::nodes_with_notes(world);
    let is_quiet = draw_from_stores(world, |stores| {
        stores.is_beginning = true;
        stores.beginnings += 1;
        stores.rng.shuffle(&mut nodes);
        stores.rng.chance(0.6)
    });
    world.app.is_quiet = is_quiet == Some(true);
    if nodes.is_empty() {
        return Err(("stores remember their cluster", world.story().join("\n")));
    }
    world.note_story("the cluster begins again".to_owned());
    for node in nodes {
        world.restart(node, false).map_err(|what| ("configuration", what))?;
        let pause =
            draw_from_stores(world, |stores| stores.rng.duration(Duration::ZERO, Duration::from_millis(400)));
        advance(world, pause.unwrap_or_default());
    }
    Ok(())
}

/// Reads the entries before a client writes, if none does.
fn wait_until_all_open(world: &mut GridWorld) -> Result<(), Broken> {
    let limit = world.now + BEGIN_LIMIT;
    let has_all = |world: &GridWorld| live_nodes(world).into_iter().all(|node| has_topology(world, node));
    while !has_all(world) {
        advance(world, Duration::from_millis(50));
        if world.now > limit {
            return Err(("a cluster begins again with its stores", grid_state(world)));
        }
    }
    draw_from_stores(world, |stores| stores.is_beginning = false);
    if world.app.is_quiet {
        let limit = world.now + BEGIN_LIMIT;
        settle::settle(world, limit, SETTLE_LIMIT)?;
        settle::read_all(world)?;
    }
    world.app.is_quiet = false;
    Ok(())
}
