//! The checker of listeners. A listener receives each acknowledged change that began after it was ready once, in the order of
//! the key's versions, unless it receives a gap after the change. It receives no event outside its options. A replica that is
//! built from the events of a listener with state has the cache's entries in the end.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use consort_grid::{CacheMode, EntryEvent, Event, EventKind, ListenError, ReplicaTracker, Scope, Version};
use consort_group::{Address, Time};

use super::super::hearer::{FEW, Hearer};
use super::super::history::Operation;
use super::merges;
use crate::checks::Broken;
use crate::node::Node;
use crate::world::World;

/// The longest time from a merge until a listener receives the gap for the events that it missed: the members install
/// topologies, and all primaries send marks.
const GAP_LIMIT: Duration = Duration::from_secs(15);

/// Checks each listener by itself.
pub(super) fn all(world: &World) -> Result<(), Broken> {
    for hearer in hearers(world) {
        is_right_to_end(world, hearer)?;
        no_gap_where_nothing_is_lost(world, hearer)?;
        in_order(world, hearer)?;
    }
    Ok(())
}

/// Checks a key in all listeners.
pub(super) fn check(world: &World, key: &Bytes, operations: &[&Operation]) -> Result<(), Broken> {
    for hearer in hearers(world) {
        let told: Vec<(Time, &EntryEvent)> = entries(hearer).filter(|(_, event)| event.key == *key).collect();
        for (at, event) in &told {
            is_asked_for(world, hearer, *at, event, operations)?;
        }
        nothing_missing(world, hearer, &told, operations)?;
    }
    Ok(())
}

/// Checks, once the cluster is quiet, that a replica built from a listener's events equals the cache.
pub(crate) fn replicas(world: &World, there: &BTreeMap<Bytes, Version>) -> Result<(), Broken> {
    let keeps = |hearer: &&Hearer| {
        let is_of_all = hearer.options.with_state && hearer.options.scope == Scope::Cluster;
        is_of_all && hearer.ended.is_none() && is_there(world, hearer)
    };
    for hearer in hearers(world).iter().filter(keeps) {
        let mut replica = ReplicaTracker::default();
        hearer.events.iter().for_each(|(_, event)| replica.note(event));
        let ReplicaTracker { entries: replica, is_complete } = replica;
        if hearer.ready.is_none() || !is_complete || replica != *there {
            let is_other = |key: &&Bytes| replica.get(*key) != there.get(*key);
            let key = replica.keys().chain(there.keys()).find(is_other);
            let what = format!(
                "complete: {is_complete}; {key:?} is {:?}, and {:?} is told to {}",
                key.and_then(|key| there.get(key)),
                key.and_then(|key| replica.get(key)),
                tell(world, hearer)
            );
            return Err(("listeners with state have what is there", what));
        }
    }
    Ok(())
}

/// Checks that a listener ends with its member, or with the reason why the current entries cannot be read.
fn is_right_to_end(world: &World, hearer: &Hearer) -> Result<(), Broken> {
    let is_left = world.nodes[hearer.node].member.as_ref().is_none_or(|member| member.is_left);
    match &hearer.failed {
        None | Some(ListenError::State(_)) => Ok(()),
        Some(_) if is_left => Ok(()),
        Some(error) => Err(("listeners go on", format!("{error} at {}", tell(world, hearer)))),
    }
}

/// Checks the gaps in a cache that is the member's own: no events come over the network that could be lost, so there is a gap
/// only if the reader was too slow.
fn no_gap_where_nothing_is_lost(world: &World, hearer: &Hearer) -> Result<(), Broken> {
    let is_local = world.grid.as_ref().is_some_and(|grid| grid.config.mode == CacheMode::Local);
    if !is_local || hearer.options.events_max == FEW || hearer.last_gap().is_none() {
        return Ok(());
    }
    Err(("listeners of local caches miss nothing", tell(world, hearer)))
}

/// Checks that the versions of a key only grow since the last gap, and that each event follows from the one before.
fn in_order(world: &World, hearer: &Hearer) -> Result<(), Broken> {
    // In that mode, removals by other members carry the version that the entry had.
    let is_taken = |event: &EntryEvent| {
        matches!(event.kind, EventKind::Removed | EventKind::Expired)
            && world.grid.as_ref().is_some_and(|grid| grid.config.mode == CacheMode::Invalidation)
    };
    let mut last: BTreeMap<&Bytes, &EntryEvent> = BTreeMap::new();
    // An event that follows from a missed one: a gap comes after it.
    let mut missed: Option<String> = None;
    for (_, event) in &hearer.events {
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
        let tell = || format!("{event:?} comes after {before:?} at {}", tell(world, hearer));
        let is_again = !is_absent(before.kind) && is_taken(event);
        if event.version < before.version || event.version == before.version && !is_again {
            return Err(("listeners are told in order, and once", tell()));
        }
        // A listener of one member does not receive the changes that other members have ordered. An entry that was read may
        // be ahead of its change, or be undone with the primary that had not backed it up yet.
        let follows = hearer.options.scope == Scope::Local
            || [event.kind, before.kind].contains(&EventKind::Existing)
            || (event.kind == EventKind::Created) == is_absent(before.kind);
        if !follows || !has_previous(world, hearer, before, event) {
            missed.get_or_insert_with(tell);
        }
    }
    missed.map_or(Ok(()), |what| Err(("what has happened follows from what was", what)))
}

/// Checks the previous value, for a listener that asks for it: it is the value of the event before. Merges do not report the
/// previous values of each partition, and an entry that was read may be ahead of its change.
fn has_previous(world: &World, hearer: &Hearer, before: &EntryEvent, event: &EntryEvent) -> bool {
    if !hearer.options.with_previous {
        return event.previous.is_none();
    }
    // A listener that has ended may have been about to receive its own removal, and a gap.
    let is_free =
        hearer.options.scope == Scope::Local || merges::has_parted(world) || !is_there(world, hearer);
    if is_free || [event.kind, before.kind].contains(&EventKind::Existing) {
        return true;
    }
    let may_be_stored = world.grid.as_ref().is_some_and(|grid| grid.stores.is_some());
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

/// Checks that an event matches the listener's options and comes in time.
fn is_asked_for(
    world: &World,
    hearer: &Hearer,
    at: Time,
    event: &EntryEvent,
    operations: &[&Operation],
) -> Result<(), Broken> {
    let is_removal = matches!(event.kind, EventKind::Removed | EventKind::Expired);
    // A merge policy removes, too, and in invalidation mode so does a write.
    let is_invalidation = world.grid.as_ref().is_some_and(|grid| grid.config.mode == CacheMode::Invalidation);
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
    Err(("what is told was asked for", format!("{event:?} at {}", tell(world, hearer))))
}

/// Checks that every acknowledged change arrived that began after the listener was ready, and after its last gap.
fn nothing_missing(
    world: &World,
    hearer: &Hearer,
    told: &[(Time, &EntryEvent)],
    operations: &[&Operation],
) -> Result<(), Broken> {
    let Some(ready) = hearer.ready.filter(|_| hearer.options.scope == Scope::Cluster) else { return Ok(()) };
    if !is_there(world, hearer) {
        return Ok(());
    }
    // The listener's reader has taken all events at the moment at which it ended.
    let is_in_time = |ended: Time| hearer.ended.is_none_or(|last| ended < last);
    let since = hearer.last_gap().map_or(ready, |gap| gap.max(ready));
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
            if has_ended_before_its_gap(world, hearer, write) {
                continue;
            }
            let what =
                format!("{} is not told to {}", super::tell(world, &write.key, write), tell(world, hearer));
            return Err(("listeners are told of all that is acknowledged", what));
        };
        let is_removed = event.kind == EventKind::Removed;
        let is_right = is_removed == write.is_removal()
            && (event.value.is_none() || event.value.as_ref() == write.value())
            && (hearer.options.with_values || event.value.is_none());
        if !is_right {
            let what = format!("{event:?} for {}", super::tell(world, &write.key, write));
            return Err(("listeners are told what was done", what));
        }
    }
    Ok(())
}

/// Returns whether a listener has ended while its member was parted from one that may have ordered a write, or shortly after.
/// The gap that stands for the write comes once the members have merged. The topologies of two partitions merge some time
/// after their views. A member that is cut off again meanwhile keeps its partition's topology, in which all may be members. A
/// listener that begins anew while a primary is unreachable receives no event and no gap before that primary is back, because
/// the primary has to confirm the listener.
fn has_ended_before_its_gap(world: &World, hearer: &Hearer, write: &Operation) -> bool {
    let Some(ended) = hearer.ended else { return false };
    let gap_limit = u64::try_from(GAP_LIMIT.as_nanos()).unwrap_or(u64::MAX);
    let since = write.began.max(Time(ended.0.saturating_sub(gap_limit)));
    let own = &world.nodes[hearer.node];
    let is_behind = |(version, _): (Version, Time)| {
        own.topologies_between(ended, ended).last().is_none_or(|last| last.id < version.topology())
    };
    if write.acknowledged().is_some_and(is_behind)
        || own.topologies_between(since, ended).any(|topology| topology.is_degraded)
    {
        return true;
    }
    let others = write.readers.iter().map(|&node| &world.nodes[node]);
    others.filter(|other| other.ended.is_none_or(|at| since < at)).any(|other| {
        let lacks = |node: &Node, address: &Address| {
            let mut topologies = node.topologies_between(since, ended);
            node.views_between(since, ended).any(|view| !view.contains(address))
                || topologies
                    .any(|topology| topology.members.iter().all(|one| one.member.address != *address))
        };
        lacks(own, &other.address) || lacks(other, &own.address)
    })
}

/// Returns whether the listener and its member stay to the end.
fn is_there(world: &World, hearer: &Hearer) -> bool {
    let node = &world.nodes[hearer.node];
    let stays = node.member.as_ref().is_some_and(|member| !member.is_left && !member.is_leaving);
    hearer.has_begun() && hearer.failed.is_none() && node.is_alive() && stays
}

fn entries(hearer: &Hearer) -> impl Iterator<Item = (Time, &EntryEvent)> {
    hearer.events.iter().filter_map(|(at, event)| match event {
        Event::Entry(event) => Some((*at, event)),
        Event::Complete | Event::Gap => None,
    })
}

fn hearers(world: &World) -> &[Hearer] {
    let hearers = world.grid.as_ref().and_then(|grid| grid.hearers.as_ref());
    hearers.map(|hearers| &hearers.all[..]).unwrap_or_default()
}

/// Formats a listener for a report.
fn tell(world: &World, hearer: &Hearer) -> String {
    format!(
        "a listener of {}, {:?}, ready {:?}, last gap {:?}, ended {:?}, {} events",
        world.nodes[hearer.node].name,
        hearer.options,
        hearer.ready,
        hearer.last_gap(),
        hearer.ended,
        hearer.events.len()
    )
}
