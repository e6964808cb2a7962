//! One cache as its coordinator sees it: the newest topology, who has confirmed it, and what is to come next.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use consort_group::{Address, Time, View};

use super::AGAIN_AFTER;
use super::restore::{Restoring, place_of};
use crate::command::{Body, Restored, ToCoordinator};
use crate::merge::Side;
use crate::node::Cx;
use crate::planted::Planted;
use crate::topology::{Availability, Interest, Membership, Phase, Topology};
use crate::{CacheConfig, CacheMember, CacheMode, ConsistentHash, OpenError, PartitionHandling};

pub(super) struct Led {
    config: CacheConfig,
    pub(super) topology: Topology,
    /// Members of the view that have the cache open.
    pub(super) present: BTreeSet<Address>,
    confirmed: BTreeSet<Address>,
    /// The last rebalance that each member has pulled.
    pub(super) pulled: BTreeMap<Address, u32>,
    /// Members that have merged where they are primary in this topology.
    merged: BTreeSet<Address>,
    pub(super) leaving: BTreeSet<Address>,
    joining: Vec<CacheMember>,
    /// What members have come back with that want to join.
    returning: BTreeMap<Address, Restored>,
    /// Members of the topology that are here and have nothing of it: others have left them out.
    empty: BTreeSet<Address>,
    /// What is to follow when all have installed that members are left out.
    announced: Option<Announced>,
    published: Time,
}

/// Members are left out with the next topology.
#[derive(Clone, Copy)]
struct Announced {
    /// Somebody has gone on in a degraded cache.
    was_degraded: bool,
}

impl Led {
    /// A cache that nobody else has open.
    pub(super) fn begin(cx: &mut Cx, config: CacheConfig, member: CacheMember, view: &View) -> Self {
        let mut topology = Topology::first(1, member, config.owner_count(), config.segments);
        topology.ballot = cx.leads.clone();
        let mut led = Self::resume(config, topology);
        led.present = view.members().iter().cloned().collect();
        led.publish(cx);
        led
    }

    /// A cache that goes on from a topology.
    pub(super) fn resume(config: CacheConfig, topology: Topology) -> Self {
        Self {
            config,
            topology,
            present: BTreeSet::new(),
            confirmed: BTreeSet::new(),
            pulled: BTreeMap::new(),
            merged: BTreeSet::new(),
            leaving: BTreeSet::new(),
            joining: Vec::new(),
            returning: BTreeMap::new(),
            empty: BTreeSet::new(),
            announced: None,
            published: Time::ZERO,
        }
    }

    pub(super) fn topology(&self) -> &Topology {
        &self.topology
    }

    pub(super) fn config(&self) -> &CacheConfig {
        &self.config
    }

    /// Whether nobody has it open any more.
    pub(super) fn is_over(&self) -> bool {
        self.topology.members.is_empty() && self.joining.is_empty()
    }

    pub(super) fn is_waiting(&self) -> bool {
        !self.topology.merging.is_empty()
            || !self.unconfirmed().is_empty()
            || self.topology.phase != Phase::Stable
            || !self.joining.is_empty()
    }

    /// What it waits for, for people.
    pub(super) fn describe(&self) -> String {
        format!(
            "topology {} {:?}, without {:?} next, not confirmed by {:?}, pulled {:?}, merging {} merged {:?}, leaving {:?}, joining {}",
            self.topology.id,
            self.topology.phase,
            self.topology.forgone,
            self.unconfirmed(),
            self.pulled,
            self.topology.merging.len(),
            self.merged,
            self.leaving,
            self.joining.len()
        )
    }

    fn unconfirmed(&self) -> Vec<Address> {
        let members = self.topology.addresses();
        members.filter(|member| self.counts(member) && !self.confirmed.contains(member)).cloned().collect()
    }

    /// Whether a member is here with what it should have.
    fn counts(&self, member: &Address) -> bool {
        self.present.contains(member)
            && !self.empty.contains(member)
            && !self.topology.forgone.contains(member)
    }

    /// Notes that a member that is here has nothing. Returns whether that matters: others count on it. That nobody does of one
    /// that has never been a member and is one here: it has not heard of that, and its vote stands for nothing that it knew.
    pub(super) fn note_empty(&mut self, member: &Address, is_fresh: bool) -> bool {
        let topology = &self.topology;
        let votes = topology.quorums().any(|quorum| quorum.contains(member));
        let is_read = topology.read_owners().segments_of(member).next().is_some();
        // What a member of such a cache has, nobody else reads.
        let has_to_have = is_read && self.config.mode != CacheMode::Invalidation;
        let matters = topology.contains(member) && (has_to_have || (!is_fresh && (votes || is_read)));
        if matters {
            self.empty.insert(member.clone());
        }
        matters
    }

    /// Sends the topology to everybody who is here.
    pub(super) fn publish(&mut self, cx: &mut Cx) {
        self.confirmed.clear();
        self.merged.clear();
        self.published = cx.now;
        self.send_to_unconfirmed(cx);
    }

    fn send_to_unconfirmed(&self, cx: &mut Cx) {
        for member in self.unconfirmed() {
            cx.install(&member, self.config.id(), &self.topology);
        }
    }

    pub(super) fn look_after(&mut self, cx: &mut Cx) {
        if cx.now.since(self.published) >= AGAIN_AFTER {
            self.published = cx.now;
            self.send_to_unconfirmed(cx);
        }
    }

    pub(super) fn handle_view(&mut self, cx: &mut Cx, view: &View) {
        self.present = view.members().iter().cloned().collect();
        self.joining.retain(|member| view.contains(&member.address));
        let is_gone =
            |member: &Address| !view.contains(member) && !self.topology.absent().any(|one| one == member);
        if self.topology.addresses().any(is_gone) {
            let id = self.topology.id + 1;
            self.topology = self.without_the_lost(cx, id, false);
            if self.announced.is_some() {
                self.topology = self.topology.succeeded(id, |next| next.leave_out());
            }
            self.announced = None;
            self.publish(cx);
            self.advance(cx);
        }
    }

    /// Goes on after the coordinator has changed: under a new id for all, and as if all owners had changed, because what
    /// the others have heard of the last changes may differ. `others` are sides that come back with entries of their own;
    /// `was_degraded`: somebody has gone on in a degraded cache, whoever was away.
    pub(super) fn go_on(
        &mut self,
        cx: &mut Cx,
        id: u32,
        view: &View,
        others: Vec<(Side, Vec<CacheMember>)>,
        was_degraded: bool,
    ) {
        self.present.retain(|member| view.contains(member));
        // Who has gone on elsewhere comes anew, also if it was not missed here.
        let is_elsewhere = |member: &Address| {
            others.iter().flat_map(|(_, members)| members).any(|one| one.address == *member)
        };
        self.present.retain(|member| !is_elsewhere(member));
        let mut topology = self.without_the_lost(cx, id, was_degraded);
        if self.config.partitions == PartitionHandling::AllowReadWrites {
            topology.begin_line(&cx.local);
        }
        if was_degraded && topology.availability == Availability::Available {
            // What was written there was not told to those who were away.
            topology.renew_listening();
        }
        let all: Arc<[u32]> = topology.epochs.iter().map(|_| id).collect();
        topology.epochs = all.clone();
        topology.reigns = all;
        if !others.is_empty() || !topology.merging.is_empty() {
            self.fill(&mut topology);
        }
        for (side, members) in others {
            self.present.extend(members.iter().map(|member| member.address.clone()));
            topology.take_in(side, members);
        }
        self.topology = topology;
        self.publish(cx);
        self.advance(cx);
    }

    /// Segments that have lost all owners get new ones at once: what other sides have of them is merged by their primaries. Who
    /// has come with a side before has still what that side had, which is not this one's.
    fn fill(&self, topology: &mut Topology) {
        let is_kept = |one: &&Membership| topology.merging.iter().any(|side| side.since == one.since);
        let own = || topology.members.iter().filter(|one| !is_kept(one)).map(|one| &one.member);
        let staying: Vec<CacheMember> =
            own().filter(|member| !self.leaving.contains(&member.address)).cloned().collect();
        let takers = if staying.is_empty() { own().cloned().collect() } else { staying };
        let target = topology.current.rebalanced(takers);
        match &mut topology.pending {
            // Where it has nobody, nobody is to be read either.
            Some(pending) => *pending = pending.or(&target),
            None => topology.current = topology.current.or(&target),
        }
    }

    /// All members give up what they have: of what sides have written that did not know of each other, nobody may read
    /// what is older.
    pub(super) fn renew(&mut self, id: u32) {
        let renewed = |one: &Membership| Membership { since: id, ..one.clone() };
        self.topology.members = self.topology.members.iter().map(renewed).collect();
    }

    /// A topology that leaves out members that are not here with the next one, or is degraded if they are too many. Where
    /// all sides may go on, those who are not here are out at once.
    fn without_the_lost(&mut self, cx: &Cx, id: u32, was_degraded: bool) -> Topology {
        self.announced = None;
        let topology = &self.topology;
        let counts = |member: &Address| self.counts(member);
        let away: Arc<[Address]> = topology.addresses().filter(|member| !counts(member)).cloned().collect();
        let ballot = cx.leads.clone();
        if away.is_empty() {
            return topology.succeeded(id, |next| {
                next.availability = Availability::Available;
                next.ballot = ballot;
            });
        }
        if self.config.partitions == PartitionHandling::AllowReadWrites {
            let next = topology.succeeded(id, |next| {
                next.forgone = away;
                next.leave_out();
                next.part(&cx.local);
                next.begin_line(&cx.local);
                next.ballot = ballot;
            });
            self.empty.clear();
            return next;
        }
        // Who is no member any more does not install what the others have to.
        let votes = |member: &&Address| topology.contains(member) && counts(member);
        let is_most = |quorum: &Arc<[Address]>| 2 * quorum.iter().filter(votes).count() > quorum.len();
        let has_votes = topology.quorums().all(is_most) || cx.has(Planted::AbsentCounted);
        let readers = topology.read_owners();
        let is_lost = |segment| readers.owners(segment).len() > 0 && !readers.owners(segment).any(counts);
        // Who is lost now may be the only one that has what was acknowledged in the life before.
        let is_too_much = !has_votes || readers.segments().any(is_lost) || topology.phase == Phase::Restoring;
        if is_too_much {
            return topology.succeeded(id, |next| next.availability = Availability::Degraded { away });
        }
        let is_at_once = cx.has(Planted::LeftOutAtOnce);
        let next = topology.succeeded(id, |next| {
            next.forgone = away;
            next.ballot = ballot;
            if is_at_once {
                next.leave_out();
            }
        });
        if is_at_once {
            self.empty.clear();
        } else {
            self.announced = Some(Announced { was_degraded });
        }
        next
    }

    /// All have installed that members are left out: they are.
    fn leave_out(&mut self, cx: &mut Cx, announced: Announced) {
        self.announced = None;
        self.empty.clear();
        self.topology = self.topology.succeeded(self.topology.id + 1, |next| {
            next.leave_out();
            if announced.was_degraded {
                // What was written there was not told to those who were away.
                next.renew_listening();
            }
        });
        self.publish(cx);
    }

    pub(super) fn handle(&mut self, cx: &mut Cx, from: &Address, topology: u32, told: ToCoordinator) {
        match told {
            ToCoordinator::Confirm if topology == self.topology.id => {
                self.confirmed.insert(from.clone());
            }
            ToCoordinator::Pulled { rebalance } => {
                self.pulled.insert(from.clone(), rebalance);
            }
            ToCoordinator::Merged if topology == self.topology.id => {
                self.merged.insert(from.clone());
            }
            ToCoordinator::Leave => {
                self.joining.retain(|member| member.address != *from);
                self.leaving.insert(from.clone());
            }
            ToCoordinator::MakeAvailable if !self.topology.away().is_empty() && self.announced.is_none() => {
                let away = self.topology.away().to_vec();
                self.topology = self.topology.succeeded(self.topology.id + 1, |next| {
                    next.forgone = next.forgone.iter().chain(&away).cloned().collect();
                    next.leave_out();
                    next.quorum = next.addresses().cloned().collect();
                    next.quorum_to_be = None;
                });
                self.empty.clear();
                self.publish(cx);
            }
            ToCoordinator::Listen(interest) if self.topology.interest(from) != interest => {
                self.listen(cx, from, interest);
            }
            // Others have seen it silent under the topology that all have now.
            ToCoordinator::Deaf(member)
                if topology == self.topology.id && self.topology.interest(&member) != Interest::Nothing =>
            {
                self.listen(cx, &member, Interest::Nothing);
            }
            _ => return,
        }
        self.advance(cx);
    }

    /// A member is told something else of all changes.
    fn listen(&mut self, cx: &mut Cx, member: &Address, interest: Interest) {
        if self.topology.contains(member) {
            let id = self.topology.id + 1;
            self.topology = self.topology.succeeded(id, |next| next.listen(member, interest));
            self.publish(cx);
        }
    }

    pub(super) fn handle_join(
        &mut self,
        cx: &mut Cx,
        config: &CacheConfig,
        member: CacheMember,
        restored: Option<&Restored>,
    ) {
        if self.topology.contains(&member.address)
            && !self.topology.absent().any(|one| *one == member.address)
        {
            // It has not heard that it is a member.
            return cx.install(&member.address, self.config.id(), &self.topology);
        }
        self.handle_late(cx, config, member, restored);
        self.advance(cx);
    }

    /// A member that is to be taken in when there is time.
    pub(super) fn handle_late(
        &mut self,
        cx: &mut Cx,
        config: &CacheConfig,
        member: CacheMember,
        restored: Option<&Restored>,
    ) {
        if refuse_differing(cx, &self.config, config, &member) {
            return;
        }
        if let Some(ours) = restored.map(|restored| &restored.topology.origin)
            && *ours != self.topology.origin
        {
            let (cache, theirs) = (self.config.name.clone(), self.topology.origin.clone().into());
            let error = OpenError::OtherData { cache, ours: ours.clone().into(), theirs };
            return cx.send(&member.address, self.config.id(), 0, Body::Refused(error));
        }
        if let Some(restored) = restored {
            self.returning.insert(member.address.clone(), restored.clone());
        }
        // After a change of coordinators it knows those only who had the cache open then.
        if !cx.has(Planted::JoinerNotAwaited) {
            self.present.insert(member.address.clone());
        }
        if !self.joining.iter().any(|other| other.address == member.address) {
            self.joining.push(member);
        }
    }

    /// The next topology, if everybody has confirmed the last and there is something to do.
    fn advance(&mut self, cx: &mut Cx) {
        if !self.unconfirmed().is_empty() && !cx.has(Planted::PhaseTooEarly) {
            return;
        }
        self.let_go(cx);
        if let Some(announced) = self.announced {
            self.leave_out(cx, announced);
            return self.advance(cx);
        }
        if !self.topology.away().is_empty() {
            return;
        }
        let id = self.topology.id + 1;
        let next = match (self.topology.phase, &self.topology.pending) {
            (Phase::ReadOldWriteAll, Some(pending)) if self.is_pulled(pending) => {
                let quorum = staying(&self.topology.members, &self.leaving);
                Some(self.topology.succeeded(id, |next| {
                    next.phase = Phase::ReadNewWriteAll;
                    if !cx.has(Planted::QuorumAtOnce) {
                        next.quorum_to_be = Some(quorum);
                    }
                }))
            }
            (Phase::ReadNewWriteAll, Some(pending)) => Some(self.topology.succeeded(id, |next| {
                next.phase = Phase::Stable;
                next.current = pending.clone();
                next.pending = None;
                match next.quorum_to_be.take() {
                    Some(quorum) => next.quorum = quorum,
                    None => next.quorum = staying(&next.members, &self.leaving),
                }
            })),
            (Phase::Stable, _) if self.topology.quorum_to_be.is_some() => {
                Some(self.topology.succeeded(id, |next| {
                    next.quorum = next.quorum_to_be.take().unwrap_or_default();
                }))
            }
            (Phase::Stable, _) if !self.topology.merging.is_empty() => {
                let is_merged = self.topology.addresses().all(|member| self.merged.contains(member));
                is_merged.then(|| self.topology.succeeded(id, |next| next.merging = Arc::from([])))
            }
            (Phase::Stable, _) => self.rebalance(cx, id),
            (Phase::Restoring, _) if self.is_restored() => Some(self.restored(id)),
            _ => None,
        };
        if let Some(next) = next {
            self.topology = next;
            self.publish(cx);
        }
    }

    /// Members that wanted to leave may, now that nobody has a topology with them any more.
    fn let_go(&mut self, cx: &mut Cx) {
        let (staying, left) =
            std::mem::take(&mut self.leaving).into_iter().partition(|member| self.topology.contains(member));
        self.leaving = staying;
        for member in left {
            cx.send(&member, self.config.id(), 0, Body::Left);
        }
    }

    fn is_pulled(&self, pending: &ConsistentHash) -> bool {
        let current = &self.topology.current;
        let pulls = |member: &Address| {
            pending.segments_of(member).any(|segment| !current.owners(segment).any(|owner| owner == member))
        };
        pending.members().iter().map(|member| &member.address).all(|member| {
            !pulls(member) || self.pulled.get(member).is_some_and(|pulled| *pulled >= self.topology.rebalance)
        })
    }

    /// Whether the first owner of each segment has the newest of what all have.
    fn is_restored(&self) -> bool {
        let is_done = |member: &Address| {
            self.pulled.get(member).is_some_and(|pulled| *pulled >= self.topology.rebalance)
        };
        self.topology.addresses().all(is_done)
    }

    /// Begins once more, if members were lost while the cache began again and all of them are back with their stores.
    pub(super) fn begins_again(&self, cx: &mut Cx) -> Option<Restoring> {
        let topology = &self.topology;
        if topology.phase != Phase::Restoring || topology.away().is_empty() {
            return None;
        }
        let is_here = |member: &&CacheMember| self.present.contains(&member.address);
        let returning = || self.joining.iter().filter(is_here);
        let back: Vec<&Address> = returning()
            .filter_map(|member| place_of(topology, self.returning.get(&member.address)?))
            .collect();
        if !topology.away().iter().all(|away| back.contains(&away)) {
            return None;
        }
        let left = topology.members.iter().map(|one| &one.member);
        let left = left.filter(|member| !topology.away().contains(&member.address));
        let mut restoring = Restoring::again(self.config.clone(), topology, left);
        for member in returning() {
            let restored = self.returning.get(&member.address).cloned();
            restoring.handle_join(cx, &self.config, member.clone(), restored);
        }
        Some(restoring)
    }

    /// The first owners have everything, and the others fetch what they lack.
    fn restored(&self, id: u32) -> Topology {
        let all = self.topology.current.clone();
        let first = all.primaries();
        self.topology.succeeded(id, |next| {
            next.forget_former();
            if first.has_owners_of(&all) {
                next.phase = Phase::Stable;
            } else {
                next.phase = Phase::ReadOldWriteAll;
                next.current = first;
                next.pending = Some(all);
                next.rebalance = id;
            }
        })
    }

    /// Takes in who wants to join, lets go who wants to leave and owns nothing, and begins to move what is to be moved.
    fn rebalance(&mut self, cx: &mut Cx, id: u32) -> Option<Topology> {
        let joining = std::mem::take(&mut self.joining);
        // Who was on another side in a life before may have counted further, and is to know that it has missed something.
        let remembered = joining.iter().filter_map(|member| self.returning.get(&member.address));
        let remembered = remembered.map(|restored| restored.topology.id).max();
        let id = remembered.map_or(id, |last| id.max(last.saturating_add(1)));
        let current = &self.topology.current;
        let is_free =
            |member: &Address| self.leaving.contains(member) && current.segments_of(member).next().is_none();
        let (left, stays): (Vec<Membership>, Vec<Membership>) =
            self.topology.members.iter().cloned().partition(|one| is_free(&one.member.address));
        let members: Vec<Membership> =
            stays.into_iter().chain(joining.into_iter().map(|member| Membership::new(member, id))).collect();
        let owners: Vec<CacheMember> = members
            .iter()
            .map(|one| one.member.clone())
            .filter(|member| !self.leaving.contains(&member.address))
            .collect();
        if owners.is_empty() && !members.is_empty() {
            // The last ones take the cache with them.
            for one in members.iter().chain(&left) {
                cx.send(&one.member.address, self.config.id(), 0, Body::Left);
            }
            self.topology.members = Arc::from([]);
            return None;
        }
        // Where those who stay take nothing, what the others have goes with them.
        let target = current.rebalanced(owners);
        let is_moved = !current.has_owners_of(&target);
        let quorum: Arc<[Address]> = staying(&members, &self.leaving);
        let is_same = left.is_empty() && members.len() == self.topology.members.len();
        if !is_moved && is_same && quorum == self.topology.quorum {
            return None;
        }
        Some(self.topology.succeeded(id, |next| {
            next.members = members.into();
            // Where each has its own, nothing has to be there before a member is read.
            if is_moved && self.config.mode != CacheMode::Invalidation {
                next.phase = Phase::ReadOldWriteAll;
                next.pending = Some(target);
                next.rebalance = id;
            } else {
                next.current = target;
                match cx.has(Planted::QuorumAtOnce) {
                    true => next.quorum = quorum,
                    false => next.quorum_to_be = Some(quorum),
                }
            }
        }))
    }
}

/// Whether a member means another cache by this name, and was told so.
pub(super) fn refuse_differing(
    cx: &mut Cx,
    ours: &CacheConfig,
    theirs: &CacheConfig,
    member: &CacheMember,
) -> bool {
    let Some((setting, here, there)) = ours.difference(theirs) else { return false };
    let (cache, setting) = (ours.name.clone(), setting.into());
    let error = OpenError::Different { cache, setting, ours: there.into(), theirs: here.into() };
    cx.send(&member.address, ours.id(), 0, Body::Refused(error));
    true
}

/// The members that want to stay: of them more than half must be there.
fn staying(members: &[Membership], leaving: &BTreeSet<Address>) -> Arc<[Address]> {
    let addresses = members.iter().map(|one| &one.member.address);
    addresses.filter(|member| !leaving.contains(member)).cloned().collect()
}
