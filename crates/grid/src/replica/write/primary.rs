//! The primary's side of a write: the primary orders writes and replicates them to the other write owners.

use consort_group::{Address, Time};

use crate::command::{Ack, Backup, Body, Call, Effect, OperationId, Reply};
use crate::injected_bugs::InjectedBug;
use crate::node::Cx;
use crate::operation::{Action, Change, OperationError, Outcome, ReadFrom, Write, Written};
use crate::replica::CacheReplica;
use crate::replica::write::records::{WriteEffect, WriteRecord};
use crate::{Entry, Flags, Full, Segment, Stored, Version};

/// Returns the size of a value that exceeds the caller's limit for a response.
fn larger(value: Option<&Stored>, bytes_max: u32) -> Option<u32> {
    let bytes = u32::try_from(value?.value.len()).unwrap_or(u32::MAX);
    (bytes > bytes_max).then_some(bytes)
}

/// The origin of a write.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A caller waits for the write, and receives its refusal.
    Caller {
        flags: Flags,
        /// As in [`Call`].
        response_bytes_max: u32,
    },
    /// The write is a result of a merge. No caller would repeat it, so it is applied in memory even if the store refuses writes
    /// now, and the store's write is retried.
    Merge,
}

impl CacheReplica {
    /// Handles an operation that a member has sent under this topology.
    pub(crate) fn take_call(&mut self, cx: &mut Cx, from: &Address, topology: u32, call: Call) {
        if matches!(call.action, Action::Read(_)) && cx.holds_read(from, self.id, topology, &call) {
            return;
        }
        let is_late = self.is_absent(from) && !cx.has(InjectedBug::LateCallTaken);
        if is_late || !self.is_caller(from, topology) {
            cx.counters.outdated += 1;
            return;
        }
        let Some(own) = self.topology() else { return };
        let is_late = || topology < own.primary_term(self.config.segment_of(&call.key));
        if matches!(call.action, Action::Write(_)) && is_late() && !cx.has(InjectedBug::LateCallTaken) {
            // Perhaps a late repetition: an earlier primary term may have sent its response, and no owner remembers that. A
            // caller that still waits sends the operation again.
            cx.counters.outdated += 1;
            return self.reply(cx, from, call.number, Reply::Misdirected);
        }
        self.handle_call(cx, from, call);
    }

    /// Executes an operation for which this member is responsible.
    pub(crate) fn handle_call(&mut self, cx: &mut Cx, from: &Address, call: Call) {
        let segment = self.config.segment_of(&call.key);
        // A repetition that arrives meanwhile may be executed first.
        if self.must_ask(cx, segment, &call) {
            return self.ask_for_call(cx, segment, from, Call { is_repeated: true, ..call });
        }
        if self.must_load(cx, segment, &call) {
            return self.load_for_call(cx, segment, from, Call { is_repeated: true, ..call });
        }
        let Some(topology) = self.topology() else { return };
        let is_local = call.flags.contains(Flags::LOCAL);
        if call.action == Action::Read(ReadFrom::Nearest)
            || is_local && matches!(call.action, Action::Read(_))
        {
            let reply = if topology.read_owners().owners(segment).any(|owner| *owner == cx.local) {
                let stored = self.stored(cx.now, segment, &call.key);
                match larger(stored.as_ref(), call.response_bytes_max) {
                    Some(bytes) => Reply::Larger(bytes),
                    None => Reply::Done(Outcome::Read(stored)),
                }
            } else if is_local {
                Reply::Done(Outcome::Read(None))
            } else {
                Reply::Misdirected
            };
            return self.reply(cx, from, call.number, reply);
        }
        if !self.is_primary(&cx.local, segment) {
            return self.reply(cx, from, call.number, Reply::Misdirected);
        }
        let is_write = matches!(call.action, Action::Write(_));
        if let Some(error) = self.refusal(topology, segment, is_write)
            && !cx.has(InjectedBug::MinorityWrites)
        {
            // A repeated call may have been executed before.
            let error = if call.is_repeated && is_write { OperationError::Uncertain } else { error };
            return self.reply(cx, from, call.number, Reply::Failed(error));
        }
        if !self.state(segment).is_open() {
            return self.state(segment).park(cx, from, call);
        }
        cx.record_own_watermark();
        let operation = OperationId { caller: from.clone(), number: call.number };
        if call.is_repeated && !cx.has(InjectedBug::RepeatedNotRecognised) {
            if cx.watermarks.is_finished(&operation) {
                return;
            }
            if let Some(record) = self.state(segment).records.find(&operation).cloned() {
                self.back_up_record(cx, segment, record.clone());
                return self.tell_ordered(cx, call.flags, &record);
            }
            if let Some(outcome) = self.state(segment).records.answer(&operation).cloned()
                && !cx.has(InjectedBug::AnswerForgotten)
            {
                return self.answer_behind_writes(cx, segment, operation, call.key, outcome);
            }
        }
        let response_bytes_max = call.response_bytes_max;
        match call.action {
            Action::Read(_) => {
                let stored = self.stored(cx.now, segment, &call.key);
                if let Some(bytes) = larger(stored.as_ref(), call.response_bytes_max) {
                    return self.reply(cx, from, call.number, Reply::Larger(bytes));
                }
                let outcome = Outcome::Read(stored);
                self.answer_behind_writes(cx, segment, operation, call.key, outcome);
            }
            Action::Write(write) => {
                let origin = Origin::Caller { flags: call.flags, response_bytes_max };
                self.execute(cx, segment, operation, call.key, write, origin);
            }
        }
    }

    pub(crate) fn execute(
        &mut self,
        cx: &mut Cx,
        segment: Segment,
        operation: OperationId,
        key: bytes::Bytes,
        write: Write,
        origin: Origin,
    ) {
        let (flags, response_bytes_max) = match origin {
            Origin::Caller { flags, response_bytes_max } => (flags, response_bytes_max),
            Origin::Merge => (Flags::NONE, Call::ANY_BYTES),
        };
        if self.is_listened() && !self.is_invalidation() {
            self.expire_first(cx, segment, &key);
        }
        let (mut written, is_done) = self.sees(cx.now, segment, &key, &write);
        if let Some(bytes) = larger(written.previous.as_ref(), response_bytes_max) {
            return self.reply(cx, &operation.caller, operation.number, Reply::Larger(bytes));
        }
        if !is_done {
            let outcome = Outcome::Written(written.clone());
            if flags.has_any(Flags::LOCAL | Flags::ASYNC) {
                return self.reply(cx, &operation.caller, operation.number, Reply::Done(outcome));
            }
            self.state(segment).records.answered(operation.clone(), outcome, &cx.watermarks);
            return self.answer_behind_writes(cx, segment, operation, key, Outcome::Written(written));
        }
        if let Some(error) =
            self.store_refusal(cx, segment, &write.change).filter(|_| origin != Origin::Merge)
        {
            return self.reply(cx, &operation.caller, operation.number, Reply::Failed(error));
        }
        if origin != Origin::Merge
            && let Some(error) = self.memory_refusal(cx, segment, &key, &write.change)
        {
            return self.reply(cx, &operation.caller, operation.number, Reply::Failed(error));
        }
        let version = self.next_version(segment);
        let did = match self.change(cx, segment, &key, write.change, version) {
            Ok((did, _)) => did,
            Err(full) => {
                // To listeners, a gap in the count is a missing change.
                self.state(segment).count -= 1;
                let full = Reply::Failed(OperationError::full(&cx.local, full));
                return self.reply(cx, &operation.caller, operation.number, full);
            }
        };
        written.version = version;
        let key = bytes::Bytes::copy_from_slice(&key);
        let (outcome, skips_listeners) = (Outcome::Written(written), flags.contains(Flags::SKIP_LISTENERS));
        let record = WriteRecord { operation, key, version, did, outcome, skips_listeners };
        let is_shared = !(flags.contains(Flags::LOCAL) && self.is_invalidation());
        if is_shared {
            self.state(segment).records.push(record.clone(), &cx.watermarks);
        }
        if !self.listeners.is_idle() && did != WriteEffect::Clear {
            self.notify_local(cx, segment, &record, true);
        }
        if !is_shared {
            let OperationId { caller, number } = record.operation;
            return self.reply(cx, &caller, number, Reply::Done(record.outcome));
        }
        let told = flags.contains(Flags::ASYNC).then(|| record.clone());
        self.back_up_record(cx, segment, record);
        if let Some(record) = told {
            self.tell_ordered(cx, flags, &record);
        }
    }

    /// Returns the outcome of a write that is not refused, and whether it changes an entry. The outcome has the previous value,
    /// for listeners, too.
    pub(crate) fn sees(&self, now: Time, segment: Segment, key: &[u8], write: &Write) -> (Written, bool) {
        let present = self.entry(now, segment, key);
        let is_held = write.condition.holds(present.as_ref());
        let is_change = present.is_some() || write.change != Change::Remove || self.is_invalidation();
        let is_wanted =
            |entry: &Entry| !entry.is_passive() && (write.wants_previous || self.tells_previous());
        let seen = Written {
            is_done: is_held,
            was_present: present.is_some(),
            version: present.as_ref().map_or(Version::NONE, |entry| entry.version),
            previous: present.filter(is_wanted).map(|entry| Stored::of(entry, now)),
        };
        (seen, is_held && is_change)
    }

    /// Applies a change here. Returns the unexpired entry that a put has replaced, or an error if a put has no room.
    pub(crate) fn change(
        &mut self,
        cx: &mut Cx,
        segment: Segment,
        key: &[u8],
        change: Change,
        version: Version,
    ) -> Result<(WriteEffect, Option<Entry>), Full> {
        match change {
            Change::Put { value, lifetime } => {
                let previous = self.put_new(cx, segment, key, value, version, lifetime)?;
                self.note_put(segment, key, version);
                Ok((WriteEffect::Put, previous))
            }
            Change::Remove => {
                self.erase(cx, segment, key, version);
                self.note_removal(segment, key, version);
                Ok((WriteEffect::Remove, None))
            }
            Change::Clear => {
                self.clear_here(cx);
                Ok((WriteEffect::Clear, None))
            }
        }
    }

    /// Notifies a caller that does not wait for the other write owners that its write is applied here.
    fn tell_ordered(&mut self, cx: &mut Cx, flags: Flags, record: &WriteRecord) {
        if flags.contains(Flags::ASYNC) {
            let (operation, outcome) = (&record.operation, record.outcome.clone());
            self.reply(cx, &operation.caller, operation.number, Reply::Ordered(outcome));
        }
    }

    /// Returns the version of a write that this member orders.
    pub(crate) fn next_version(&mut self, segment: Segment) -> Version {
        let topology = self.topology_id();
        // Members that order writes of the same segment concurrently use disjoint parts of the count.
        let (place, places) = if self.is_invalidation() { self.place() } else { (0, 1) };
        let state = self.state(segment);
        state.count += 1;
        Version::new(topology, state.count * places + place)
    }

    /// Responds to an operation that changes nothing. If the write of the entry that it saw may not have reached all owners, the
    /// response is ordered behind that write.
    fn answer_behind_writes(
        &mut self,
        cx: &mut Cx,
        segment: Segment,
        operation: OperationId,
        key: bytes::Bytes,
        outcome: Outcome,
    ) {
        if !self.state(segment).records.is_unfinished(&key, &cx.watermarks) {
            return self.reply(cx, &operation.caller, operation.number, Reply::Done(outcome));
        }
        let backup = Backup {
            segment,
            finished: cx.watermarks.of(&operation.caller),
            operation,
            key: bytes::Bytes::new(),
            version: Version::NONE,
            effect: Effect::Nothing,
            expected_acks: 0,
            sends_outcome: false,
            outcome: Some(outcome),
            skips_listeners: false,
        };
        self.back_up(cx, backup);
    }

    /// Sends the effect of a record to the other write owners, which report to the caller.
    pub(crate) fn back_up_record(&mut self, cx: &mut Cx, segment: Segment, record: WriteRecord) {
        let effect = self.effect_of(cx.now, segment, &record);
        let backup = Backup {
            segment,
            finished: cx.watermarks.of(&record.operation.caller),
            operation: record.operation,
            key: record.key,
            version: record.version,
            effect,
            expected_acks: 0,
            sends_outcome: false,
            outcome: Some(record.outcome),
            skips_listeners: record.skips_listeners,
        };
        self.back_up(cx, backup);
    }

    /// Sends a backup to the other write owners. One of them sends the outcome to the caller; all owners of a write remember it.
    pub(crate) fn back_up(&mut self, cx: &mut Cx, mut backup: Backup) {
        let others: Vec<Address> = self
            .write_owners(backup.segment)
            .filter(|owner| **owner != cx.local)
            .filter(|owner| !cx.has(InjectedBug::MinorityWrites) || !self.is_away(owner))
            .cloned()
            .collect();
        let is_told = backup.effect != Effect::Nothing && !backup.effect.is_copied();
        let apart = if is_told { self.listening_apart(backup.segment) } else { Vec::new() };
        // With a store, the primary acknowledges like the backups.
        backup.expected_acks = (others.len() + apart.len()) as u16 + u16::from(self.is_backed());
        if self.is_backed() {
            self.acknowledge_own(cx, &backup, others.is_empty());
        }
        let Some((last, others)) = others.split_last() else {
            if !apart.is_empty() {
                backup.sends_outcome = !self.is_backed();
                return self.notify_remote(cx, &backup, &apart);
            }
            if let Some(outcome) = backup.outcome.filter(|_| !self.is_backed()) {
                self.reply(cx, &backup.operation.caller, backup.operation.number, Reply::Done(outcome));
            }
            return;
        };
        for other in others {
            let mut silent = backup.clone();
            if silent.effect == Effect::Nothing {
                silent.outcome = None;
            }
            self.send(cx, other, Body::Backup(silent));
        }
        backup.sends_outcome = true;
        self.send(cx, last, Body::Backup(backup));
    }

    /// Acknowledges to the caller that a write is stored here, with its outcome if no other owner sends that.
    fn acknowledge_own(&mut self, cx: &mut Cx, backup: &Backup, sends_outcome: bool) {
        let Some(epoch) = self.topology().map(|topology| topology.epoch(backup.segment)) else { return };
        let place = (backup.segment, backup.key.clone());
        let outcome = backup.outcome.clone().filter(|_| sends_outcome);
        let ack =
            Ack { number: backup.operation.number, epoch, expected_acks: backup.expected_acks, outcome };
        self.acknowledge(cx, place, backup.operation.caller.clone(), ack);
    }

    fn is_away(&self, owner: &Address) -> bool {
        self.topology().is_some_and(|topology| topology.away().contains(owner))
    }

    pub(crate) fn reply(&mut self, cx: &mut Cx, to: &Address, number: u64, reply: Reply) {
        if *to == cx.local {
            self.handle_reply(cx, to, self.topology_id(), number, reply);
        } else {
            if let Reply::Done(Outcome::Read(Some(stored))) = &reply {
                let finished = cx.watermarks.of(to);
                cx.responses.note_answered(to, number, stored.value.len(), finished, cx.now);
            }
            self.send(cx, to, Body::Reply { number, reply });
        }
    }
}
