use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use consort_group::{Address, Time, View};

use super::AGAIN_AFTER;
use crate::command::{Body, Restored, ToCoordinator};
use crate::cx::Cx;
use crate::injected_bugs::InjectedBug;
use crate::merge::PartitionSide;
use crate::topology::{Availability, Interest, Membership, Phase, Topology};
use crate::{CacheConfig, CacheMember, CacheMode, ConsistentHash, OpenError, PartitionHandling};

pub(super) struct CoordinatedCache {
    config: CacheConfig,
    pub(super) topology: Topology,
    pub(super) present: BTreeSet<Address>,
    confirmed: BTreeSet<Address>,
    /// The last rebalance whose segments each member has received.
    pub(super) pulled: BTreeMap<Address, u32>,
    /// Members that have merged all segments of their own in this topology.
    merged: BTreeSet<Address>,
    pub(super) leaving: BTreeSet<Address>,
    pub(super) joining: Vec<CacheMember>,
    returning: BTreeMap<Address, Restored>,
    /// Members of the view and the topology without data, because another partition removed them.
    empty: BTreeSet<Address>,
    /// It follows when all members have installed the announcement.
    announced: Option<Announced>,
    /// The cache has begun here, and its segments have not had all their owners yet: they get them even if owners are not
    /// balanced. Otherwise a new cache would have one copy.
    is_new: bool,
    published: Time,
}

#[derive(Clone, Copy)]
struct Announced {
    was_degraded: bool,
}

impl CoordinatedCache {
    pub(super) fn begin(cx: &mut Cx, config: CacheConfig, member: CacheMember, view: &View) -> Self {
        let mut topology = Topology::first(1, member, config.owner_count(), config.segments);
        topology.ballot = cx.leads.clone();
        let mut led = Self::resume(config, topology);
        led.is_new = true;
        led.present = view.members().iter().cloned().collect();
        led.publish(cx);
        led
    }

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
            is_new: false,
            published: Time::ZERO,
        }
    }

    pub(super) fn topology(&self) -> &Topology {
        &self.topology
    }

    pub(super) fn config(&self) -> &CacheConfig {
        &self.config
    }

    pub(super) fn is_over(&self) -> bool {
        self.topology.members.is_empty() && self.joining.is_empty()
    }

    pub(super) fn is_waiting(&self) -> bool {
        !self.topology.merging.is_empty()
            || !self.unconfirmed().is_empty()
            || self.topology.phase != Phase::Stable
            || !self.joining.is_empty()
    }

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

    fn counts(&self, member: &Address) -> bool {
        self.present.contains(member)
            && !self.empty.contains(member)
            && !self.topology.forgone.contains(member)
    }

    /// Returns whether other members rely on the data of a present member that has none. They do not rely on
    /// a fresh member of this topology only: it has not received the topology, and its vote carries no
    /// knowledge.
    pub(super) fn note_empty(&mut self, member: &Address, is_fresh: bool) -> bool {
        let topology = &self.topology;
        let votes = topology.quorums().any(|quorum| quorum.contains(member));
        let is_read = topology.read_owners().segments_of(member).next().is_some();
        // No other member reads the entries of a member of an invalidation cache.
        let has_to_have = is_read && self.config.mode != CacheMode::Invalidation;
        let matters = topology.contains(member) && (has_to_have || (!is_fresh && (votes || is_read)));
        if matters {
            self.empty.insert(member.clone());
        }
        matters
    }

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
        if self.is_stopped(cx) {
            return self.end(cx);
        }
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

    /// Continues after a change of coordinators. All segments get a new topology id, because members may have
    /// received different topologies last. `others` are partitions that rejoin with entries; `was_degraded`:
    /// any member has continued in a degraded cache.
    pub(super) fn go_on(
        &mut self,
        cx: &mut Cx,
        id: u32,
        view: &View,
        others: Vec<(PartitionSide, Vec<CacheMember>)>,
        was_degraded: bool,
    ) {
        self.present.retain(|member| view.contains(member));
        // A member that has continued in another partition joins anew, even if this partition has not missed it.
        let is_elsewhere = |member: &Address| {
            others.iter().flat_map(|(_, members)| members).any(|one| one.address == *member)
        };
        self.present.retain(|member| !is_elsewhere(member));
        if self.is_stopped(cx) {
            return self.end(cx);
        }
        let mut topology = self.without_the_lost(cx, id, was_degraded);
        if self.config.partitions == PartitionHandling::AllowReadWrites {
            topology.begin_lineage(&cx.local);
        }
        if was_degraded {
            // Members that were unreachable have not received the events of writes there. The cache may still be degraded:
            // segments with all owners on one side are written.
            topology.renew_listening();
        }
        let all: Arc<[u32]> = topology.epochs.iter().map(|_| id).collect();
        topology.epochs = all.clone();
        topology.primary_terms = all;
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

    /// Segments that have lost all owners get new ones, whose primaries merge other partitions' entries. A
    /// member that has rejoined with a partition is no new owner, because it still has that partition's
    /// entries.
    fn fill(&self, topology: &mut Topology) {
        let is_kept = |one: &&Membership| topology.merging.iter().any(|side| side.since == one.since);
        let own = || topology.members.iter().filter(|one| !is_kept(one)).map(|one| &one.member);
        let staying: Vec<CacheMember> =
            own().filter(|member| !self.leaving.contains(&member.address)).cloned().collect();
        let takers = if staying.is_empty() { own().cloned().collect() } else { staying };
        let target = topology.current.rebalanced(takers);
        match &mut topology.pending {
            // A segment without pending owners has no owners to be read either.
            Some(pending) => *pending = pending.or(&target),
            None => topology.current = topology.current.or(&target),
        }
    }

    /// Makes all members drop their entries: independent partitions have written, so no member may read older
    /// entries.
    pub(super) fn renew(&mut self, id: u32) {
        let renewed = |one: &Membership| Membership { since: id, ..one.clone() };
        self.topology.members = self.topology.members.iter().map(renewed).collect();
    }

    /// The topology announces the removal of absent members, or is degraded if too many are absent. If all
    /// partitions may continue, absent members are removed at once.
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
                next.begin_lineage(&cx.local);
                next.ballot = ballot;
            });
            self.empty.clear();
            return next;
        }
        // A removed member does not install the topologies that the members have to install.
        let votes = |member: &&Address| topology.contains(member) && counts(member);
        let is_most = |quorum: &Arc<[Address]>| 2 * quorum.iter().filter(votes).count() > quorum.len();
        let has_votes = topology.quorums().all(is_most) || cx.has(InjectedBug::AbsentCounted);
        let readers = topology.read_owners();
        let is_lost = |segment| readers.owners(segment).len() > 0 && !readers.owners(segment).any(counts);
        // During a cold start, a lost member may be the only one with writes acknowledged in the previous incarnation.
        let is_too_much = !has_votes || readers.segments().any(is_lost) || topology.phase == Phase::Restoring;
        if is_too_much {
            return topology.succeeded(id, |next| next.availability = Availability::Degraded { away });
        }
        let is_at_once = cx.has(InjectedBug::LeftOutAtOnce);
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

    fn leave_out(&mut self, cx: &mut Cx, announced: Announced) {
        self.announced = None;
        self.empty.clear();
        self.topology = self.topology.succeeded(self.topology.id + 1, |next| {
            next.leave_out();
            if announced.was_degraded {
                // Members that were unreachable have not received the events of writes there.
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
            // The reporting member has observed the stalled member under the topology that all members have now.
            ToCoordinator::Deaf(member)
                if topology == self.topology.id && self.topology.interest(&member) != Interest::Nothing =>
            {
                self.listen(cx, &member, Interest::Nothing);
            }
            _ => return,
        }
        self.advance(cx);
    }

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
            // The member has not received the topology that contains it.
            return cx.install(&member.address, self.config.id(), &self.topology);
        }
        self.handle_late(cx, config, member, restored);
        self.advance(cx);
    }

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
            let error = OpenError::ForeignStore { cache, ours: ours.clone().into(), theirs };
            return cx.send(&member.address, self.config.id(), 0, Body::Refused(error));
        }
        if let Some(restored) = restored {
            self.returning.insert(member.address.clone(), restored.clone());
        }
        // After a change of coordinators, `present` has only the members that had the cache open then.
        if !cx.has(InjectedBug::JoinerNotAwaited) {
            self.present.insert(member.address.clone());
        }
        if !self.joining.iter().any(|other| other.address == member.address) {
            self.joining.push(member);
        }
    }

    pub(super) fn advance(&mut self, cx: &mut Cx) {
        if self.is_stopped(cx) {
            return self.end(cx);
        }
        if !self.unconfirmed().is_empty() && !cx.has(InjectedBug::PhaseTooEarly) {
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
                    if !cx.has(InjectedBug::QuorumAtOnce) {
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

    /// Leaving members close the cache once no member has a topology with them.
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

    fn is_restored(&self) -> bool {
        let is_done = |member: &Address| {
            self.pulled.get(member).is_some_and(|pulled| *pulled >= self.topology.rebalance)
        };
        self.topology.addresses().all(is_done)
    }

    pub(super) fn returning(&self) -> impl Iterator<Item = (&CacheMember, Option<&Restored>)> {
        let joining = self.joining.iter().filter(|member| self.present.contains(&member.address));
        joining.map(|member| (member, self.returning.get(&member.address)))
    }

    /// The first owners have everything, and the other owners receive their missing entries.
    fn restored(&self, id: u32) -> Topology {
        let all = self.topology.current.clone();
        let first = all.primaries();
        self.topology.succeeded(id, |next| {
            next.forget_former();
            if first.has_same_owners_as(&all) {
                next.phase = Phase::Stable;
            } else {
                next.phase = Phase::ReadOldWriteAll;
                next.current = first;
                next.pending = Some(all);
                next.rebalance = id;
            }
        })
    }

    /// The owners without leaving members. Only segments without another owner get new ones, if possible of the present owners.
    fn kept_owners(&self, cx: &Cx, staying: Vec<CacheMember>) -> ConsistentHash {
        let current = &self.topology.current;
        let kept = current.without(|member| self.leaving.contains(member));
        let is_complete = kept.segments().all(|segment| kept.owners(segment).len() > 0);
        if is_complete || cx.has(InjectedBug::SegmentsLeftBehind) {
            return kept;
        }
        let owns = |member: &CacheMember| kept.segments_of(&member.address).next().is_some();
        let (owners, others): (Vec<CacheMember>, Vec<CacheMember>) = staying.into_iter().partition(owns);
        kept.or(&current.rebalanced(if owners.is_empty() { others } else { owners }))
    }

    /// Leaving members without segments are removed.
    fn rebalance(&mut self, cx: &mut Cx, id: u32) -> Option<Topology> {
        if cx.is_cluster_stopping && !cx.has(InjectedBug::MovedWhileStopping) {
            return None;
        }
        let joining = std::mem::take(&mut self.joining);
        // A joining member that was in another partition in an earlier incarnation may have a higher topology id. The new id
        // exceeds it, so that the member notices that it has missed changes.
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
            self.end(cx);
            return None;
        }
        // If the staying members own nothing because of their capacity factors, the leaving members' entries are lost. In an
        // invalidation cache, a member owns only what it has itself.
        let wanted = match self.config.mode {
            // All members are owners: it has all of them at no time, and one copy more is enough.
            CacheMode::Replicated => 2,
            _ => usize::from(self.config.owner_count()),
        };
        self.is_new &= !current.segments().all(|segment| current.owners(segment).len() >= wanted);
        let is_balanced = self.is_new
            || self.config.mode == CacheMode::Invalidation
            || cx.rebalancing.is_enabled(self.config.id());
        let target = if is_balanced { current.rebalanced(owners) } else { self.kept_owners(cx, owners) };
        let is_moved = !current.has_same_owners_as(&target);
        let quorum: Arc<[Address]> = staying(&members, &self.leaving);
        let is_same = left.is_empty() && members.len() == self.topology.members.len();
        if !is_moved && is_same && quorum == self.topology.quorum {
            return None;
        }
        Some(self.topology.succeeded(id, |next| {
            next.members = members.into();
            if is_moved && self.config.mode != CacheMode::Invalidation {
                next.phase = Phase::ReadOldWriteAll;
                next.pending = Some(target);
                next.rebalance = id;
                return;
            }
            if is_moved {
                // In an invalidation cache, a member is read without a state transfer before. Writes also remove the entries of
                // a leaving member, which reads them until it has this topology.
                next.phase = Phase::ReadNewWriteAll;
                next.pending = Some(target);
            } else {
                next.current = target;
            }
            match cx.has(InjectedBug::QuorumAtOnce) {
                true => next.quorum = quorum,
                false => next.quorum_to_be = Some(quorum),
            }
        }))
    }
}

pub(super) fn refuse_differing(
    cx: &mut Cx,
    ours: &CacheConfig,
    theirs: &CacheConfig,
    member: &CacheMember,
) -> bool {
    let Some((setting, here, there)) = ours.difference(theirs) else { return false };
    let (cache, setting) = (ours.name.clone(), setting.into());
    let error = OpenError::ConfigMismatch { cache, setting, ours: there.into(), theirs: here.into() };
    cx.send(&member.address, ours.id(), 0, Body::Refused(error));
    true
}

/// More than half of these must be present.
fn staying(members: &[Membership], leaving: &BTreeSet<Address>) -> Arc<[Address]> {
    let addresses = members.iter().map(|one| &one.member.address);
    addresses.filter(|member| !leaving.contains(member)).cloned().collect()
}
