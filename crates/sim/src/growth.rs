//! The costs of a cluster by its size: joining, crashing, leaving, merging, and idling. With stock timeouts, a
//! quiet network and no application traffic, only the stack's own packets are counted.

use std::time::Duration;

use consort_group::{Rng, Time};

use crate::checks;
use crate::messages::Messages;
use crate::stock::{Change, Discovery, stock};
use crate::world::World;

/// The cost of one event until all members had the same view.
#[derive(Clone, PartialEq, Debug)]
pub struct Phase {
    /// The event.
    pub name: &'static str,
    /// The time until the last member's view.
    pub took: Duration,
    /// Packets meanwhile.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The packets beyond the steady load of the same time; 0 if they are lost in it.
    pub extra: u64,
}

/// The measurements of one size.
#[derive(Clone, PartialEq, Debug)]
pub struct Growth {
    /// The number of members.
    pub members: usize,
    /// The events in their order.
    pub phases: Vec<Phase>,
    /// Packets per second when idle.
    pub steady_packets: f64,
    /// Bytes per second when idle.
    pub steady_bytes: f64,
}

/// Detection in 40 s, merging in twice 48 s, and as much again for congestion.
const LIMIT: Duration = Duration::from_secs(300);
/// TCPPING asks the first member; its port stands for all of a simulated host.
const DISCOVERY: &[Change] = &[("TCPPING", "initial_hosts", "first[7800]"), ("TCPPING", "port_range", "0")];
/// Two of MERGE3's longest intervals.
const STEADY: Duration = Duration::from_secs(60);

/// Measures a cluster of `members` that loses one member by a crash and one by a leave, takes one in, and
/// merges from two halves.
///
/// # Errors
///
/// An unknown stack, or an event after which there was no common view in time.
pub fn grow(stack: &str, members: usize, seed: u64) -> Result<Growth, String> {
    let config = stock(stack, DISCOVERY, Discovery::Own)?;
    let mut world = World::new(Rng::new(seed), config, Messages::none());
    world.start()?;
    settle(&mut world, |world| checks::is_one_view(&world.nodes))?;
    let mut phases = Vec::new();
    let joined = measure(&mut world, "all others join at once", |world| {
        for _ in 1..members {
            world.start()?;
        }
        Ok(())
    })?;
    phases.push(joined);
    wait_for_confirmations(&mut world);
    let before = world.totals;
    run_until(&mut world, STEADY);
    let seconds = STEADY.as_secs_f64();
    let steady_packets = (world.totals.packets - before.packets) as f64 / seconds;
    let steady_bytes = (world.totals.bytes - before.bytes) as f64 / seconds;
    if members > 2 {
        phases.push(measure(&mut world, "one crashes", |world| {
            world.crash(members / 2);
            Ok(())
        })?);
        wait_for_confirmations(&mut world);
        phases.push(measure(&mut world, "one leaves", |world| {
            world.leave(members - 1);
            Ok(())
        })?);
        wait_for_confirmations(&mut world);
        phases.push(measure(&mut world, "one joins", |world| world.start().map(|_| ()))?);
        wait_for_confirmations(&mut world);
    }
    split(&mut world)?;
    phases.push(measure(&mut world, "two halves merge", |world| {
        world.network.cuts.clear();
        Ok(())
    })?);
    for phase in &mut phases[1..] {
        let steady = (steady_packets * phase.took.as_secs_f64()) as u64;
        phase.extra = phase.packets.saturating_sub(steady);
    }
    Ok(Growth { members, phases, steady_packets, steady_bytes })
}

fn measure(
    world: &mut World<Messages>,
    name: &'static str,
    event: impl FnOnce(&mut World<Messages>) -> Result<(), String>,
) -> Result<Phase, String> {
    let (before, since) = (world.totals, world.now);
    event(world)?;
    let is_done = |world: &World<Messages>| {
        checks::is_one_view(&world.nodes)
            && world.nodes.iter().all(|node| !node.is_leaving || !node.is_alive())
    };
    let until = settle(world, is_done).map_err(|why| format!("{name}: {why}"))?;
    let packets = world.totals.packets - before.packets;
    Ok(Phase {
        name,
        took: until.since(since),
        packets,
        bytes: world.totals.bytes - before.bytes,
        extra: packets,
    })
}

fn settle(
    world: &mut World<Messages>,
    is_settled: impl Fn(&World<Messages>) -> bool,
) -> Result<Time, String> {
    let limit = world.now + LIMIT;
    let mut seen = u64::MAX;
    loop {
        let steps = world.totals.views + world.nodes.iter().filter(|node| !node.is_alive()).count() as u64;
        if std::mem::replace(&mut seen, steps) != steps && is_settled(world) {
            return Ok(world.now);
        }
        if !world.step(limit) {
            return Err(format!("no common view after {LIMIT:?}"));
        }
    }
}

/// Long enough for confirmations and late responses.
fn wait_for_confirmations(world: &mut World<Messages>) {
    run_until(world, Duration::from_secs(5));
}

fn run_until(world: &mut World<Messages>, time: Duration) {
    let until = world.now + time;
    while world.step(until) {}
}

fn split(world: &mut World<Messages>) -> Result<(), String> {
    let alive: Vec<usize> = (0..world.nodes.len()).filter(|&node| world.nodes[node].is_alive()).collect();
    let (one, two) = alive.split_at(alive.len() / 2);
    for (&a, &b) in one.iter().flat_map(|a| two.iter().map(move |b| (a, b))) {
        let (a, b) = (world.nodes[a].place, world.nodes[b].place);
        world.network.cuts.insert((a, b));
        world.network.cuts.insert((b, a));
    }
    let has_view = |world: &World<Messages>, half: &[usize]| {
        half.iter().all(|&node| world.nodes[node].view().is_some_and(|view| view.len() == half.len()))
    };
    settle(world, |world| has_view(world, one) && has_view(world, two))
        .map_err(|why| format!("two halves part: {why}"))?;
    wait_for_confirmations(world);
    Ok(())
}
