//! Listeners that begin and end after the faults: each receives every change that begins while it listens, and no gap.

use std::time::Duration;

use bytes::Bytes;
use consort_grid::{CacheMode, Condition, Event, EventKind, ListenOptions, ListenerId, Scope, Version};

use super::actions::{put, remove};
use super::fault_preconditions::grid_state;
use super::operations::submit;
use super::settle::{check_all_succeeded, key_of_each_segment, live_nodes, settle_timeout};
use super::{GridWorld, listener_client};
use crate::after_faults::advance;
use crate::checks::Broken;

/// A topology, its phases, and marks of all primaries.
const READY_LIMIT: Duration = Duration::from_secs(15);

/// After this time without listeners, other members have stopped to send changes to a member.
const LONG: Duration = Duration::from_secs(35);

struct BegunListener {
    node: usize,
    id: ListenerId,
}

type Round = Vec<usize>;

/// The next listener begins at once, or when the topology does not name its member any more.
pub(super) fn begin_and_end_listeners(world: &mut GridWorld) -> Result<(), Broken> {
    listener_client::end_all(world);
    // If each member has its own entries, changes have no common order.
    let scope = if world.app.config.mode == CacheMode::Invalidation { Scope::Local } else { Scope::Cluster };
    let mut nth = 0;
    for pause in [Duration::ZERO, LONG] {
        // A listener of its own member's writes only, which stays while others begin and end.
        let own = match nth % 2 {
            0 => None,
            _ => live_nodes(world).first().map(|&node| begin(world, node, Scope::Local)).transpose()?,
        };
        for scope in [scope, scope] {
            let begun = begin_all(world, scope)?;
            let written = write(world, &mut nth)?;
            for one in begun {
                check_delivery(world, &one, scope, &written)?;
                end(world, &one);
            }
            advance(world, pause);
            // No listener receives these writes.
            write(world, &mut nth)?;
        }
        own.iter().for_each(|own| end(world, own));
        nth += 1;
    }
    Ok(())
}

fn begin_all(world: &mut GridWorld, scope: Scope) -> Result<Vec<BegunListener>, Broken> {
    let nodes = live_nodes(world);
    let all = nodes.into_iter().map(|node| begin(world, node, scope)).collect::<Result<Vec<_>, _>>()?;
    let limit = world.now + READY_LIMIT;
    while let Some(late) = all.iter().find(|one| !is_ready(world, one)) {
        if world.now > limit {
            let what = format!("{} waits{}", world.nodes[late.node].name, grid_state(world));
            return Err(("a quiet cluster lets listeners begin", what));
        }
        advance(world, Duration::from_millis(100));
    }
    Ok(all)
}

fn begin(world: &mut GridWorld, node: usize, scope: Scope) -> Result<BegunListener, Broken> {
    let own = world.nodes[node].application_clock(world.now);
    let options = ListenOptions { scope, with_values: true, ..ListenOptions::default() };
    let member = &mut world.app.members[node];
    let begun = member.node.listen(own, member.cache, options);
    let id = begun.map_err(|error| ("a quiet cluster lets listeners begin", error.to_string()))?;
    world.work(node);
    Ok(BegunListener { node, id })
}

fn is_ready(world: &GridWorld, one: &BegunListener) -> bool {
    let member = &world.app.members[one.node];
    member.node.is_listening(member.cache, one.id) == Ok(true)
}

fn end(world: &mut GridWorld, one: &BegunListener) {
    let own = world.nodes[one.node].application_clock(world.now);
    let member = &mut world.app.members[one.node];
    member.node.end_listener(own, member.cache, one.id);
    world.work(one.node);
}

fn write(world: &mut GridWorld, nth: &mut usize) -> Result<Round, Broken> {
    let (keys, mut written) = (key_of_each_segment(world), Round::new());
    for node in live_nodes(world) {
        for key in &keys {
            for _ in 0..2 {
                *nth += 1;
                let value = Bytes::from(format!("comings {nth} of {node}"));
                written.push(submit(world, node, key.clone(), put(value, Condition::Always, false)));
            }
            if (*nth).is_multiple_of(3) {
                written.push(submit(world, node, key.clone(), remove(Condition::Always, false)));
            }
        }
        advance(world, settle_timeout(world));
    }
    check_all_succeeded(world, &written)?;
    Ok(written)
}

/// Once, in the order of the key's versions, without a gap.
fn check_delivery(
    world: &mut GridWorld,
    one: &BegunListener,
    scope: Scope,
    written: &Round,
) -> Result<(), Broken> {
    let own = world.nodes[one.node].application_clock(world.now);
    let name = world.nodes[one.node].name.clone();
    let mut delivered: Vec<(Bytes, Version, bool)> = Vec::new();
    loop {
        let member = &mut world.app.members[one.node];
        let events = member.node.take_events(own, member.cache, one.id);
        let events = events.map_err(|error| ("listeners continue", format!("{error} at {name}")))?;
        if events.is_empty() {
            break;
        }
        for event in events {
            match event {
                Event::Entry(event) => {
                    delivered.push((event.key, event.version, event.kind == EventKind::Removed));
                }
                Event::Gap => {
                    let what = format!("a listener of {name} got a gap after {} events", delivered.len());
                    return Err(("a quiet cluster has no gaps", what));
                }
                Event::Complete => {}
            }
        }
    }
    world.work(one.node);
    for write in written.iter().map(|&at| &world.app.history[at]) {
        let Some((version, _)) = write.acknowledged() else { continue };
        if scope == Scope::Local && write.node != one.node {
            continue;
        }
        // If each member has its own entries, a removal by another member carries the version that the entry had.
        let is_it = |(key, delivered, is_removed): &&(Bytes, Version, bool)| {
            *key == write.key && *delivered == version && *is_removed == write.is_removal()
        };
        let count = delivered.iter().filter(is_it).count();
        if count != 1 {
            let what = format!("{write:?} was delivered {count} times to a listener of {name}");
            return Err(("a quiet cluster delivers every event once", what));
        }
    }
    Ok(())
}
