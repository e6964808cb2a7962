//! Listeners. A listener receives each acknowledged change that began after it was ready once, in the order
//! of the key's versions, unless it receives a gap after the change. A replica built from a listener with
//! state has the cache's entries in the end.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use consort_grid::{CacheMode, EntryEvent, Event, EventKind, ListenError, ReplicaTracker, Scope, Version};
use consort_group::{Address, Time};

use super::super::GridWorld;
use super::super::history::Operation;
use super::super::listener_client::{FEW, ListenerClient};
use super::merges;
use crate::checks::Broken;

/// The gap for missed events comes once members have installed topologies and all primaries have sent marks.
const GAP_LIMIT: Duration = Duration::from_secs(15);

pub(super) fn all(world: &GridWorld) -> Result<(), Broken> {
    for listener_client in listener_clients(world) {
        is_right_to_end(world, listener_client)?;
        no_gap_where_nothing_is_lost(world, listener_client)?;
        in_order(world, listener_client)?;
    }
    Ok(())
}

pub(super) fn check(world: &GridWorld, key: &Bytes, operations: &[&Operation]) -> Result<(), Broken> {
    for listener_client in listener_clients(world) {
        let told: Vec<(Time, &EntryEvent)> =
            entries(listener_client).filter(|(_, event)| event.key == *key).collect();
        for (at, event) in &told {
            is_asked_for(world, listener_client, *at, event, operations)?;
        }
        nothing_missing(world, listener_client, &told, operations)?;
    }
    Ok(())
}

pub(crate) fn replicas(world: &GridWorld, there: &BTreeMap<Bytes, Version>) -> Result<(), Broken> {
    let keeps = |listener_client: &&ListenerClient| {
        let is_of_all = listener_client.options.with_state && listener_client.options.scope == Scope::Cluster;
        is_of_all && listener_client.ended.is_none() && is_there(world, listener_client)
    };
    for listener_client in listener_clients(world).iter().filter(keeps) {
        let mut replica = ReplicaTracker::default();
        listener_client.events.iter().for_each(|(_, event)| replica.note(event));
        let ReplicaTracker { entries: replica, is_complete } = replica;
        if listener_client.ready.is_none() || !is_complete || replica != *there {
            let is_other = |key: &&Bytes| replica.get(*key) != there.get(*key);
            let key = replica.keys().chain(there.keys()).find(is_other);
            let what = format!(
                "complete: {is_complete}; {key:?} is {:?}, and {:?} was delivered to {}",
                key.and_then(|key| there.get(key)),
                key.and_then(|key| replica.get(key)),
                describe(world, listener_client)
            );
            return Err(("listeners with state have the present entries", what));
        }
    }
    Ok(())
}

/// A listener ends with its member, or with the reason why entries cannot be read.
fn is_right_to_end(world: &GridWorld, listener_client: &ListenerClient) -> Result<(), Broken> {
    let is_left = world.app.members[listener_client.node].is_left;
    match &listener_client.failed {
        None | Some(ListenError::State(_)) => Ok(()),
        Some(_) if is_left => Ok(()),
        Some(error) => {
            Err(("listeners continue", format!("{error} at {}", describe(world, listener_client))))
        }
    }
}

/// In a member's own cache, a gap comes only if the reader was too slow, because no event crosses the network.
fn no_gap_where_nothing_is_lost(world: &GridWorld, listener_client: &ListenerClient) -> Result<(), Broken> {
    let is_local = world.app.config.mode == CacheMode::Local;
    if !is_local || listener_client.options.events_max == FEW || listener_client.last_gap().is_none() {
        return Ok(());
    }
    Err(("listeners of local caches miss nothing", describe(world, listener_client)))
}

fn in_order(world: &GridWorld, listener_client: &ListenerClient) -> Result<(), Broken> {
    // In that mode, removals by other members carry the version that the entry had.
    let is_taken = |event: &EntryEvent| {
        matches!(event.kind, EventKind::Removed | EventKind::Expired)
            && world.app.config.mode == CacheMode::Invalidation
    };
    let mut last: BTreeMap<&Bytes, &EntryEvent> = BTreeMap::new();
    // An event that follows from a missed one: a gap comes after it.
    let mut missed: Option<String> = None;
    for (_, event) in &listener_client.events {
        let event = match event {
            Event::Gap => {
                last.clear();
                missed = None;
                continue;
            }
            Event::Complete => continue,
            Event::Entry(event) => event,
        };
        let is_absent = |kind| matches!(kind, EventKind::Removed | EventKind::Expired);
        let Some(before) = last.insert(&event.key, event) else { continue };
        let describe = || format!("{event:?} comes after {before:?} at {}", describe(world, listener_client));
        let is_again = !is_absent(before.kind) && is_taken(event);
        if event.version < before.version || event.version == before.version && !is_again {
            return Err(("listeners get events in order and once", describe()));
        }
        // A listener of one member does not receive the changes that other members have ordered. An entry that was read may
        // be ahead of its change, or be undone with the primary that had not backed it up yet.
        let follows = listener_client.options.scope == Scope::Local
            || [event.kind, before.kind].contains(&EventKind::Existing)
            || (event.kind == EventKind::Created) == is_absent(before.kind);
        if !follows || !has_previous(world, listener_client, before, event) {
            missed.get_or_insert_with(describe);
        }
    }
    missed.map_or(Ok(()), |what| Err(("an event follows from the previous state", what)))
}

/// The previous value is the value of the event before. Merges do not report the previous values of each
/// partition, and an entry that was read may be ahead of its change.
fn has_previous(
    world: &GridWorld,
    listener_client: &ListenerClient,
    before: &EntryEvent,
    event: &EntryEvent,
) -> bool {
    if !listener_client.options.with_previous {
        return event.previous.is_none();
    }
    // A listener that has ended may have been about to receive its own removal, and a gap.
    let is_free = listener_client.options.scope == Scope::Local
        || merges::has_parted(world)
        || !is_there(world, listener_client);
    if is_free || [event.kind, before.kind].contains(&EventKind::Existing) {
        return true;
    }
    let may_be_stored = world.app.stores.is_some();
    let was_there = !matches!(before.kind, EventKind::Removed | EventKind::Expired);
    match &event.previous {
        // An entry that only the store has is not loaded for its expiration.
        None => !was_there || event.kind == EventKind::Expired && may_be_stored,
        Some(previous) => {
            let is_known = |value: &Bytes| *value == previous.value;
            was_there && previous.version == before.version && before.value.as_ref().is_none_or(is_known)
        }
    }
}

fn is_asked_for(
    world: &GridWorld,
    listener_client: &ListenerClient,
    at: Time,
    event: &EntryEvent,
    operations: &[&Operation],
) -> Result<(), Broken> {
    let is_removal = matches!(event.kind, EventKind::Removed | EventKind::Expired);
    // A merge policy removes, too, and in invalidation mode so does a write.
    let is_invalidation = world.app.config.mode == CacheMode::Invalidation;
    let is_free =
        is_removal && (is_invalidation || merges::has_parted(world)) || !is_removal && event.value.is_none();
    let is_it = |write: &&&Operation| match event.kind {
        EventKind::Expired => write.least_life().is_some() && write.may_be_absent(at),
        EventKind::Removed => write.is_removal() && write.began <= at,
        _ => write.value() == event.value.as_ref() && write.began <= at,
    };
    if is_free || operations.iter().find(is_it).is_some() {
        return Ok(());
    }
    Err(("an event was requested", format!("{event:?} at {}", describe(world, listener_client))))
}

/// Every acknowledged change arrived that began after the listener was ready and its last gap.
fn nothing_missing(
    world: &GridWorld,
    listener_client: &ListenerClient,
    told: &[(Time, &EntryEvent)],
    operations: &[&Operation],
) -> Result<(), Broken> {
    let Some(ready) = listener_client.ready.filter(|_| listener_client.options.scope == Scope::Cluster)
    else {
        return Ok(());
    };
    if !is_there(world, listener_client) {
        return Ok(());
    }
    // The listener's reader has taken all events at the moment at which it ended.
    let is_in_time = |ended: Time| listener_client.ended.is_none_or(|last| ended < last);
    let since = listener_client.last_gap().map_or(ready, |gap| gap.max(ready));
    for write in operations.iter().filter(|write| write.began > since && !write.is_by_itself) {
        let Some((version, _)) = write.acknowledged().filter(|(_, ended)| is_in_time(*ended)) else {
            continue;
        };
        // An entry that was read before the event of its change arrived takes the place of that event.
        let is_read_ahead = |event: &EntryEvent| event.kind == EventKind::Existing && event.version > version;
        if told.iter().any(|(_, event)| is_read_ahead(event)) {
            continue;
        }
        let Some((_, event)) = told.iter().find(|(_, event)| event.version == version) else {
            if has_ended_before_its_gap(world, listener_client, write) {
                continue;
            }
            let what = format!(
                "{} was not delivered to {}",
                super::describe(world, &write.key, write),
                describe(world, listener_client)
            );
            return Err(("listeners get an event of every acknowledged write", what));
        };
        let is_removed = event.kind == EventKind::Removed;
        let is_right = is_removed == write.is_removal()
            && (event.value.is_none() || event.value.as_ref() == write.value())
            && (listener_client.options.with_values || event.value.is_none());
        if !is_right {
            let what = format!("{event:?} for {}", super::describe(world, &write.key, write));
            return Err(("listeners get the writes", what));
        }
    }
    Ok(())
}

/// Whether a listener ended while its member was parted from one that may have ordered a write, or shortly
/// after. The gap comes once the members have merged, and topologies merge some time after views. A member
/// that is cut off again meanwhile keeps its partition's topology. A listener that begins while a primary is
/// unreachable receives no event and no gap until that primary is back, because the primary has to confirm
/// the listener.
fn has_ended_before_its_gap(world: &GridWorld, listener_client: &ListenerClient, write: &Operation) -> bool {
    let Some(ended) = listener_client.ended else { return false };
    let gap_limit = u64::try_from(GAP_LIMIT.as_nanos()).unwrap_or(u64::MAX);
    let since = write.began.max(Time(ended.0.saturating_sub(gap_limit)));
    let (nodes, members) = (&world.nodes, &world.app.members);
    let own = listener_client.node;
    let is_write_behind = |(version, _): (Version, Time)| {
        members[own].topologies_between(ended, ended).last().is_none_or(|last| last.id < version.topology())
    };
    if write.acknowledged().is_some_and(is_write_behind)
        || members[own].topologies_between(since, ended).any(|topology| topology.is_degraded)
    {
        return true;
    }
    let lacks = |node: usize, address: &Address| {
        let mut topologies = members[node].topologies_between(since, ended);
        nodes[node].views_between(since, ended).any(|view| !view.contains(address))
            || topologies.any(|topology| topology.members.iter().all(|one| one.member.address != *address))
    };
    let mut others = write.readers.iter().filter(|&&other| nodes[other].ended.is_none_or(|at| since < at));
    others.any(|&other| lacks(own, &nodes[other].address) || lacks(other, &nodes[own].address))
}

fn is_there(world: &GridWorld, listener_client: &ListenerClient) -> bool {
    let node = &world.nodes[listener_client.node];
    let member = &world.app.members[listener_client.node];
    let stays = !member.is_left && !member.is_leaving;
    listener_client.has_begun() && listener_client.failed.is_none() && node.is_alive() && stays
}

fn entries(listener_client: &ListenerClient) -> impl Iterator<Item = (Time, &EntryEvent)> {
    listener_client.events.iter().filter_map(|(at, event)| match event {
        Event::Entry(event) => Some((*at, event)),
        Event::Complete | Event::Gap => None,
    })
}

fn listener_clients(world: &GridWorld) -> &[ListenerClient] {
    world.app.listener_clients.as_ref().map(|listener_clients| &listener_clients.all[..]).unwrap_or_default()
}

fn describe(world: &GridWorld, listener_client: &ListenerClient) -> String {
    format!(
        "a listener of {}, {:?}, ready {:?}, last gap {:?}, ended {:?}, {} events",
        world.nodes[listener_client.node].name,
        listener_client.options,
        listener_client.ready,
        listener_client.last_gap(),
        listener_client.ended,
        listener_client.events.len()
    )
}
