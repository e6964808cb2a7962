//! After the faults the cluster heals, then members join and leave.

use std::time::Duration;

use consort_group::Time;

use crate::checks::{self, Broken};
use crate::messages::{Messages, Traffic};
use crate::node::Node;
use crate::world::{Application, World};

/// The first response to a joiner can be lost because its address is unknown, and is repeated after UNICAST3's
/// interval of 1 s.
const JOIN_LIMIT: Duration = Duration::from_secs(4);
/// Less than GMS' `leave_timeout` of 1 s, even by the fastest clock.
const LEAVE_LIMIT: Duration = Duration::from_millis(900);
/// Longer than `view_ack_collection_timeout`.
const CONFIRMED: Duration = Duration::from_secs(3);
/// For messages, acknowledgements and two rounds of stability.
const QUIET_LIMIT: Duration = Duration::from_secs(30);

pub(crate) fn advance<A: Application>(world: &mut World<A>, time: Duration) {
    let until = world.now + time;
    while world.step(until) {}
}

pub(crate) fn heal(world: &mut World<Messages>, limit: Time) -> Result<(), Broken> {
    loop {
        advance(world, Duration::from_millis(250));
        let is_well = checks::one_view(&world.nodes)
            .and_then(|()| checks::leftovers(&world.nodes))
            .and_then(|()| checks::credits(&world.nodes))
            .and_then(|()| checks::completeness(&world.nodes));
        match is_well {
            Ok(()) => return Ok(()),
            // The failed check of all members explains more than the failure to heal.
            Err(why) if world.now >= limit => return checks::all(&world.nodes).and(Err(why)),
            Err(_) => {}
        }
    }
}

/// No timeout may be needed when two members join under traffic and the coordinator leaves with another one.
pub(crate) fn join_and_leave(world: &mut World<Messages>) -> Result<(), Broken> {
    // The healing views may still wait for confirmations of members that were in another partition.
    advance(world, CONFIRMED);
    let unconfirmed = unconfirmed_views(world);
    let mut joiners = Vec::new();
    for _ in 0..2 {
        joiners.push(world.start().map_err(|what| ("configuration", what))?);
    }
    advance(world, JOIN_LIMIT);
    checks::one_view(&world.nodes).map_err(|(_, what)| ("members join a quiet cluster at once", what))?;
    let traffic = world.stop_traffic();
    world.start_traffic(Traffic { interval: Duration::from_millis(20), ..traffic });
    advance(world, Duration::from_secs(1));
    world.stop_traffic();
    advance(world, CONFIRMED);
    is_confirmed(world, &unconfirmed)?;
    checks::no_past(&world.nodes, &joiners)?;

    let alive: Vec<usize> = (0..world.nodes.len()).filter(|&node| world.nodes[node].is_alive()).collect();
    let leads = |&node: &usize| {
        let node = &world.nodes[node];
        node.view().and_then(|view| view.coordinator()) == Some(&node.address)
    };
    let coordinator = alive.iter().copied().find(leads);
    let other = alive.iter().copied().find(|node| Some(*node) != coordinator);
    // The other member leaves first: its request is at the coordinator when the coordinator leaves.
    let leavers: Vec<usize> = other.into_iter().chain(coordinator).collect();
    leavers.iter().for_each(|&node| world.leave(node));
    advance(world, LEAVE_LIMIT);
    if let Some(&late) = leavers.iter().find(|&&node| world.nodes[node].is_alive()) {
        let what = format!("{} waits for an answer", world.nodes[late].name);
        return Err(("members leave a quiet cluster at once", what));
    }
    checks::one_view(&world.nodes).map_err(|(_, what)| ("members leave a quiet cluster at once", what))?;
    advance(world, CONFIRMED);
    is_confirmed(world, &unconfirmed)?;
    let limit = world.now + QUIET_LIMIT;
    heal(world, limit)
}

fn unconfirmed_views(world: &World<Messages>) -> Vec<u64> {
    let of = |node: &Node| node.stack.as_ref()?.attribute("GMS", "num_unconfirmed_views")?.parse().ok();
    world.nodes.iter().map(|node| of(node).unwrap_or_default()).collect()
}

fn is_confirmed(world: &World<Messages>, before: &[u64]) -> Result<(), Broken> {
    let before = before.iter().copied().chain(std::iter::repeat(0));
    for ((node, now), before) in world.nodes.iter().zip(unconfirmed_views(world)).zip(before) {
        if now > before {
            let what = format!("{} did not receive from every member in time", node.name);
            return Err(("views of a quiet cluster are confirmed", what));
        }
    }
    Ok(())
}
