//! A new coordinator finds out what there is: it asks everybody in its view, and goes on from the newest topology. One that
//! goes on asks those who are new in its view: usually they have nothing.

use std::collections::{BTreeMap, BTreeSet};

use consort_group::{Address, Time, View};

use super::AGAIN_AFTER;
use super::led::Led;
use super::restore::Restoring;
use super::sides;
use crate::command::{Body, CacheId, CacheStatus, Restored, Status};
use crate::node::Cx;
use crate::planted::Planted;
use crate::topology::{Availability, Topology};
use crate::{CacheMode, PartitionHandling};

/// In the number of a question to those who are new in a view; no view has such a number.
const NEW: u64 = 1 << 63;

/// The members that have not answered, and the answers of those that have.
pub(super) struct Gathering {
    nonce: u64,
    missing: BTreeSet<Address>,
    found: Vec<(Address, CacheStatus)>,
    asked: Time,
}

impl Gathering {
    pub(super) fn begin(cx: &mut Cx, view: &View) -> Self {
        let missing = view.members().iter().cloned().collect();
        let gathering = Self { nonce: view.id().id, missing, found: Vec::new(), asked: cx.now };
        gathering.ask(cx);
        gathering
    }

    /// Asks those who are new in the view only. Their answers are not taken for those to [`Gathering::begin`] in this view.
    pub(super) fn of_new(cx: &mut Cx, view: &View, new: BTreeSet<Address>) -> Self {
        let nonce = view.id().id | NEW;
        let gathering = Self { nonce, missing: new, found: Vec::new(), asked: cx.now };
        gathering.ask(cx);
        gathering
    }

    fn ask(&self, cx: &mut Cx) {
        for member in &self.missing {
            cx.send(member, CacheId(0), 0, Body::StatusRequest { nonce: self.nonce });
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

    /// Takes an answer. Returns whether it was the last.
    pub(super) fn handle(&mut self, from: &Address, status: Status) -> bool {
        if status.nonce == self.nonce && self.missing.remove(from) {
            let caches = status.caches.into_iter().filter(|cache| is_sound(from, cache));
            self.found.extend(caches.map(|cache| (from.clone(), cache)));
        }
        self.missing.is_empty()
    }

    /// Whether somebody who has answered has a part of a cache, and is no member of that cache here.
    pub(super) fn has_strangers(&self, led: &BTreeMap<CacheId, Led>) -> bool {
        self.found.iter().any(|(member, status)| {
            let led = led.get(&status.config.id());
            status.topology.is_some() && led.is_none_or(|led| !led.topology().contains(member))
        })
    }

    /// All caches of the view's members, each with a new topology.
    pub(super) fn finish(
        &mut self,
        cx: &mut Cx,
        view: &View,
    ) -> (BTreeMap<CacheId, Led>, BTreeMap<CacheId, Restoring>) {
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

/// Whether the parts of a status fit each other.
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

/// A cache that nobody has and somebody comes back with.
fn restore(cx: &mut Cx, found: &[(Address, CacheStatus)]) -> Option<Restoring> {
    if found.iter().any(|(_, status)| status.topology.is_some()) {
        return None;
    }
    let staying: Vec<&CacheStatus> =
        found.iter().map(|(_, status)| status).filter(|status| !status.is_leaving).collect();
    let (config, restored) =
        staying.iter().find_map(|status| Some((&status.config, status.restored.as_ref()?)))?;
    let mut restoring = Restoring::begin(config.clone(), restored);
    for status in staying {
        restoring.handle_join(cx, &status.config, status.member.clone(), status.restored.clone());
    }
    Some(restoring)
}

/// Goes on with a cache; `None` if nobody uses it any more.
fn resume(cx: &mut Cx, view: &View, found: Vec<(Address, CacheStatus)>) -> Option<Led> {
    let goes_on = |(_, status): &(Address, CacheStatus)| {
        status.config.partitions == PartitionHandling::AllowReadWrites && !cx.has(Planted::LongestWins)
    };
    let merges = found.iter().any(goes_on);
    let preferred = || {
        let status = sides::preferred(&found, view)?;
        Some((status.topology.as_ref()?, &status.config))
    };
    let longest = found
        .iter()
        .filter_map(|(_, status)| Some((status.topology.as_ref()?, &status.config)))
        .max_by_key(|(topology, _)| {
            let rank = rank(topology, view);
            if cx.has(Planted::WrongHistory) { (u32::MAX - rank.0, rank.1, rank.2, rank.3) } else { rank }
        });
    let best = if merges { preferred() } else { longest };
    let Some((best, config)) = best.map(|(topology, config)| (topology.clone(), config.clone())) else {
        let staying = found.into_iter().filter(|(_, status)| !status.is_leaving);
        return staying.fold(None, |led, (_, status)| match led {
            None => Some(Led::begin(cx, status.config, status.member, view)),
            Some(mut led) => {
                led.handle_join(cx, &status.config, status.member, None);
                Some(led)
            }
        });
    };
    let ids = found.iter().filter_map(|(_, status)| Some(status.topology.as_ref()?.id));
    let id = ids.max().unwrap_or(0) + 1;
    let mut others = if merges { sides::others(&best, &found, id) } else { Vec::new() };
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
    let mut led = Led::resume(config, best);
    if must_renew {
        led.renew(id);
    }
    for (member, status) in found {
        led.pulled.insert(member.clone(), status.pulled);
        if status.is_leaving {
            led.leaving.insert(member.clone());
        }
        led.present.insert(member);
        let has_more = others.iter().any(|(_, members)| members.contains(&status.member));
        if !has_more && !led.topology.contains(&status.member.address) && !status.is_leaving {
            led.handle_late(cx, &status.config, status.member, status.restored.as_ref());
        }
    }
    led.go_on(cx, id, view, others, was_degraded);
    (!led.is_over()).then_some(led)
}

/// Which topology to go on from: of that history which was available last; of one history the newest.
fn rank(topology: &Topology, view: &View) -> (u32, bool, usize, u32) {
    let present = topology.addresses().filter(|member| view.contains(member)).count();
    let is_available = topology.availability == Availability::Available;
    (topology.available, is_available, present, topology.id)
}
