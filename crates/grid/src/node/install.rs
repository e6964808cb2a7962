//! The installation of a topology: which segments are added and dropped, and which members are sent messages.

use consort_group::Address;

use super::NodeEvent;
use super::cache::{Cache, Installed};
use super::cx::Cx;
use super::records::ORPHANED;
use crate::command::{OperationId, ToCoordinator};
use crate::planted::Planted;
use crate::topology::{Membership, Phase, Topology};
use crate::{Segment, SegmentState as ContainerState, Version};

impl Cache {
    /// Installs a topology of the coordinator, if it is newer than the installed one.
    pub(crate) fn install(&mut self, cx: &mut Cx, topology: Topology) {
        let installed = self.topology_id();
        let known = installed.max(self.remembered_id());
        if topology.id < installed || topology.current.segment_count() != self.config.segments {
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
                self.installed = None;
                return;
            }
        }
        cx.memberships.insert(self.id);
        for segment in &mut self.segments {
            segment.parked.retain(|(caller, _)| {
                topology.membership(caller).is_some_and(|membership| membership.since <= installed)
            });
        }
        let id = topology.id;
        self.begin_lines(&topology, installed);
        self.thaw(&topology);
        let listening = topology.listening().map(|(member, one)| (member.clone(), one.interest)).collect();
        let installed = Installed { writes: topology.write_owners(), listening, at: cx.now, topology };
        let before = self.installed.replace(installed);
        self.note_parted(cx, before.as_ref());
        self.expire_unheard(cx, before.as_ref());
        self.note_listening(cx, before.as_ref());
        self.note_callers(cx, before.as_ref());
        if cx.has(Planted::RecordsDropped) {
            self.segments.iter_mut().for_each(|state| state.records = Default::default());
        }
        self.begin_life(cx);
        self.stop_reads(cx);
        self.hand_uses(cx, before.as_ref());
        self.move_segments(cx);
        self.hand_over(cx);
        self.resend_records(cx);
        self.plan_transfer(cx);
        self.tell_known_again(cx, before.as_ref());
        self.plan_merge(cx);
        self.redirect(cx);
        self.ask_anew(cx);
        self.look_after_iterations(cx);
        self.confirm(cx);
        if !self.is_restoring() {
            cx.events.push_back(NodeEvent::Installed { cache: self.id, topology: id });
        }
        self.handle_deferred(cx);
    }

    /// Confirms the installed topology, or defers that until it is persisted. If the next topology removes owners, the
    /// confirmation waits for their records.
    pub(super) fn confirm(&self, cx: &mut Cx) {
        if !self.waits_for_records(cx) && !self.confirms_later() {
            self.tell_coordinator(cx, ToCoordinator::Confirm);
        }
    }

    /// Returns whether this member, as the new primary, still waits for records of owners that a rebalance is about to relieve.
    /// If another primary followed before these arrive, no member would send them to that one.
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

    /// Drops all entries and state, because this member was removed from the topology and the other members have continued
    /// without it.
    fn begin_anew(&mut self, cx: &mut Cx) {
        for segment in self.config.all_segments() {
            self.container.drop_segment(segment);
            *self.state(segment) = Default::default();
        }
        self.give_up_store();
        self.transfer = Default::default();
        self.questions = Default::default();
        self.frozen = None;
        self.installed = None;
        self.begin_listening_anew(cx);
        self.give_up_writes(cx);
    }

    /// Gives up the writes that were sent, because their results cannot be known.
    pub(super) fn give_up_writes(&mut self, cx: &mut Cx) {
        for number in cx.calls.of(self.id) {
            if cx.calls.get_mut(number).is_some_and(|call| call.may_be_done()) {
                cx.calls.let_go(number);
            }
        }
    }

    /// Returns whether reads and writes are not served yet.
    pub(super) fn is_restoring(&self) -> bool {
        self.topology().is_some_and(|topology| topology.phase == Phase::Restoring)
    }

    /// Returns the first topology of a cache whose only member is this one.
    pub(crate) fn first_topology(&self, cx: &Cx) -> Topology {
        let id = self.remembered_id() + 1;
        let mut first = Topology::first(id, cx.local.clone().into(), 1, self.config.segments);
        first.members = first.members.iter().map(|one| Membership { since: 1, ..one.clone() }).collect();
        first
    }

    /// Returns whether this member serves reads of a segment's entries.
    fn is_read_here(&self, cx: &Cx, topology: &Topology, segment: Segment) -> bool {
        topology.phase != Phase::Restoring
            && topology.read_owners().owners(segment).any(|owner| *owner == cx.local)
            && self.refusal(topology, segment, false).is_none()
    }

    /// Stops reads of segments here, before other members write without this one.
    fn stop_reads(&self, cx: &Cx) {
        let Some(Installed { topology, writes, .. }) = &self.installed else { return };
        for segment in writes.segments() {
            if !self.is_read_here(cx, topology, segment) && !cx.has(Planted::ReadAfterSurrender) {
                self.container.set_readable(segment, false);
            }
        }
    }

    fn move_segments(&mut self, cx: &mut Cx) {
        let Some(Installed { topology, writes, .. }) = &self.installed else { return };
        let (mut dropped, mut begun) = (Vec::new(), Vec::new());
        for segment in writes.segments() {
            let has = self.container.state(segment);
            let owns = |hash: &crate::ConsistentHash| hash.owners(segment).any(|owner| *owner == cx.local);
            let is_complete = topology.phase != Phase::Restoring && owns(topology.read_owners());
            match (is_complete, owns(writes), has) {
                (true, _, ContainerState::Owned) => {}
                // A new read owner has fetched every entry, or no owner had any.
                (true, ..) => {
                    self.segments[usize::from(segment.0)].begun_again = None;
                    self.container.own(segment);
                }
                (false, true, ContainerState::Absent) => {
                    begun.push(segment);
                    self.container.receive(segment);
                }
                (false, true, _) => {}
                (false, false, ContainerState::Absent) => {}
                // Kept for a merge.
                (false, false, _) if self.frozen.is_some() => {}
                (false, false, _) => {
                    dropped.push(segment);
                    self.container.drop_segment(segment);
                    self.segments[usize::from(segment.0)] = Default::default();
                }
            }
            if topology.phase == Phase::Restoring {
                self.segments[usize::from(segment.0)].begun_again =
                    owns(writes).then_some(Version::new(topology.id, 0));
            }
            if self.is_read_here(cx, topology, segment) {
                self.container.set_readable(segment, true);
            }
        }
        for segment in dropped {
            self.note_dropped(cx, segment);
        }
        self.expire_loaded(cx, &begun);
    }

    /// Returns whether a caller is no longer a member. Unreachable callers are members: they return with their unfinished
    /// operations and find the records.
    pub(super) fn is_caller_gone(topology: &Topology, caller: &Address) -> bool {
        !topology.contains(caller)
    }

    /// Returns whether an operation is repeated only by a primary that adopts it: its caller has gone, even if it is back as
    /// another member.
    pub(super) fn is_orphan(topology: &Topology, operation: &OperationId) -> bool {
        operation.number == ORPHANED || Self::is_caller_gone(topology, &operation.caller)
    }

    /// Notes members in other partitions. Partitions that serve independently do not learn which operations the other has
    /// finished. A write unfinished in both is reported finished only by its own partition.
    fn note_parted(&self, cx: &mut Cx, before: Option<&Installed>) {
        let (Some(before), Some(installed)) = (before, &self.installed) else { return };
        let (topology, id) = (&installed.topology, self.id);
        // A member that has returned has installed the topology before, and has taken over the unfinished operations of its
        // partition.
        for member in before.topology.addresses().filter(|member| topology.contains(member)) {
            cx.meet_again(Some(member), id);
        }
        if !self.merges() || before.topology.partings == topology.partings {
            return;
        }
        for member in before.topology.addresses().filter(|member| !topology.contains(member)) {
            cx.part_from(member, id);
        }
    }

    /// Notes callers that have gone with a new topology. They close the cache when all members have installed it.
    fn note_callers(&mut self, cx: &Cx, before: Option<&Installed>) {
        let (Some(before), Some(installed)) = (before, &self.installed) else { return };
        let is_gone = |caller: &Address| Self::is_caller_gone(&installed.topology, caller);
        // The operations that a returned caller reports finished were finished in its own partition.
        let is_back = |caller: &Address| {
            let membership = installed.topology.membership(caller);
            self.merges() && membership.is_some_and(|one| one.since > before.topology.id)
        };
        if !before.topology.addresses().any(|caller| is_gone(caller) || is_back(caller)) {
            return;
        }
        if !cx.has(Planted::GivenUpIsFinished) {
            let back: Vec<&Address> = before.topology.addresses().filter(|caller| is_back(caller)).collect();
            for state in &mut self.segments {
                state.records.orphan(|caller| back.contains(&caller));
                state.records.prune(&cx.watermarks);
                state.records.orphan(is_gone);
            }
        }
        self.await_settled(cx);
    }

    /// Returns whether calls that a member sent under this topology are carried out. A call of a member that was removed since
    /// may already be done; its record may have been taken over and finished.
    pub(super) fn is_caller(&self, caller: &Address, topology: u32) -> bool {
        let membership = self.topology().and_then(|own| own.membership(caller));
        membership.is_some_and(|membership| membership.since <= topology)
    }

    /// Returns whether a member is unreachable or is being removed. It may have topologies of another coordinator, with the
    /// same ids as ours.
    pub(super) fn is_absent(&self, member: &Address) -> bool {
        self.topology().is_some_and(|own| own.absent().any(|absent| absent == member))
    }
}
