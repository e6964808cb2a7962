//! The coordinator makes the topologies of all caches, each when all members have confirmed the last. The
//! state of the view's first member is active, and begins with a request for the status of all members of the
//! view ([`gather`]).

mod cluster_stop;
mod coordinated_cache;
mod partitions;
mod restore;
mod status_collection;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use consort_group::{Address, View};

use crate::command::{Body, Restored, Status, ToCoordinator};
use crate::config::CacheId;
use crate::cx::Cx;
use crate::injected_bugs::InjectedBug;
use crate::{Ballot, CacheConfig, CacheMember, CacheMode, OpenError};
use coordinated_cache::CoordinatedCache;
use restore::ColdStart;
use status_collection::StatusCollection;

/// Many round trips.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Each takes the coordinator some kilobytes, and every member reports all of them to the next coordinator.
pub(crate) const CACHES_MAX: usize = 8_192;

pub(crate) struct Coordinator {
    local: Address,
    view: Option<View>,
    role: Role,
    led: BTreeMap<CacheId, CoordinatedCache>,
    restoring: BTreeMap<CacheId, ColdStart>,
    /// Of the view's new members.
    new: Option<StatusCollection>,
    report_higher_ballot: u64,
}

enum Role {
    Member,
    Collecting(StatusCollection),
    Leading,
}

impl Coordinator {
    pub(crate) fn new(local: Address) -> Self {
        let (led, restoring) = (BTreeMap::new(), BTreeMap::new());
        Self { local, view: None, role: Role::Member, led, restoring, new: None, report_higher_ballot: 0 }
    }

    pub(crate) fn handle_view(&mut self, cx: &mut Cx, view: &View) {
        let before = self.view.replace(view.clone());
        self.restoring.values_mut().for_each(|restoring| restoring.keep(view));
        self.restoring.retain(|_, restoring| !restoring.is_over());
        let is_lost = |member: &Address| !view.contains(member);
        let has_lost = before.as_ref().is_some_and(|before| before.members().iter().any(is_lost));
        let asked = self.new.take();
        // An absent member rejoins without a merge if its own coordinator has not missed this partition.
        let is_missed = |led: &CoordinatedCache| led.topology().absent().any(|member| view.contains(member));
        let has_back = self.led.values().any(is_missed);
        if view.coordinator() != Some(&self.local) {
            self.role = Role::Member;
            self.led.clear();
            self.restoring.clear();
        } else if matches!(self.role, Role::Leading)
            && !view.is_merge()
            && !has_back
            && (!has_lost || cx.has(InjectedBug::LossNotConfirmed))
        {
            for led in self.led.values_mut() {
                led.handle_view(cx, view);
            }
            self.led.retain(|_, led| !led.is_over());
            // A member that missed the view without it appears to have been present all the time, and believes to be a member of
            // its caches.
            let is_new = |member: &&Address| {
                before.as_ref().is_none_or(|before| !before.contains(member))
                    || asked.as_ref().is_some_and(|asked| asked.missing().contains(*member))
            };
            let new: BTreeSet<Address> = view.members().iter().filter(is_new).cloned().collect();
            if !new.is_empty() {
                self.new = Some(StatusCollection::of_new(cx, new));
            }
        } else {
            // Also if a member is lost, because a member of our view may be in the view of another coordinator, which has lost
            // us.
            self.gather(cx);
        }
    }

    /// The ballot is above all known ones.
    fn gather(&mut self, cx: &mut Cx) {
        let Some(view) = &self.view else { return };
        self.led.clear();
        self.restoring.clear();
        self.new = None;
        let promised = cx.promised.as_ref().map_or(0, |promised| promised.number);
        let number = promised.max(cx.leads.number).max(self.report_higher_ballot).saturating_add(1);
        cx.leads = Ballot { number, by: self.local.clone() };
        self.role = Role::Collecting(StatusCollection::begin(cx, view));
    }

    /// A member of another wire version has none of these caches, and will not respond.
    pub(crate) fn resume_without(&mut self, cx: &mut Cx, foreigner: &Address) {
        let Some(view) = &self.view else { return };
        match &mut self.role {
            Role::Collecting(gathering) => {
                let is_complete = gathering.skip(foreigner);
                if is_complete {
                    (self.led, self.restoring) = gathering.finish(cx, view);
                    self.role = Role::Leading;
                    self.finish_restored(cx);
                }
            }
            Role::Leading => {
                let is_complete = self.new.as_mut().is_some_and(|new| new.skip(foreigner));
                if is_complete {
                    self.new = None;
                }
            }
            Role::Member => {}
        }
    }

    /// `topology` is the sender's installed one.
    pub(crate) fn handle(
        &mut self,
        cx: &mut Cx,
        cache: CacheId,
        topology: u32,
        from: &Address,
        told: ToCoordinator,
    ) {
        if self.view.as_ref().is_none_or(|view| !view.contains(from)) {
            return;
        }
        match (&self.role, told) {
            (Role::Member, _) => {}
            (_, ToCoordinator::Outbid(ballot)) => self.handle_outbid(cx, &ballot),
            (_, ToCoordinator::Status(status)) => self.handle_status(cx, from, *status),
            (Role::Leading, ToCoordinator::Join { config, member, restored }) => {
                let is_shared = config.mode != CacheMode::Local && config.check().is_ok();
                if config.id() != cache || !is_shared || member.address != *from {
                    cx.counters.malformed += 1;
                    return;
                }
                self.handle_join(cx, config, member, restored);
            }
            (Role::Leading, told) => self.handle_request(cx, cache, topology, from, told),
            // A member repeats its request, or includes it in its status.
            (Role::Collecting(_), _) => {}
        }
    }

    fn handle_outbid(&mut self, cx: &mut Cx, ballot: &Ballot) {
        // The member has responded to another coordinator before or after this one, so its status here is out of date.
        if *ballot > cx.leads {
            self.report_higher_ballot = self.report_higher_ballot.max(ballot.number);
            self.gather(cx);
        }
    }

    fn handle_status(&mut self, cx: &mut Cx, from: &Address, status: Status) {
        match &mut self.role {
            Role::Member => {}
            Role::Collecting(gathering) => {
                let is_complete = gathering.handle(from, status);
                if is_complete && let Some(view) = &self.view {
                    (self.led, self.restoring) = gathering.finish(cx, view);
                    self.role = Role::Leading;
                    self.finish_restored(cx);
                }
            }
            Role::Leading => {
                let Some(new) = &mut self.new else { return };
                let is_complete = new.handle(from, status);
                if new.has_unknown_members(&self.led) {
                    self.gather(cx);
                } else if is_complete {
                    self.new = None;
                }
            }
        }
    }

    fn handle_join(
        &mut self,
        cx: &mut Cx,
        config: CacheConfig,
        member: CacheMember,
        restored: Option<Box<Restored>>,
    ) {
        let Some(view) = &self.view else { return };
        let cache = config.id();
        if let Some(led) = self.led.get_mut(&cache) {
            led.handle_join(cx, &config, member, restored.as_deref());
            if led.is_over() {
                self.led.remove(&cache);
            }
            return self.finish_restored(cx);
        }
        let is_new = !self.restoring.contains_key(&cache);
        if is_new && self.led.len() + self.restoring.len() >= CACHES_MAX {
            let error = OpenError::TooMany { cache: config.name, limit: CACHES_MAX as u32 };
            return cx.send(&member.address, cache, 0, Body::Refused(error));
        }
        match (self.restoring.get_mut(&cache), restored) {
            (None, None) => {
                self.led.insert(cache, CoordinatedCache::begin(cx, config, member, view));
            }
            (Some(restoring), restored) => {
                restoring.handle_join(cx, &config, member, restored.map(|restored| *restored));
            }
            (None, Some(restored)) => {
                let mut restoring = ColdStart::begin(config.clone(), &restored);
                restoring.handle_join(cx, &config, member, Some(*restored));
                self.restoring.insert(cache, restoring);
            }
        }
        self.finish_restored(cx);
    }

    fn handle_request(
        &mut self,
        cx: &mut Cx,
        cache: CacheId,
        topology: u32,
        from: &Address,
        told: ToCoordinator,
    ) {
        match (self.led.get_mut(&cache), told) {
            (Some(led), told) => {
                led.handle(cx, from, topology, told);
                if led.is_over() {
                    self.led.remove(&cache);
                }
            }
            (None, ToCoordinator::Leave) => {
                if let Some(restoring) = self.restoring.get_mut(&cache) {
                    restoring.remove(from);
                }
                self.restoring.retain(|_, restoring| !restoring.is_over());
                cx.send(from, cache, 0, Body::Left);
            }
            (None, ToCoordinator::MakeAvailable) => {
                let Some(view) = &self.view else { return };
                if let Some(restoring) = self.restoring.remove(&cache) {
                    self.led.insert(cache, restoring.finish(cx, view));
                }
            }
            (None, _) => {}
        }
    }

    pub(crate) fn balance(&mut self, cx: &mut Cx) {
        for led in self.led.values_mut() {
            led.advance(cx);
        }
        self.led.retain(|_, led| !led.is_over());
    }

    fn finish_restored(&mut self, cx: &mut Cx) {
        // The ballot ranks persisted topologies, also after a restart, so the ballots of this incarnation must be higher.
        let remembered = self.restoring.values().map(ColdStart::ballot).max();
        let is_above = |number: &u64| {
            *number >= cx.leads.number && cx.leads.number < u64::MAX && !cx.has(InjectedBug::BallotsForgotten)
        };
        if let Some(number) = remembered.filter(is_above) {
            self.report_higher_ballot = self.report_higher_ballot.max(number);
            return self.gather(cx);
        }
        let Some(view) = &self.view else { return };
        let again: Vec<(CacheId, ColdStart)> =
            self.led.iter().filter_map(|(id, led)| Some((*id, ColdStart::begin_again(cx, led)?))).collect();
        for (id, restoring) in again {
            self.led.remove(&id);
            self.restoring.insert(id, restoring);
        }
        let complete =
            |(id, restoring): (&CacheId, &ColdStart)| restoring.missing().is_empty().then_some(*id);
        let ids: Vec<CacheId> = self.restoring.iter().filter_map(complete).collect();
        for id in ids {
            if let Some(restoring) = self.restoring.remove(&id) {
                self.led.insert(id, restoring.finish(cx, view));
            }
        }
    }

    pub(crate) fn describe(&self) -> String {
        match &self.role {
            Role::Member => "another member".to_owned(),
            Role::Collecting(gathering) => format!("waits for the status of {:?}", gathering.missing()),
            Role::Leading => {
                let led = self.led.iter().map(|(id, led)| format!("cache {:08x}: {}", id.0, led.describe()));
                let restoring = self.restoring.iter().map(|(id, restoring)| {
                    format!("cache {:08x} waits until {:?} have rejoined", id.0, restoring.missing())
                });
                let new = self.new.iter().map(|new| format!("waits for the status of {:?}", new.missing()));
                led.chain(restoring).chain(new).collect::<Vec<_>>().join("; ")
            }
        }
    }

    pub(crate) fn is_waiting(&self) -> bool {
        match &self.role {
            Role::Member => false,
            Role::Collecting(_) => true,
            Role::Leading => self.new.is_some() || self.led.values().any(CoordinatedCache::is_waiting),
        }
    }

    pub(crate) fn look_after(&mut self, cx: &mut Cx) {
        match &mut self.role {
            Role::Member => {}
            Role::Collecting(gathering) => gathering.look_after(cx),
            Role::Leading => {
                self.new.iter_mut().for_each(|new| new.look_after(cx));
                self.led.values_mut().for_each(|led| led.look_after(cx));
            }
        }
    }
}
