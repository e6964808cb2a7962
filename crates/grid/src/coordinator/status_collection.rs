//! The collection of statuses. A new coordinator requests those of its view, and continues from the newest
//! topology. Later it requests those of new members, which usually have no cache open.

use std::collections::{BTreeMap, BTreeSet};

use consort_group::{Address, Time, View};

use super::AGAIN_AFTER;
use super::coordinated_cache::CoordinatedCache;
use super::partitions;
use super::restore::ColdStart;
use crate::command::{Body, CacheStatus, Restored, Status};
use crate::config::CacheId;
use crate::cx::Cx;
use crate::injected_bugs::InjectedBug;
use crate::topology::{Availability, Topology};
use crate::{Ballot, CacheMode, PartitionHandling};

pub(super) struct StatusCollection {
    ballot: Ballot,
    missing: BTreeSet<Address>,
    found: Vec<(Address, CacheStatus)>,
    asked: Time,
}

impl StatusCollection {
    pub(super) fn begin(cx: &mut Cx, view: &View) -> Self {
        let is_foreign = |member: &&Address| cx.foreigners.contains_key(*member);
        let missing = view.members().iter().filter(|member| !is_foreign(member)).cloned().collect();
        let gathering = Self { ballot: cx.leads.clone(), missing, found: Vec::new(), asked: cx.now };
        gathering.ask(cx);
        gathering
    }

    pub(super) fn of_new(cx: &mut Cx, new: BTreeSet<Address>) -> Self {
        let gathering = Self { ballot: cx.leads.clone(), missing: new, found: Vec::new(), asked: cx.now };
        gathering.ask(cx);
        gathering
    }

    fn ask(&self, cx: &mut Cx) {
        for member in &self.missing {
            cx.send(member, CacheId(0), 0, Body::StatusRequest { ballot: self.ballot.clone() });
        }
    }

    pub(super) fn missing(&self) -> &BTreeSet<Address> {
        &self.missing
    }

    pub(super) fn look_after(&mut self, cx: &mut Cx) {
        if cx.now.since(self.asked) >= AGAIN_AFTER {
            self.asked = cx.now;
            self.ask(cx);
        }
    }

    pub(super) fn skip(&mut self, member: &Address) -> bool {
        self.missing.remove(member) && self.missing.is_empty()
    }

    pub(super) fn handle(&mut self, from: &Address, status: Status) -> bool {
        if status.ballot == self.ballot && self.missing.remove(from) {
            let caches = status.caches.into_iter().filter(|cache| is_sound(from, cache));
            self.found.extend(caches.map(|cache| (from.clone(), cache)));
        }
        self.missing.is_empty()
    }

    /// Whether a member is not a member of its cache here, or has a newer topology.
    pub(super) fn has_unknown_members(&self, led: &BTreeMap<CacheId, CoordinatedCache>) -> bool {
        self.found.iter().any(|(member, status)| {
            let Some(theirs) = &status.topology else { return false };
            let ours = led.get(&status.config.id()).map(CoordinatedCache::topology);
            ours.is_none_or(|ours| {
                !ours.contains(member) || ours.id < theirs.id || ours.ballot < theirs.ballot
            })
        })
    }

    /// Each cache gets a new topology.
    pub(super) fn finish(
        &mut self,
        cx: &mut Cx,
        view: &View,
    ) -> (BTreeMap<CacheId, CoordinatedCache>, BTreeMap<CacheId, ColdStart>) {
        let mut caches: BTreeMap<CacheId, Vec<(Address, CacheStatus)>> = BTreeMap::new();
        for (member, status) in std::mem::take(&mut self.found) {
            caches.entry(status.config.id()).or_default().push((member, status));
        }
        let (mut led, mut restoring) = (BTreeMap::new(), BTreeMap::new());
        for (id, found) in caches {
            match restore(cx, &found) {
                Some(restored) => {
                    restoring.insert(id, restored);
                }
                None => led.extend(resume(cx, view, found).map(|resumed| (id, resumed))),
            }
        }
        (led, restoring)
    }
}

fn is_sound(from: &Address, status: &CacheStatus) -> bool {
    let is_of_it = |topology: &Topology| {
        topology.current.segment_count() == status.config.segments && topology.contains(from)
    };
    let is_sound = |restored: &Restored| {
        restored.topology.current.segment_count() == status.config.segments
            && restored.topology.contains(&restored.formerly)
    };
    status.config.check().is_ok()
        && status.restored.as_ref().is_none_or(is_sound)
        && status.member.address == *from
        && status.topology.as_ref().is_none_or(is_of_it)
        && status.frozen.as_ref().is_none_or(is_of_it)
}

fn restore(cx: &mut Cx, found: &[(Address, CacheStatus)]) -> Option<ColdStart> {
    if found.iter().any(|(_, status)| status.topology.is_some()) {
        return None;
    }
    let staying: Vec<&CacheStatus> =
        found.iter().map(|(_, status)| status).filter(|status| !status.is_leaving).collect();
    let (config, restored) =
        staying.iter().find_map(|status| Some((&status.config, status.restored.as_ref()?)))?;
    let mut restoring = ColdStart::begin(config.clone(), restored);
    for status in staying {
        restoring.handle_join(cx, &status.config, status.member.clone(), status.restored.clone());
    }
    Some(restoring)
}

/// `None`: no member uses the cache any more.
fn resume(cx: &mut Cx, view: &View, found: Vec<(Address, CacheStatus)>) -> Option<CoordinatedCache> {
    let goes_on = |(_, status): &(Address, CacheStatus)| {
        status.config.partitions == PartitionHandling::AllowReadWrites && !cx.has(InjectedBug::LongestWins)
    };
    let merges = found.iter().any(goes_on);
    let preferred = || {
        let status = partitions::preferred(&found, view)?;
        Some((status.topology.as_ref()?, &status.config))
    };
    let all = || found.iter().filter_map(|(_, status)| Some((status.topology.as_ref()?, &status.config)));
    let longest = if cx.has(InjectedBug::WrongHistory) {
        all().min_by_key(|(topology, _)| topology.available)
    } else {
        // Histories that began independently have independent ballots.
        let origin =
            all().max_by_key(|(topology, _)| rank(topology, view)).map(|(topology, _)| &topology.origin);
        let of_it = all().filter(|(topology, _)| Some(&topology.origin) == origin);
        of_it.max_by_key(|(topology, _)| (&topology.ballot, rank(topology, view)))
    };
    let best = if merges { preferred() } else { longest };
    let Some((best, config)) = best.map(|(topology, config)| (topology.clone(), config.clone())) else {
        let staying = found.into_iter().filter(|(_, status)| !status.is_leaving);
        return staying.fold(None, |led, (_, status)| match led {
            None => Some(CoordinatedCache::begin(cx, status.config, status.member, view)),
            Some(mut led) => {
                led.handle_join(cx, &status.config, status.member, None);
                Some(led)
            }
        });
    };
    let ids = found.iter().filter_map(|(_, status)| Some(status.topology.as_ref()?.id));
    let last = ids.max().unwrap_or(0);
    let id = match merges && may_be_elsewhere(cx, &best, last, &found) {
        true => best.first_id_of_lineage(last, &cx.local),
        false => last + 1,
    };
    let mut others = if merges { partitions::partitions_to_merge(&best, &found, id) } else { Vec::new() };
    let is_apart = |(_, status): &(Address, CacheStatus)| {
        status.topology.as_ref().is_some_and(|topology| topology.origin != best.origin)
    };
    let must_renew =
        config.mode == CacheMode::Invalidation && (!others.is_empty() || found.iter().any(is_apart));
    if config.mode == CacheMode::Invalidation {
        others.clear();
    }
    let is_degraded = |topology: &Topology| topology.availability != Availability::Available;
    let was_degraded = found.iter().any(|(_, status)| status.topology.as_ref().is_some_and(is_degraded));
    let mut led = CoordinatedCache::resume(config, best);
    if must_renew {
        led.renew(id);
    }
    for (member, status) in found {
        led.pulled.insert(member.clone(), status.pulled);
        if status.is_leaving {
            led.leaving.insert(member.clone());
        }
        let has_more = others.iter().any(|(_, members)| members.contains(&status.member));
        let is_empty = status.topology.is_none() && led.note_empty(&member, status.is_fresh);
        if !is_empty {
            led.present.insert(member);
        }
        let is_left_out = led.topology.forgone.contains(&status.member.address);
        let is_new = is_empty || is_left_out || !led.topology.contains(&status.member.address);
        if !has_more && is_new && !status.is_leaving {
            led.handle_late(cx, &status.config, status.member, status.restored.as_ref());
        }
    }
    led.go_on(cx, id, view, others, was_degraded);
    (!led.is_over()).then_some(led)
}

/// A topology of this coordinator itself can be nowhere else.
fn may_be_elsewhere(cx: &Cx, best: &Topology, last: u32, found: &[(Address, CacheStatus)]) -> bool {
    let has_sides =
        found.iter().any(|(_, status)| status.topology.is_some() && !partitions::is_member_of(best, status));
    let is_here = |member: &Address| found.iter().any(|(one, _)| one == member);
    let is_ours = best.id == last && best.ballot.by == cx.local && is_here(&cx.local);
    has_sides || !is_ours && !best.addresses().all(is_here)
}

/// The history that was available last comes first; within one history, the newest.
fn rank(topology: &Topology, view: &View) -> (u32, bool, usize, u32) {
    let present = topology.addresses().filter(|member| view.contains(member)).count();
    let is_available = topology.availability == Availability::Available;
    (topology.available, is_available, present, topology.id)
}
