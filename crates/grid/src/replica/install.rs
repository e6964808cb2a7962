use consort_group::Address;

use crate::command::ToCoordinator;
use crate::cx::Cx;
use crate::cx::NodeEvent;
use crate::injected_bugs::InjectedBug;
use crate::replica::expiry::last_use::send_last_uses;
use crate::replica::store::Store;
use crate::replica::write::handover::Handovers;
use crate::replica::write::records::is_caller_gone;
use crate::replica::{CacheReplica, Installed, Shared};
use crate::topology::{Membership, Phase, Topology};
use crate::{Segment, SegmentState as ContainerState, Version};

impl CacheReplica {
    pub(crate) fn install(&mut self, cx: &mut Cx, topology: Topology) {
        let installed = self.shared.topology_id();
        let known = installed.max(self.store.remembered_id());
        if topology.id < installed || topology.current.segment_count() != self.shared.config.segments {
            return;
        }
        if topology.id == installed {
            // The coordinator has not received the confirmation.
            return self.confirm(cx);
        }
        match topology.membership(&cx.local) {
            Some(membership) if membership.since > known && known > 0 => {
                let since = membership.since;
                if topology.merging.iter().any(|side| side.since == since) {
                    self.freeze(cx, since);
                } else {
                    self.begin_anew(cx);
                }
            }
            Some(_) => {}
            // Removed from the topology: this member's entries are no longer the cache's. A member with the cache open joins
            // again.
            None => {
                self.begin_anew(cx);
                self.shared.installed = None;
                return;
            }
        }
        cx.memberships.insert(self.shared.id);
        for segment in &mut self.shared.segments {
            segment.parked.retain(|(caller, _)| {
                topology.membership(caller).is_some_and(|membership| membership.since <= installed)
            });
        }
        let id = topology.id;
        self.shared.begin_lineages(&topology, installed);
        self.shared.thaw(&topology);
        let listening = topology.listening().map(|(member, one)| (member.clone(), one.interest)).collect();
        let installed = Installed { writes: topology.write_owners(), listening, at: cx.now, topology };
        let before = self.shared.installed.replace(installed);
        self.shared.note_parted(cx, before.as_ref());
        self.store.expire_unheard(&mut self.shared, cx, before.as_ref());
        self.listeners.note_listening(&self.shared, &mut self.iterations, cx, before.as_ref());
        self.handovers.note_callers(&mut self.shared, cx, before.as_ref());
        if cx.has(InjectedBug::RecordsDropped) {
            self.shared.segments.iter_mut().for_each(|state| state.records = Default::default());
        }
        self.store.begin_life(&self.shared, cx);
        self.shared.stop_reads(cx);
        send_last_uses(&mut self.shared, &self.store, cx, before.as_ref());
        self.store.move_segments(&mut self.shared, cx);
        self.hand_over(cx);
        self.resend_records(cx);
        if self.transfer.plan_transfer(&self.shared, cx) {
            self.tell_when_stored(cx);
        }
        self.shared.tell_known_again(cx, before.as_ref());
        if self.merge.plan_merge(&self.shared, cx) {
            self.resume_merge(cx);
        }
        self.redirect(cx);
        self.ask_anew(cx);
        self.iterations.tick_iterations(&self.shared, &self.store, cx, |id| self.listeners.of_walk(id));
        self.confirm(cx);
        if !self.shared.is_restoring() {
            cx.events.push_back(NodeEvent::Installed { cache: self.shared.id, topology: id });
        }
        for (from, command) in std::mem::take(&mut self.deferred) {
            self.handle(cx, &from, command);
        }
    }

    /// Waits until the topology is persisted, and for the records of owners that the next topology removes.
    pub(crate) fn confirm(&self, cx: &mut Cx) {
        if !self.shared.waits_for_records(cx) && !self.store.confirms_later(&self.shared) {
            self.shared.tell_coordinator(cx, ToCoordinator::Confirm);
        }
    }

    /// The other members have continued without this one.
    fn begin_anew(&mut self, cx: &mut Cx) {
        for segment in self.shared.config.all_segments() {
            self.shared.container.drop_segment(segment);
            *self.shared.state(segment) = Default::default();
        }
        self.store.abandon_store();
        self.transfer = Default::default();
        self.idle_probes = Default::default();
        self.shared.has_max_idle = false;
        self.shared.frozen = None;
        self.shared.installed = None;
        self.listeners.begin_listening_anew(&self.shared, &mut self.iterations, cx);
        self.shared.abandon_writes(cx);
    }
}

impl Handovers {
    /// Callers that have gone close the cache when all members have installed the topology.
    fn note_callers(&mut self, shared: &mut Shared, cx: &Cx, before: Option<&Installed>) {
        let (Some(before), Some(installed)) = (before, &shared.installed) else { return };
        let is_gone = |caller: &Address| is_caller_gone(&installed.topology, caller);
        // The operations that a returned caller reports finished were finished in its own partition.
        let is_back = |caller: &Address| {
            let membership = installed.topology.membership(caller);
            shared.merges() && membership.is_some_and(|one| one.since > before.topology.id)
        };
        if !before.topology.addresses().any(|caller| is_gone(caller) || is_back(caller)) {
            return;
        }
        if !cx.has(InjectedBug::GivenUpIsFinished) {
            let back: Vec<&Address> = before.topology.addresses().filter(|caller| is_back(caller)).collect();
            for state in &mut shared.segments {
                state.records.orphan(|caller| back.contains(&caller));
                state.records.prune(&cx.watermarks);
                state.records.orphan(is_gone);
            }
        }
        self.await_settled(cx);
    }
}

impl Store {
    pub(crate) fn first_topology(&self, shared: &Shared, cx: &Cx) -> Topology {
        let id = self.remembered_id() + 1;
        let mut first = Topology::first(id, cx.local.clone().into(), 1, shared.config.segments);
        first.members = first.members.iter().map(|one| Membership { since: 1, ..one.clone() }).collect();
        first
    }

    fn move_segments(&mut self, shared: &mut Shared, cx: &mut Cx) {
        let Some(Installed { topology, writes, .. }) = &shared.installed else { return };
        let (mut dropped, mut begun) = (Vec::new(), Vec::new());
        for segment in writes.segments() {
            let has = shared.container.state(segment);
            let owns = |hash: &crate::ConsistentHash| hash.owners(segment).any(|owner| *owner == cx.local);
            let is_complete = topology.phase != Phase::Restoring && owns(topology.read_owners());
            match (is_complete, owns(writes), has) {
                (true, _, ContainerState::Owned) => {}
                // A new read owner has fetched every entry, or no owner had any.
                (true, ..) => {
                    shared.segments[usize::from(segment.0)].begun_again = None;
                    shared.container.own(segment);
                }
                (false, true, ContainerState::Absent) => {
                    begun.push(segment);
                    shared.container.receive(segment);
                }
                (false, true, _) => {}
                (false, false, ContainerState::Absent) => {}
                // Kept for a merge.
                (false, false, _) if shared.frozen.is_some() => {}
                (false, false, _) => {
                    dropped.push(segment);
                    shared.container.drop_segment(segment);
                    shared.segments[usize::from(segment.0)] = Default::default();
                }
            }
            if topology.phase == Phase::Restoring {
                shared.segments[usize::from(segment.0)].begun_again =
                    owns(writes).then_some(Version::new(topology.id, 0));
            }
            if shared.is_read_here(cx, topology, segment) {
                shared.container.set_readable(segment, true);
            }
        }
        for segment in dropped {
            self.note_dropped(shared, cx, segment);
        }
        self.expire_loaded(shared, cx, &begun);
    }
}

impl Shared {
    /// Whether records of relieved owners are missing here: no member would send them to the next primary.
    fn waits_for_records(&self, cx: &Cx) -> bool {
        let Some(topology) = self.topology().filter(|one| one.phase == Phase::ReadNewWriteAll) else {
            return false;
        };
        self.config.all_segments().any(|segment| {
            let missing = &self.segments[usize::from(segment.0)].missing;
            // An owner that the next topology removes hands over nothing.
            missing.iter().any(|owner| !topology.forgone.contains(owner))
                && self.is_primary(&cx.local, segment)
        })
    }

    /// The results of sent writes cannot be known.
    pub(crate) fn abandon_writes(&self, cx: &mut Cx) {
        for number in cx.calls.of(self.id) {
            if cx.calls.get_mut(number).is_some_and(|call| call.may_have_been_applied()) {
                cx.calls.let_go(number);
            }
        }
    }

    pub(crate) fn is_restoring(&self) -> bool {
        self.topology().is_some_and(|topology| topology.phase == Phase::Restoring)
    }

    fn is_read_here(&self, cx: &Cx, topology: &Topology, segment: Segment) -> bool {
        topology.phase != Phase::Restoring
            && topology.read_owners().owners(segment).any(|owner| *owner == cx.local)
            && self.refusal(topology, segment, false).is_none()
    }

    /// Stops reads here before other members write without this one.
    fn stop_reads(&self, cx: &Cx) {
        let Some(Installed { topology, writes, .. }) = &self.installed else { return };
        for segment in writes.segments() {
            if !self.is_read_here(cx, topology, segment) && !cx.has(InjectedBug::ReadAfterSurrender) {
                self.container.set_readable(segment, false);
            }
        }
    }

    /// Partitions that serve independently do not learn which operations the other has finished. A write
    /// unfinished in both is reported finished only by its own partition.
    fn note_parted(&self, cx: &mut Cx, before: Option<&Installed>) {
        let (Some(before), Some(installed)) = (before, &self.installed) else { return };
        let (topology, id) = (&installed.topology, self.id);
        // A member that has returned has installed the topology before, and has taken over the unfinished operations of its
        // partition.
        for member in before.topology.addresses().filter(|member| topology.contains(member)) {
            cx.mark_rejoined(Some(member), id);
        }
        if !self.merges() || before.topology.split_points == topology.split_points {
            return;
        }
        for member in before.topology.addresses().filter(|member| !topology.contains(member)) {
            cx.mark_partitioned(member, id);
        }
    }

    /// A removed member's call may already be done; its record may have been taken over and finished.
    pub(crate) fn is_caller(&self, caller: &Address, topology: u32) -> bool {
        let membership = self.topology().and_then(|own| own.membership(caller));
        membership.is_some_and(|membership| membership.since <= topology)
    }

    /// Whether a member is unreachable or is being removed. Its topologies may have another coordinator and
    /// the same ids as ours.
    pub(crate) fn is_absent(&self, member: &Address) -> bool {
        self.topology().is_some_and(|own| own.absent().any(|absent| absent == member))
    }
}
