//! The state of a member's counters (sans-IO): the caller passes time, views and messages in, and takes messages and outcomes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use bytes::Bytes;
use consort_group::protocols::CounterConfig;
use consort_group::wire::{self, CounterMessage, CounterOperation, CounterOwner, CounterRow};
use consort_group::{Address, Flags, HeaderBody, Message, ProtocolId, View};
use tokio::sync::oneshot;

use super::error::CounterError;
use super::limits::{MESSAGE_BYTES, NAME_BYTES_MAX, PEERS_MAX, PENDING_MAX, RESPONSES_BYTES_MAX};
use super::recent::RecentResponses;
use super::table::{CounterTable, VersionedValue};
use crate::warnings::Warnings;

pub(super) type Outcome = Result<i64, CounterError>;

pub(super) type Done = oneshot::Sender<Outcome>;

/// An operation of this member without a response.
struct PendingOperation {
    name: String,
    operation: CounterOperation,
    timeout: Duration,
    /// `None` is beyond the clock's range.
    deadline: Option<Instant>,
    /// Whether a coordinator was asked; it may have carried the operation out.
    is_sent: bool,
    /// Absent for a deletion, which has no response.
    done: Option<Done>,
}

/// A new coordinator's question for the counters of the other members.
struct Reconciliation {
    missing: BTreeSet<Address>,
    deadline: Option<Instant>,
}

/// A member that requests came from.
#[derive(Default)]
struct Peer {
    /// It has got counters in this cycle.
    is_reconciled: bool,
    /// It takes no further responses now.
    is_crowded: bool,
}

/// The result of an operation, and the counter's state if the backups need it.
struct Executed {
    value: i64,
    version: i64,
    changed: Option<VersionedValue>,
}

pub(super) struct CounterState {
    config: CounterConfig,
    local: Address,
    view: Option<View>,
    backups: Vec<Address>,
    counters: CounterTable,
    recent: RecentResponses,
    reconciliation: Option<Reconciliation>,
    /// The coordinator to which this member has sent its counters. It discards requests until it asks for them again.
    held_for: Option<Address>,
    must_resend: bool,
    next_id: u64,
    pending: BTreeMap<u64, PendingOperation>,
    deadlines: BTreeSet<(Instant, u64)>,
    peers: BTreeMap<Address, Peer>,
    outbox: VecDeque<Message>,
    responses_bytes: usize,
    completed: Vec<(Done, Outcome)>,
    is_closed: bool,
    pub(super) warnings: Warnings,
}

impl CounterState {
    pub(super) fn new(config: CounterConfig, local: Address) -> Self {
        Self {
            config,
            local,
            view: None,
            backups: Vec::new(),
            counters: CounterTable::default(),
            recent: RecentResponses::default(),
            reconciliation: None,
            held_for: None,
            must_resend: false,
            next_id: 0,
            pending: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            peers: BTreeMap::new(),
            outbox: VecDeque::new(),
            responses_bytes: 0,
            completed: Vec::new(),
            is_closed: false,
            warnings: Warnings::new(),
        }
    }

    pub(super) fn timeout(&self) -> Duration {
        self.config.timeout
    }

    fn coordinator(&self) -> Option<&Address> {
        self.view.as_ref().and_then(View::coordinator)
    }

    fn is_coordinator(&self) -> bool {
        self.coordinator() == Some(&self.local)
    }

    /// Whether operations are carried out here.
    fn is_serving(&self) -> bool {
        self.is_coordinator() && self.reconciliation.is_none()
    }

    /// Whether the coordinator carries requests out, as far as this member knows.
    fn accepts_requests(&self) -> bool {
        let coordinator = self.coordinator();
        coordinator.is_some_and(|coordinator| *coordinator != self.local)
            && coordinator != self.held_for.as_ref()
    }

    fn send(&mut self, dest: Option<&Address>, message: &CounterMessage) {
        self.send_bytes(dest, wire::encode_counter(message));
    }

    fn send_bytes(&mut self, dest: Option<&Address>, payload: Bytes) {
        let flags = if self.config.bypass_bundling { Flags::DONT_BUNDLE } else { Flags::NONE };
        let message = Message::bytes(dest.cloned(), payload);
        self.outbox
            .push_back(message.with_flags(flags).with_header(ProtocolId::COUNTER, HeaderBody::Counter));
    }

    /// Sends a response, whose size a peer may determine.
    fn respond(&mut self, dest: &Address, message: &CounterMessage) {
        let payload = wire::encode_counter(message);
        self.responses_bytes += MESSAGE_BYTES + payload.len();
        self.send_bytes(Some(dest), payload);
    }

    fn update_backups(&mut self, name: &str, VersionedValue { value, version }: VersionedValue) {
        let payload = wire::encode_counter(&CounterMessage::Update(CounterRow {
            name: name.to_owned(),
            value,
            version,
        }));
        for backup in self.backups.clone() {
            self.send_bytes(Some(&backup), payload.clone());
        }
    }

    fn send_all_counters(&mut self, backups: &[Address]) {
        if backups.is_empty() {
            return;
        }
        let rows: Vec<CounterRow> = self.counters.rows().collect();
        for row in rows {
            let payload = wire::encode_counter(&CounterMessage::Update(row));
            for backup in backups {
                self.send_bytes(Some(backup), payload.clone());
            }
        }
    }

    /// Takes a member's new view.
    pub(super) fn view(&mut self, view: &View, now: Instant) {
        let former = self.coordinator().cloned();
        let local = self.local.clone();
        self.view = Some(view.clone());
        self.recent.retain(|member| view.contains(member));
        self.peers.retain(|member, _| view.contains(member));
        if self.held_for.as_ref().is_some_and(|member| !view.contains(member)) {
            self.held_for = None;
        }
        if !self.is_coordinator() {
            self.backups.clear();
            self.reconciliation = None;
            if former.as_ref() != self.coordinator() {
                self.send_pending(|pending| !pending.is_sent);
            }
            return;
        }
        let after = view.rank(&local).map_or(0, |rank| rank + 1);
        let others = view.members().iter().cycle().skip(after).take(view.len().saturating_sub(1));
        let backups: Vec<Address> = others.take(self.config.num_backups).cloned().collect();
        let former_backups = std::mem::replace(&mut self.backups, backups);
        let was_other = former.as_ref().is_some_and(|former| *former != local);
        if was_other || (view.is_merge() && former.is_some()) {
            self.reconcile(view, now);
        } else if let Some(reconciliation) = &mut self.reconciliation {
            reconciliation.missing.retain(|member| view.contains(member));
            self.finish_reconciliation();
        } else {
            let new: Vec<Address> =
                self.backups.iter().filter(|backup| !former_backups.contains(backup)).cloned().collect();
            self.send_all_counters(&new);
            self.execute_pending();
        }
    }

    fn reconcile(&mut self, view: &View, now: Instant) {
        let missing: BTreeSet<Address> =
            view.members().iter().filter(|member| **member != self.local).cloned().collect();
        if !missing.is_empty() {
            let rows = self.counters.rows().collect();
            self.send(None, &CounterMessage::Reconcile(rows));
        }
        let deadline = now.checked_add(self.config.reconciliation_timeout);
        self.reconciliation = Some(Reconciliation { missing, deadline });
        self.finish_reconciliation();
    }

    /// Unless members are missing.
    fn finish_reconciliation(&mut self) {
        if self.reconciliation.as_ref().is_none_or(|reconciliation| !reconciliation.missing.is_empty()) {
            return;
        }
        self.reconciliation = None;
        let backups = self.backups.clone();
        self.send_all_counters(&backups);
        if self.view.as_ref().is_some_and(|view| view.len() > 1) {
            self.send(None, &CounterMessage::ResendPending);
        }
        self.execute_pending();
    }

    /// This member has become coordinator.
    fn execute_pending(&mut self) {
        self.deadlines.clear();
        for (_, pending) in std::mem::take(&mut self.pending) {
            let outcome = self.execute_own(&pending.name, &pending.operation);
            self.completed.extend(pending.done.map(|done| (done, outcome)));
        }
    }

    fn execute_own(&mut self, name: &str, operation: &CounterOperation) -> Outcome {
        let executed = self.execute(name, operation).map_err(CounterError::Refused)?;
        if let Some(changed) = executed.changed {
            self.update_backups(name, changed);
        }
        Ok(executed.value)
    }

    /// The error is the text of an exception.
    fn execute(&mut self, name: &str, operation: &CounterOperation) -> Result<Executed, String> {
        let absent = || {
            // JGroups' text.
            let end = name.floor_char_boundary(NAME_BYTES_MAX);
            format!("counter \"{}\" not found", &name[..end])
        };
        let done = |value, counter: VersionedValue, is_changed: bool| Executed {
            value,
            version: counter.version,
            changed: is_changed.then_some(counter),
        };
        match *operation {
            CounterOperation::GetOrCreate(initial) => {
                let counter = self.counters.get_or_create(name, initial)?;
                // As JGroups, also for a counter that exists.
                Ok(done(counter.value, counter, true))
            }
            CounterOperation::Delete => {
                self.counters.remove(name);
                Ok(Executed { value: 0, version: 0, changed: None })
            }
            CounterOperation::Set(value) => {
                let (_, counter) = self.counters.change(name, |_| Some(value)).ok_or_else(absent)?;
                Ok(done(value, counter, true))
            }
            CounterOperation::AddAndGet(0) => {
                let counter = self.counters.get(name).ok_or_else(absent)?;
                Ok(done(counter.value, counter, false))
            }
            CounterOperation::AddAndGet(delta) => {
                let added = self.counters.change(name, |value| Some(value.wrapping_add(delta)));
                let (_, counter) = added.ok_or_else(absent)?;
                Ok(done(counter.value, counter, true))
            }
            CounterOperation::CompareAndSet { expected, update } => {
                let compared = self.counters.change(name, |value| (value == expected).then_some(update));
                let (previous, counter) = compared.ok_or_else(absent)?;
                Ok(done(previous, counter, previous == expected))
            }
            CounterOperation::UpdateFunction(_) => {
                Err("functions of Java are not supported by this coordinator: use compareAndSet".to_owned())
            }
        }
    }

    /// Begins an operation of this member.
    pub(super) fn begin(
        &mut self,
        name: &str,
        operation: CounterOperation,
        timeout: Duration,
        now: Instant,
        done: Done,
    ) -> Result<u64, CounterError> {
        self.check(name)?;
        if self.is_serving() {
            let outcome = self.execute_own(name, &operation);
            self.completed.push((done, outcome));
            return Ok(0);
        }
        self.next_id += 1;
        let id = self.next_id;
        let pending = PendingOperation {
            name: name.to_owned(),
            operation,
            timeout,
            deadline: now.checked_add(timeout),
            is_sent: false,
            done: Some(done),
        };
        self.deadlines.extend(pending.deadline.map(|deadline| (deadline, id)));
        self.pending.insert(id, pending);
        if self.accepts_requests() {
            self.send_request(id);
        }
        Ok(id)
    }

    fn check(&self, name: &str) -> Result<(), CounterError> {
        if self.is_closed {
            return Err(CounterError::Closed);
        }
        if name.len() > NAME_BYTES_MAX {
            return Err(CounterError::NameTooLong(name.len()));
        }
        if self.pending.len() >= PENDING_MAX {
            return Err(CounterError::TooManyPending);
        }
        Ok(())
    }

    /// There is no response.
    pub(super) fn delete(&mut self, name: &str, now: Instant) -> Result<(), CounterError> {
        self.check(name)?;
        if self.is_serving() {
            self.counters.remove(name);
            return Ok(());
        }
        self.next_id += 1;
        let (id, timeout) = (self.next_id, self.config.timeout);
        let deadline = now.checked_add(timeout);
        let (name, operation) = (name.to_owned(), CounterOperation::Delete);
        self.deadlines.extend(deadline.map(|deadline| (deadline, id)));
        self.counters.remove(&name);
        self.pending
            .insert(id, PendingOperation { name, operation, timeout, deadline, is_sent: false, done: None });
        if self.accepts_requests() {
            self.send_request(id);
        }
        Ok(())
    }

    /// The caller has gone.
    pub(super) fn forget(&mut self, id: u64) {
        self.remove_pending(id);
    }

    fn remove_pending(&mut self, id: u64) -> Option<PendingOperation> {
        let pending = self.pending.remove(&id)?;
        if let Some(deadline) = pending.deadline {
            self.deadlines.remove(&(deadline, id));
        }
        Some(pending)
    }

    fn send_request(&mut self, id: u64) {
        let Some(coordinator) = self.coordinator().cloned() else { return };
        let Some(pending) = self.pending.get_mut(&id) else { return };
        pending.is_sent = true;
        let request = CounterMessage::Operation {
            owner: CounterOwner { member: self.local.clone(), request_id: id as i64 },
            name: pending.name.clone(),
            operation: pending.operation.clone(),
        };
        if pending.done.is_none() {
            self.remove_pending(id);
        }
        self.send(Some(&coordinator), &request);
    }

    fn send_pending(&mut self, is_wanted: impl Fn(&PendingOperation) -> bool) {
        if !self.accepts_requests() {
            return;
        }
        let ids: Vec<u64> =
            self.pending.iter().filter(|(_, pending)| is_wanted(pending)).map(|(&id, _)| id).collect();
        for id in ids {
            self.send_request(id);
        }
    }

    /// Takes another member's message.
    pub(super) fn receive(&mut self, src: &Address, message: CounterMessage, now: Instant) {
        if *src == self.local {
            // Own multicasts: this member does its part at once.
            return;
        }
        match message {
            CounterMessage::Operation { owner, name, operation } => {
                if self.is_serving() && self.admit(src, now) {
                    self.serve(src, owner, &name, &operation);
                }
            }
            CounterMessage::Update(row) => self.merge(&row, now),
            CounterMessage::Reconcile(rows) => self.send_counters(src, &rows, now),
            CounterMessage::ResendPending => {
                if self.coordinator() == Some(src) || self.held_for.as_ref() == Some(src) {
                    self.held_for = None;
                    // At most once in a cycle, however often it is asked for.
                    self.must_resend = true;
                }
            }
            CounterMessage::Value { owner, value, version } => self.complete(&owner, value, version, now),
            CounterMessage::Exception { owner, text } => {
                if let Some(Some(done)) = self.own(&owner).map(|pending| pending.done) {
                    self.completed.push((done, Err(CounterError::Refused(text))));
                }
            }
            CounterMessage::Reconciled(rows) => {
                let reconciliation = self.reconciliation.as_mut();
                if reconciliation.is_some_and(|reconciliation| reconciliation.missing.remove(src)) {
                    rows.iter().for_each(|row| self.merge(row, now));
                    self.finish_reconciliation();
                }
            }
            // This member asks for no functions.
            CounterMessage::FunctionResult { .. } => {}
        }
    }

    fn merge(&mut self, row: &CounterRow, now: Instant) {
        let counter = VersionedValue { value: row.value, version: row.version };
        if let Err(why) = self.counters.merge(&row.name, counter) {
            self.warnings
                .count(now, "counter not kept", || format!("a counter of another member is not kept: {why}"));
        }
    }

    /// Whether a peer takes a response.
    fn admit(&mut self, src: &Address, now: Instant) -> bool {
        if self.responses_bytes >= RESPONSES_BYTES_MAX {
            self.warnings
                .count(now, "too many responses of COUNTER", || format!("a request of {src} is discarded"));
            return false;
        }
        let is_known = self.peers.contains_key(src);
        if !is_known && self.peers.len() >= PEERS_MAX {
            self.warnings
                .count(now, "too many peers of COUNTER", || format!("a request of {src} is discarded"));
            return false;
        }
        let is_crowded = self.peers.entry(src.clone()).or_default().is_crowded;
        if is_crowded {
            self.warnings.count(now, "no capacity for responses of COUNTER", || {
                format!("a request of {src} is discarded, because it has not taken earlier responses")
            });
        }
        !is_crowded
    }

    fn serve(&mut self, src: &Address, owner: CounterOwner, name: &str, operation: &CounterOperation) {
        if let Some(response) = self.recent.get(&owner).cloned() {
            return self.respond(src, &response);
        }
        let executed = self.execute(name, operation);
        let changed = executed.as_ref().ok().and_then(|executed| executed.changed);
        let response = match executed {
            Ok(_) if *operation == CounterOperation::Delete => return,
            Ok(Executed { value, version, .. }) => {
                CounterMessage::Value { owner: owner.clone(), value, version }
            }
            Err(text) => CounterMessage::Exception { owner: owner.clone(), text },
        };
        // A caller of JGroups that is a backup keeps the previous value of COMPARE_AND_SET with the new version, unless it
        // has got the new value before. All other callers get the response first: if it arrives, the change does, too.
        let is_swap = matches!(operation, CounterOperation::CompareAndSet { .. });
        if let Some(changed) = changed.filter(|_| is_swap) {
            self.update_backups(name, changed);
        }
        self.respond(src, &response);
        if let Some(changed) = changed.filter(|_| !is_swap) {
            self.update_backups(name, changed);
        }
        if changed.is_some() && !matches!(operation, CounterOperation::GetOrCreate(_)) {
            self.recent.insert(owner, response);
        }
    }

    /// Answers a new coordinator, which discards requests from then on.
    fn send_counters(&mut self, src: &Address, known: &[CounterRow], now: Instant) {
        if !self.view.as_ref().is_some_and(|view| view.contains(src)) || !self.admit(src, now) {
            return;
        }
        let peer = self.peers.entry(src.clone()).or_default();
        if std::mem::replace(&mut peer.is_reconciled, true) {
            return;
        }
        self.held_for = Some(src.clone());
        let rows = self.counters.newer_than(known);
        self.respond(src, &CounterMessage::Reconciled(rows));
    }

    /// Takes the operation that a response belongs to.
    fn own(&mut self, owner: &CounterOwner) -> Option<PendingOperation> {
        if owner.member != self.local {
            return None;
        }
        self.remove_pending(u64::try_from(owner.request_id).ok()?)
    }

    /// The result is kept with its version: it may be newer than that of a new coordinator.
    fn complete(&mut self, owner: &CounterOwner, result: i64, version: i64, now: Instant) {
        let Some(PendingOperation { name, operation, done, .. }) = self.own(owner) else { return };
        let value = match operation {
            CounterOperation::CompareAndSet { expected, update } if result == expected => update,
            _ => result,
        };
        self.merge(&CounterRow { name, value, version }, now);
        self.completed.extend(done.map(|done| (done, Ok(result))));
    }

    /// Returns the next message to send.
    pub(super) fn poll_message(&mut self) -> Option<Message> {
        if std::mem::take(&mut self.must_resend) {
            self.send_pending(|_| true);
        }
        self.outbox.pop_front()
    }

    /// Returns whether there is a message to send.
    pub(super) fn has_messages(&self) -> bool {
        self.must_resend || !self.outbox.is_empty()
    }

    /// Ends a cycle, after which all messages are sent.
    pub(super) fn after_cycle(&mut self, is_open: impl Fn(&Address) -> bool) {
        self.responses_bytes = 0;
        self.peers.retain(|member, peer| {
            *peer = Peer { is_reconciled: false, is_crowded: !is_open(member) };
            peer.is_crowded
        });
    }

    /// Takes the outcomes of completed operations, which callers get without the lock.
    pub(super) fn take_completed(&mut self) -> Vec<(Done, Outcome)> {
        std::mem::take(&mut self.completed)
    }

    /// Returns when to call [`Self::handle_timeout`].
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let pending = self.deadlines.first().map(|(deadline, _)| *deadline);
        let reconciliation = self.reconciliation.as_ref().and_then(|reconciliation| reconciliation.deadline);
        pending.into_iter().chain(reconciliation).min()
    }

    /// Ends operations whose time is over, and a reconciliation that members do not answer.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        while let Some(&(deadline, id)) = self.deadlines.first()
            && deadline <= now
        {
            let pending = self.remove_pending(id);
            if let Some(PendingOperation { done: Some(done), timeout, .. }) = pending {
                self.completed.push((done, Err(CounterError::TimedOut(timeout))));
            }
        }
        if let Some(reconciliation) = &mut self.reconciliation
            && reconciliation.deadline.is_some_and(|deadline| deadline <= now)
        {
            let missing = std::mem::take(&mut reconciliation.missing);
            self.warnings.count(now, "no counters of members", || {
                let members: Vec<String> = missing.iter().map(Address::to_string).collect();
                format!(
                    "these members sent no counters in time; do they have COUNTER? {}",
                    members.join(", ")
                )
            });
            self.finish_reconciliation();
        }
    }

    /// Ends all operations.
    pub(super) fn close(&mut self) {
        self.is_closed = true;
        self.deadlines.clear();
        self.reconciliation = None;
        let pending = std::mem::take(&mut self.pending);
        let done = pending.into_values().filter_map(|pending| pending.done);
        self.completed.extend(done.map(|done| (done, Err(CounterError::Closed))));
    }
}
