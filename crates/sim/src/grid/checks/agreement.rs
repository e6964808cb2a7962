//! Agreement in a quiet cluster. A store has exactly the entries of its member's memory, or those for which
//! memory had no room.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use consort_grid::{CacheMode, Segment, SegmentState, Version};
use consort_store::{Part, StoreError};

use super::super::GridWorld;
use super::super::member::{Member, alive};
use super::super::workload_mix::SHORT_MAX;
use super::contents::{Contents, contents, judged};
use crate::checks::Broken;

type Whole = BTreeMap<Bytes, (Version, Bytes)>;

struct Stored {
    entries: Whole,
    passivation: bool,
}

impl Stored {
    fn of(
        member: &Member,
        segment: Segment,
        passivation: bool,
        is_judged: impl Fn(Option<Duration>) -> bool,
    ) -> Result<Option<Self>, String> {
        let Some(store) = &member.store else { return Ok(None) };
        if store.owes_writes() {
            return Err("something waits for the store".to_owned());
        }
        let all = store.store().entries(segment.0, Part::Whole).map_err(|error| error.to_string())?;
        let entry = |entry: Result<consort_store::Entry, StoreError>| {
            entry.map(|entry| (entry.key, (Version(entry.version), entry.value)))
        };
        let remaining = |entry: &consort_store::Entry| {
            let times = &entry.times;
            times.lifespan.into_iter().chain(times.max_idle).min().map(Duration::from_millis)
        };
        let all = all.filter(|entry| entry.as_ref().map_or(true, |entry| is_judged(remaining(entry))));
        let entries = all.map(entry).collect::<Result<_, _>>().map_err(|error| error.to_string())?;
        Ok(Some(Self { entries, passivation }))
    }

    fn complete(mut self, memory: Contents) -> Result<Whole, String> {
        let mut whole = Whole::new();
        for (key, (version, value)) in memory {
            let stored = self.entries.remove(&key);
            let is_passive = value.is_none();
            let is_right = match &stored {
                Some((theirs, kept)) => {
                    let is_same = *theirs == version && value.as_ref().is_none_or(|value| value == kept);
                    is_same && (is_passive || !self.passivation)
                }
                None => !is_passive && self.passivation,
            };
            if !is_right {
                return Err(format!("{key:?} is {version} {value:?} in memory, {stored:?} in the store"));
            }
            let value = value.or(stored.map(|(_, kept)| kept)).unwrap_or_default();
            whole.insert(key, (version, value));
        }
        match self.entries.first_key_value() {
            Some(left) => Err(format!("only the store has {left:?}")),
            None => Ok(whole),
        }
    }
}

pub(crate) fn check(world: &GridWorld) -> Result<(), Broken> {
    let Some(topology) = alive(world).find_map(|(_, member)| member.topology()) else { return Ok(()) };
    if world.app.config.mode == CacheMode::Invalidation {
        return super::invalidation::one_holder(world);
    }
    let passivation = world.app.stores.as_ref().is_some_and(|stores| stores.kind.passivation);
    // While clients go on, owners remove expired entries one after the other.
    let is_busy = world.app.is_busy;
    let is_judged =
        |remaining: Option<Duration>| !is_busy || remaining.is_none_or(|remaining| remaining > SHORT_MAX);
    for segment in topology.current.segments() {
        let mut known: Option<(&str, Whole)> = None;
        for (node, member) in alive(world) {
            let state = member.container.state(segment);
            let is_owner = topology.current.owners(segment).any(|owner| *owner == node.address);
            let wanted = if is_owner { SegmentState::Owned } else { SegmentState::Absent };
            if state != wanted {
                let what = format!("{}: segment {segment} is {state:?}, not {wanted:?}", node.name);
                return Err(("only owners have a segment", what));
            }
            let stored = Stored::of(member, segment, passivation, is_judged)
                .map_err(|why| ("stores can be read", why))?;
            let own = if is_owner {
                judged(&member.container, segment, node.application_clock(world.now), is_judged)
            } else {
                BTreeMap::new()
            };
            let own = match stored {
                Some(stored) => stored.complete(own).map_err(|why| {
                    let what = format!("{why} in segment {segment} at {}", node.name);
                    ("stores agree with memory", what)
                })?,
                None => own
                    .into_iter()
                    .map(|(key, (version, value))| (key, (version, value.unwrap_or_default())))
                    .collect(),
            };
            if !is_owner {
                continue;
            }
            match &known {
                Some((other, contents)) if *contents != own => {
                    let is_other = |key: &&Bytes| contents.get(*key) != own.get(*key);
                    let key = contents.keys().chain(own.keys()).find(is_other).cloned().unwrap_or_default();
                    let what = format!(
                        "{key:?} in segment {segment} is {:?} at {other} and {:?} at {}",
                        contents.get(&key),
                        own.get(&key),
                        node.name
                    );
                    return Err(("owners agree", what));
                }
                Some(_) => {}
                None => known = Some((&node.name, own)),
            }
        }
    }
    Ok(())
}

pub(crate) fn there(world: &GridWorld) -> BTreeMap<Bytes, Version> {
    let mut all = BTreeMap::new();
    let Some(topology) = alive(world).find_map(|(_, member)| member.topology()) else { return all };
    for (node, member) in alive(world) {
        for segment in topology.current.segments_of(&node.address) {
            let own = contents(&member.container, segment, node.application_clock(world.now));
            all.extend(own.into_iter().map(|(key, (version, _))| (key, version)));
        }
    }
    all
}
