use consort_group::{Address, Member};
use smallvec::SmallVec;

use crate::command::{Body, Call, Reply};
use crate::cx::Cx;
use crate::cx::calls::{RESEND_AFTER, RESEND_AFTER_MAX};
use crate::cx::silence::SILENT_AFTER;
use crate::injected_bugs::InjectedBug;
use crate::operation::{Action, OperationError, ReadFrom};
use crate::replica::{CacheReplica, Shared};
use crate::topology::{Phase, Topology};
use crate::{Flags, PartitionHandling};

impl CacheReplica {
    /// Without a target, the operation waits for a topology that has one.
    pub(crate) fn send_to_target(&mut self, cx: &mut Cx, number: u64) {
        let is_denied = !cx.has(InjectedBug::MinorityWrites);
        let Some(call) = cx.calls.get_mut(number) else { return };
        let keeps_target = std::mem::take(&mut call.keeps_target);
        let Some(topology) = self.shared.topology().filter(|topology| topology.phase != Phase::Restoring)
        else {
            return cx.calls.unassign(number);
        };
        let (segment, is_write) = (call.segment, call.is_write());
        if let Some(error) = self.shared.refusal(topology, call.segment, is_write).filter(|_| is_denied) {
            match call.may_have_been_applied() {
                // The write stays open until its result is known.
                true => cx.calls.give_up(number, OperationError::Uncertain),
                false => cx.calls.finish(number, Err(error)),
            }
            return;
        }
        let target = match call.action {
            _ if call.flags.contains(Flags::LOCAL) => Some(&cx.local),
            Action::Read(ReadFrom::Nearest) => {
                let readers = topology.read_owners();
                if readers.owners(segment).any(|owner| *owner == cx.local) {
                    Some(&cx.local)
                } else {
                    let owners = present(topology, readers.owners(segment));
                    let last = call.target.as_ref().map(|last| (last, keeps_target));
                    choose_reader(owners, number, last, |owner| cx.silence.contains(owner))
                }
            }
            _ => self.shared.primary(segment),
        };
        let Some(target) = target.cloned() else {
            return cx.calls.unassign(number);
        };
        if is_denied && topology.away().contains(&target) {
            // A read that only the primary may answer.
            let error = OperationError::Degraded { segment, away: vec![target.into()] };
            return cx.calls.finish(number, Err(error));
        }
        let epoch = topology.epoch(segment);
        self.send_call(cx, number, target, epoch, keeps_target);
    }

    /// `is_expected`: the call is no repetition; its target has reported the needed size, or had no room
    /// before.
    fn send_call(&mut self, cx: &mut Cx, number: u64, target: Address, epoch: u32, is_expected: bool) {
        let reserved = if target == cx.local {
            cx.calls.release(number);
            Some(Call::ANY_BYTES)
        } else {
            cx.calls.reserve(number, &target)
        };
        let Some(call) = cx.calls.get_mut(number) else { return };
        call.target = Some(target.clone());
        let Some(response_bytes_max) = reserved else { return };
        call.sent = cx.now;
        call.expect(epoch);
        let is_repeated = std::mem::replace(&mut call.is_repeated, true);
        call.is_sent_again = is_repeated;
        let (flags, key, action) = (call.flags, call.key.clone(), call.action.clone());
        let command = Call { number, is_repeated, flags, key, action, response_bytes_max };
        if is_repeated && !is_expected {
            cx.counters.repeated += 1;
        }
        if target == cx.local {
            self.handle_call(cx, &target, command);
        } else {
            self.shared.send(cx, &target, Body::Call(command));
        }
    }

    pub(crate) fn handle_reply(
        &mut self,
        cx: &mut Cx,
        from: &Address,
        topology: u32,
        number: u64,
        reply: Reply,
    ) {
        match reply {
            Reply::Done(outcome) => {
                let is_expected =
                    |call: &mut crate::cx::calls::InFlight| !call.is_write() || call.is_expected(topology);
                if cx.calls.get_mut(number).is_some_and(is_expected) {
                    cx.calls.finish(number, Ok(outcome));
                }
            }
            Reply::Ordered(outcome) => {
                if cx.calls.get_mut(number).is_some_and(|call| call.is_expected(topology)) {
                    cx.calls.tell(number, Ok(outcome));
                }
            }
            Reply::Failed(OperationError::Uncertain) => cx.calls.give_up(number, OperationError::Uncertain),
            Reply::Failed(error) => handle_failure(cx, topology, number, error),
            // The topology of the reply is installed here, or the reply would have been deferred. If this member's topology is
            // newer, the operation has been sent again with it.
            Reply::Misdirected if topology == self.shared.topology_id() => self.send_to_target(cx, number),
            Reply::Misdirected => {}
            Reply::Larger(bytes) => {
                if cx.calls.note_size(from, number, bytes) {
                    self.send_to_target(cx, number);
                }
            }
        }
    }

    pub(crate) fn redirect(&mut self, cx: &mut Cx) {
        for number in cx.calls.of(self.shared.id) {
            let Some(call) = cx.calls.get_mut(number) else { continue };
            // The cause of the long wait may have ended with this topology.
            call.patience = RESEND_AFTER;
            let (segment, target) = (call.segment, call.target.clone());
            let is_read = matches!(call.action, Action::Read(ReadFrom::Nearest));
            let Some(topology) = self.shared.topology() else { return };
            let is_still_right = match &target {
                None => false,
                Some(target) if topology.away().contains(target) => false,
                Some(target) if is_read => {
                    topology.read_owners().owners(segment).any(|owner| owner == target)
                }
                Some(target) => {
                    self.shared.primary(segment) == Some(target)
                        && (!call.is_write() || call.knows(topology.primary_term(segment)))
                }
            };
            if !is_still_right || self.shared.refusal(topology, segment, !is_read).is_some() {
                self.send_to_target(cx, number);
            }
        }
    }

    pub(crate) fn move_reads(&mut self, cx: &mut Cx) {
        for number in cx.calls.of(self.shared.id) {
            let (now, Some(call)) = (cx.now, cx.calls.get_mut(number)) else { continue };
            let is_read = matches!(call.action, Action::Read(ReadFrom::Nearest));
            let (segment, sent, waits) = (call.segment, call.sent, call.waits_for_room());
            let Some(target) = call.target.clone().filter(|target| *target != cx.local) else { continue };
            let is_late = || now.since(sent) >= SILENT_AFTER + cx.calls.window.transfer_time(&target);
            let is_silent = match waits || now.since(sent) < SILENT_AFTER || !is_late() {
                true => cx.silence.contains(&target),
                false => cx.silence.note_late(&target, sent),
            };
            if !is_silent || !is_read {
                continue;
            }
            let Some(topology) = self.shared.topology() else { return };
            let has_other = present(topology, topology.read_owners().owners(segment))
                .any(|owner| !cx.silence.contains(owner));
            if has_other {
                self.send_to_target(cx, number);
            }
        }
    }

    pub(crate) fn look_after(&mut self, cx: &mut Cx) {
        self.listeners.detect_stalled_listeners(&self.shared, cx);
        self.move_reads(cx);
        for number in cx.calls.of(self.shared.id) {
            let now = cx.now;
            let Some(call) = cx.calls.get_mut(number) else { continue };
            let timeout = call.timeout;
            if call.is_awaited && call.deadline() <= now {
                let error = OperationError::TimedOut(timeout);
                // A write that was sent continues, because its owners must agree.
                if call.may_have_been_applied() {
                    cx.calls.give_up(number, error);
                } else {
                    cx.calls.finish(number, Err(error));
                    continue;
                }
            }
            let Some(call) = cx.calls.get_mut(number) else { continue };
            let (waited, patience) = (now.since(call.sent), call.patience);
            if waited < patience || call.waits_for_room() {
                continue;
            }
            let Some(target) = call.target.clone() else { continue };
            // The wait includes the time for the responses that its target sends first.
            if waited < patience + cx.calls.window.transfer_time(&target) {
                continue;
            }
            if let Some(call) = cx.calls.get_mut(number) {
                call.patience = (2 * patience).min(RESEND_AFTER_MAX);
            }
            self.send_to_target(cx, number);
        }
    }
}

impl Shared {
    pub(crate) fn refusal(
        &self,
        topology: &Topology,
        segment: crate::Segment,
        is_write: bool,
    ) -> Option<OperationError> {
        let away = topology.away();
        if away.is_empty() {
            return None;
        }
        let is_away = |owner: &&Address| away.contains(owner);
        let missing: Vec<Member> =
            self.write_owners(segment).filter(is_away).cloned().map(Member::from).collect();
        let has_reader = topology.read_owners().owners(segment).any(|owner| !away.contains(owner));
        let is_allowed = missing.is_empty()
            || !is_write && has_reader && self.config.partitions != PartitionHandling::DenyReadWrites;
        (!is_allowed).then_some(OperationError::Degraded { segment, away: missing })
    }
}

fn handle_failure(cx: &mut Cx, topology: u32, number: u64, error: OperationError) {
    let is_finished = cx.has(InjectedBug::RefusedIsFinished);
    let Some(call) = cx.calls.get_mut(number) else { return };
    let (is_write, is_sent_again) = (call.is_write(), call.is_sent_again);
    match error {
        // The member that it was sent to since may carry it out, or has.
        _ if is_write && !call.is_expected(topology) => {}
        // The write is done, and the failing member acknowledges it, too. Owners that have not received it yet would drop
        // it if they learnt that it is finished.
        error @ OperationError::StoreWriteFailed { .. } if !is_finished => {
            cx.calls.give_up(number, error);
        }
        OperationError::Degraded { .. } if is_write && is_sent_again => {
            cx.calls.give_up(number, OperationError::Uncertain);
        }
        // Another copy is on its way to that member, and may be carried out. The operation asks for its result when it is
        // repeated.
        _ if is_write && is_sent_again && !is_finished => {
            let target = call.target.clone();
            cx.calls.let_go(number);
            if let Some(call) = cx.calls.get_mut(number) {
                call.target = target;
            }
        }
        error => cx.calls.finish(number, Err(error)),
    }
}

/// Numbers are spread over the owners. A repeated read goes to the next owner, or to the same one if it is
/// kept. Silent owners are the last choice.
fn choose_reader<'a>(
    owners: impl Iterator<Item = &'a Address>,
    number: u64,
    last: Option<(&Address, bool)>,
    is_silent: impl Fn(&Address) -> bool,
) -> Option<&'a Address> {
    let owners: SmallVec<[&Address; 4]> = owners.collect();
    let place = |last: &Address| owners.iter().position(|owner| *owner == last);
    let first = match last.and_then(|(last, is_kept)| Some((place(last)?, is_kept))) {
        Some((last, is_kept)) => last + usize::from(!is_kept),
        None => usize::try_from(number.checked_rem(owners.len() as u64)?).ok()?,
    };
    let in_turn = || (first..first + owners.len()).map(|nth| owners[nth % owners.len()]);
    in_turn().find(|owner| !is_silent(owner)).or_else(|| in_turn().next())
}

pub(crate) fn present<'a>(
    topology: &'a Topology,
    owners: impl Iterator<Item = &'a Address>,
) -> impl Iterator<Item = &'a Address> {
    owners.filter(|owner| !topology.away().contains(owner))
}
