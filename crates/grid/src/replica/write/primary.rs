use consort_group::{Address, Time};

use crate::command::{Ack, Backup, Body, Call, Effect, OperationId, Reply};
use crate::cx::Cx;
use crate::injected_bugs::InjectedBug;
use crate::operation::{Action, Change, OperationError, Outcome, ReadFrom, Write, Written};
use crate::replica::store::Store;
use crate::replica::write::records::{WriteEffect, WriteRecord};
use crate::replica::{CacheReplica, Shared};
use crate::{Entry, Flags, Full, Segment, Stored, Version};

fn larger(value: Option<&Stored>, bytes_max: u32) -> Option<u32> {
    let bytes = u32::try_from(value?.value.len()).unwrap_or(u32::MAX);
    (bytes > bytes_max).then_some(bytes)
}

fn read_here(shared: &Shared, store: &Store, cx: &Cx, segment: Segment, call: &Call) -> Option<Reply> {
    let topology = shared.topology()?;
    if topology.read_owners().owners(segment).any(|owner| *owner == cx.local) {
        let stored = store.stored(shared, cx.now, segment, &call.key);
        return Some(match larger(stored.as_ref(), call.response_bytes_max) {
            Some(bytes) => Reply::Larger(bytes),
            None => Reply::Done(Outcome::Read(stored)),
        });
    }
    let is_local = call.flags.contains(Flags::LOCAL);
    Some(if is_local { Reply::Done(Outcome::Read(None)) } else { Reply::Misdirected })
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    Caller {
        flags: Flags,
        response_bytes_max: u32,
    },
    /// A result of a merge. No caller would repeat it, so it is applied in memory even if the store refuses
    /// writes; the store's write is retried.
    Merge,
}

impl CacheReplica {
    pub(crate) fn take_call(&mut self, cx: &mut Cx, from: &Address, topology: u32, call: Call) {
        if matches!(call.action, Action::Read(_)) && cx.holds_read(from, self.shared.id, topology, &call) {
            return;
        }
        let is_late = self.shared.is_absent(from) && !cx.has(InjectedBug::LateCallTaken);
        if is_late || !self.shared.is_caller(from, topology) {
            cx.counters.outdated += 1;
            return;
        }
        let Some(own) = self.shared.topology() else { return };
        let is_late = || topology < own.primary_term(self.shared.config.segment_of(&call.key));
        if matches!(call.action, Action::Write(_)) && is_late() && !cx.has(InjectedBug::LateCallTaken) {
            // Perhaps a late repetition: an earlier primary term may have sent its response, and no owner remembers that. A
            // caller that still waits sends the operation again.
            cx.counters.outdated += 1;
            return self.reply(cx, from, call.number, Reply::Misdirected);
        }
        self.handle_call(cx, from, call);
    }

    pub(crate) fn handle_call(&mut self, cx: &mut Cx, from: &Address, call: Call) {
        let segment = self.shared.config.segment_of(&call.key);
        // A repetition that arrives meanwhile may be executed first.
        if self.must_ask(cx, segment, &call) {
            return self.ask_for_call(cx, segment, from, Call { is_repeated: true, ..call });
        }
        if self
            .store
            .must_load(&self.shared, cx, segment, &call, || self.listeners.tells_previous(&self.shared))
        {
            return self.store.load_for_call(
                &self.shared,
                cx,
                segment,
                from,
                Call { is_repeated: true, ..call },
            );
        }
        let is_local = call.flags.contains(Flags::LOCAL);
        if call.action == Action::Read(ReadFrom::Nearest)
            || is_local && matches!(call.action, Action::Read(_))
        {
            let Some(reply) = read_here(&self.shared, &self.store, cx, segment, &call) else { return };
            return self.reply(cx, from, call.number, reply);
        }
        let Some(topology) = self.shared.topology() else { return };
        if !self.shared.is_primary(&cx.local, segment) {
            return self.reply(cx, from, call.number, Reply::Misdirected);
        }
        let is_write = matches!(call.action, Action::Write(_));
        if let Some(error) = self.shared.refusal(topology, segment, is_write)
            && !cx.has(InjectedBug::MinorityWrites)
        {
            // A repeated call may have been executed before.
            let error = if call.is_repeated && is_write { OperationError::Uncertain } else { error };
            return self.reply(cx, from, call.number, Reply::Failed(error));
        }
        if !self.shared.state(segment).is_open() {
            return self.shared.state(segment).park(cx, from, call);
        }
        cx.record_own_watermark();
        let operation = OperationId { caller: from.clone(), number: call.number };
        if call.is_repeated && !cx.has(InjectedBug::RepeatedNotRecognised) {
            if cx.watermarks.is_finished(&operation) {
                return;
            }
            if let Some(record) = self.shared.state(segment).records.find(&operation).cloned() {
                self.back_up_record(cx, segment, record.clone());
                return self.tell_ordered(cx, call.flags, &record);
            }
            if let Some(outcome) = self.shared.state(segment).records.answer(&operation).cloned()
                && !cx.has(InjectedBug::AnswerForgotten)
            {
                return self.answer_behind_writes(cx, segment, operation, call.key, outcome);
            }
        }
        let response_bytes_max = call.response_bytes_max;
        match call.action {
            Action::Read(_) => {
                let stored = self.store.stored(&self.shared, cx.now, segment, &call.key);
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
        if self.listeners.is_listened(&self.shared) && !self.shared.is_invalidation() {
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
            self.shared.state(segment).records.answered(operation.clone(), outcome, &cx.watermarks);
            return self.answer_behind_writes(cx, segment, operation, key, Outcome::Written(written));
        }
        if let Some(error) =
            self.store.store_refusal(cx, segment, &write.change).filter(|_| origin != Origin::Merge)
        {
            return self.reply(cx, &operation.caller, operation.number, Reply::Failed(error));
        }
        if origin != Origin::Merge
            && let Some(error) = self.shared.memory_refusal(cx, segment, &key, &write.change)
        {
            return self.reply(cx, &operation.caller, operation.number, Reply::Failed(error));
        }
        let version = self.shared.next_version(segment);
        let did = match self.change(cx, segment, &key, write.change, version) {
            Ok((did, _)) => did,
            Err(full) => {
                // To listeners, a gap in the count is a missing change.
                self.shared.state(segment).count -= 1;
                let full = Reply::Failed(OperationError::full(&cx.local, full));
                return self.reply(cx, &operation.caller, operation.number, full);
            }
        };
        written.version = version;
        let key = bytes::Bytes::copy_from_slice(&key);
        let (outcome, skips_listeners) = (Outcome::Written(written), flags.contains(Flags::SKIP_LISTENERS));
        let record = WriteRecord { operation, key, version, did, outcome, skips_listeners };
        let is_shared = !(flags.contains(Flags::LOCAL) && self.shared.is_invalidation());
        if is_shared {
            self.shared.state(segment).records.push(record.clone(), &cx.watermarks);
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

    /// Also returns whether the write changes an entry. The outcome has the previous value, for listeners.
    pub(crate) fn sees(&self, now: Time, segment: Segment, key: &[u8], write: &Write) -> (Written, bool) {
        let present = self.store.entry(&self.shared, now, segment, key);
        let is_held = write.condition.holds(present.as_ref());
        let is_change = present.is_some() || write.change != Change::Remove || self.shared.is_invalidation();
        let is_wanted = |entry: &Entry| {
            !entry.is_passive() && (write.wants_previous || self.listeners.tells_previous(&self.shared))
        };
        let seen = Written {
            is_done: is_held,
            was_present: present.is_some(),
            version: present.as_ref().map_or(Version::NONE, |entry| entry.version),
            previous: present.filter(is_wanted).map(|entry| Stored::of(entry, now)),
        };
        (seen, is_held && is_change)
    }

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
                let previous =
                    self.store.put_new(&mut self.shared, cx, segment, key, value, version, lifetime)?;
                self.shared.note_put(segment, key, version);
                Ok((WriteEffect::Put, previous))
            }
            Change::Remove => {
                self.store.erase(&mut self.shared, cx, segment, key, version);
                self.shared.note_removal(segment, key, version);
                Ok((WriteEffect::Remove, None))
            }
            Change::Clear => {
                self.listeners.clear_here(&self.shared, &mut self.iterations, cx);
                Ok((WriteEffect::Clear, None))
            }
        }
    }

    pub(crate) fn notify_local(&mut self, cx: &mut Cx, segment: Segment, record: &WriteRecord, is_new: bool) {
        let Self { shared, store, iterations, listeners, .. } = self;
        listeners.notify_local(shared, store, iterations, cx, segment, record, is_new);
    }

    fn tell_ordered(&mut self, cx: &mut Cx, flags: Flags, record: &WriteRecord) {
        if flags.contains(Flags::ASYNC) {
            let (operation, outcome) = (&record.operation, record.outcome.clone());
            self.reply(cx, &operation.caller, operation.number, Reply::Ordered(outcome));
        }
    }

    /// A response is ordered behind a seen write that may not have reached all owners.
    fn answer_behind_writes(
        &mut self,
        cx: &mut Cx,
        segment: Segment,
        operation: OperationId,
        key: bytes::Bytes,
        outcome: Outcome,
    ) {
        if !self.shared.state(segment).records.is_unfinished(&key, &cx.watermarks) {
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

    pub(crate) fn back_up_record(&mut self, cx: &mut Cx, segment: Segment, record: WriteRecord) {
        let effect = self.store.effect_of(&self.shared, cx.now, segment, &record);
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

    /// One of the other write owners sends the outcome to the caller; all owners remember it.
    pub(crate) fn back_up(&mut self, cx: &mut Cx, mut backup: Backup) {
        let others: Vec<Address> = self
            .shared
            .write_owners(backup.segment)
            .filter(|owner| **owner != cx.local)
            .filter(|owner| !cx.has(InjectedBug::MinorityWrites) || !self.shared.is_away(owner))
            .cloned()
            .collect();
        let is_told = backup.effect != Effect::Nothing && !backup.effect.is_copied();
        let apart = if is_told { self.shared.listening_apart(backup.segment) } else { Vec::new() };
        // With a store, the primary acknowledges like the backups.
        backup.expected_acks = (others.len() + apart.len()) as u16 + u16::from(self.store.is_backed());
        if self.store.is_backed() {
            self.acknowledge_own(cx, &backup, others.is_empty());
        }
        let Some((last, others)) = others.split_last() else {
            if !apart.is_empty() {
                backup.sends_outcome = !self.store.is_backed();
                return self.listeners.notify_remote(&self.shared, cx, &backup, &apart);
            }
            if let Some(outcome) = backup.outcome.filter(|_| !self.store.is_backed()) {
                self.reply(cx, &backup.operation.caller, backup.operation.number, Reply::Done(outcome));
            }
            return;
        };
        for other in others {
            let mut silent = backup.clone();
            if silent.effect == Effect::Nothing {
                silent.outcome = None;
            }
            self.shared.send(cx, other, Body::Backup(silent));
        }
        backup.sends_outcome = true;
        self.shared.send(cx, last, Body::Backup(backup));
    }

    /// `tells`: no other owner sends the outcome.
    fn acknowledge_own(&mut self, cx: &mut Cx, backup: &Backup, tells: bool) {
        let Some(epoch) = self.shared.topology().map(|topology| topology.epoch(backup.segment)) else {
            return;
        };
        let place = (backup.segment, backup.key.clone());
        let outcome = backup.outcome.clone().filter(|_| tells);
        let ack =
            Ack { number: backup.operation.number, epoch, expected_acks: backup.expected_acks, outcome };
        self.acknowledge(cx, place, backup.operation.caller.clone(), ack);
    }

    pub(crate) fn reply(&mut self, cx: &mut Cx, to: &Address, number: u64, reply: Reply) {
        if *to == cx.local {
            self.handle_reply(cx, to, self.shared.topology_id(), number, reply);
        } else {
            if let Reply::Done(Outcome::Read(Some(stored))) = &reply {
                let finished = cx.watermarks.of(to);
                cx.responses.note_answered(to, number, stored.value.len(), finished, cx.now);
            }
            self.shared.send(cx, to, Body::Reply { number, reply });
        }
    }
}

impl Shared {
    pub(crate) fn memory_refusal(
        &self,
        cx: &Cx,
        segment: Segment,
        key: &[u8],
        change: &Change,
    ) -> Option<OperationError> {
        let Change::Put { value, lifetime } = change else { return None };
        let refused =
            |member: &Address, shortage| OperationError::NoMemory { member: member.clone().into(), shortage };
        if let Err(shortage) = self.container.admit(segment, key, value.len(), *lifetime) {
            return Some(refused(&cx.local, shortage));
        }
        if !cx.memory.has_short_member() || self.is_invalidation() {
            return None;
        }
        let short = |owner: &Address| Some((owner.clone(), cx.memory.shortage_of(owner)?.clone()));
        let (owner, shortage) = self.write_owners(segment).find_map(short)?;
        let adds = self.container.growth_of(segment, key, value.len(), *lifetime) > 0;
        adds.then(|| refused(&owner, shortage))
    }

    pub(crate) fn next_version(&mut self, segment: Segment) -> Version {
        let topology = self.topology_id();
        // Members that order writes of the same segment concurrently use disjoint parts of the count.
        let (place, places) = if self.is_invalidation() { self.place() } else { (0, 1) };
        let state = self.state(segment);
        state.count += 1;
        Version::new(topology, state.count * places + place)
    }

    fn is_away(&self, owner: &Address) -> bool {
        self.topology().is_some_and(|topology| topology.away().contains(owner))
    }
}
