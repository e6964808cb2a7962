//! SEQUENCER: total order of all multicasts at all members.
//!
//! Members send their multicasts to the coordinator, whose broadcasts arrive in the same order everywhere. When the
//! coordinator changes or groups merge, members first resend their messages that have not come back, one at a time.
//!
//! The order is that of one coordinator at a time. As in JGroups, members may have delivered different messages
//! before a view:
//!
//! * A crashed coordinator may have reached only some members. Messages that came back to their sender are not resent
//!   to members that lack them.
//! * After a merge, a former coordinator's broadcast may arrive after later messages through the new one.
//! * Messages that the coordinator refused from a member outside its view may arrive after later ones, once the
//!   member detects missed views.
//! * A message may arrive after its sender has left, because it waited for credits at the coordinator.
//!
//! Flow control counts a message twice: against its sender until it is broadcast, and against the coordinator until
//! it is consumed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;

use crate::credit::Creditors;
use crate::wire;
use crate::{
    Address, Answer, Cx, DropReason, Event, Flags, HeaderBody, HeaderIds, Message, MessageBatch, OwedCredits,
    Pass, ProbeOut, Protocol, ProtocolId, Query, SequencerHeader, SequencerKind, TimerKey, Transient, View,
};

crate::properties! {
    /// SEQUENCER's properties.
    SequencerConfig {
        /// The number of messages per sender that are remembered to detect duplicates.
        delivery_table_max_size: usize = 2_000,
        /// The number of messages sent one at a time after a change of coordinator, besides those left from
        /// before it; 0 = all messages.
        threshold: u32 = 10,
        /// Whether messages that have not come back go to the next coordinator when the coordinator changes,
        /// or are dropped.
        flush_forward_table: bool = true,
    }
}

/// A message sent one at a time is resent after this time.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

const RETRY: TimerKey = TimerKey(1);

/// Last messages of these senders may arrive twice. Members that return do so within minutes.
const DEPARTED_SENDERS_MAX: usize = 100;

#[derive(Default)]
struct DeliveredSeqnos {
    seqnos: BTreeSet<u64>,
    /// All seqnos up to here count as delivered.
    forgotten: u64,
}

impl DeliveredSeqnos {
    fn add(&mut self, seqno: u64, most: usize) -> bool {
        if seqno <= self.forgotten || !self.seqnos.insert(seqno) {
            return false;
        }
        while self.seqnos.len() > most {
            self.forgotten = self.seqnos.pop_first().unwrap_or(self.forgotten);
        }
        true
    }
}

struct DepartedSender {
    sender: Address,
    /// Otherwise this member will get a view with the sender.
    has_left: bool,
}

struct ForwardedMessage {
    wrapped: Bytes,
    /// Unwanted messages must come back, too.
    is_wanted_back: bool,
}

/// The SEQUENCER layer.
pub struct Sequencer {
    config: SequencerConfig,
    coordinator: Option<Address>,
    /// The last view delivered here. GMS may have a newer one, behind messages on their way up.
    view: Option<View>,
    next_seqno: u64,
    /// Own messages that have not come back.
    forwarded: BTreeMap<u64, ForwardedMessage>,
    /// New messages wait while it is not 0.
    serial_left: u32,
    in_flight: Option<u64>,
    delivered: BTreeMap<Address, DeliveredSeqnos>,
    /// The newest is last.
    departed: VecDeque<DepartedSender>,
    /// Credit of forwarders whose broadcast message has not come back, because it may wait for credits. Bounded by
    /// the credit granted.
    pledged: BTreeMap<(Address, u64), u64>,
    /// The members whose credit the application holds, by sender. Bounded likewise.
    owed: Creditors,
    broadcasts: u64,
    forwards: u64,
}

impl Sequencer {
    /// Creates the layer.
    pub const fn new(config: SequencerConfig) -> Self {
        Self {
            config,
            coordinator: None,
            view: None,
            next_seqno: 0,
            forwarded: BTreeMap::new(),
            serial_left: 0,
            in_flight: None,
            delivered: BTreeMap::new(),
            departed: VecDeque::new(),
            pledged: BTreeMap::new(),
            owed: Creditors::new(),
            broadcasts: 0,
            forwards: 0,
        }
    }

    fn leads(&self, cx: &Cx<'_>) -> bool {
        self.coordinator.as_ref() == Some(cx.local())
    }

    fn submit(&mut self, cx: &mut Cx<'_>, mut message: Message) {
        self.next_seqno += 1;
        let seqno = self.next_seqno;
        let kind = if self.leads(cx) { SequencerKind::Bcast } else { SequencerKind::WrappedBcast };
        let header = SequencerHeader { kind, seqno, flush_ack: false };
        message.src = Some(cx.local().clone());
        message.headers.put(ProtocolId::SEQUENCER, HeaderBody::Sequencer(header));
        let wrapped = wire::encode_typed(&message);
        #[cfg(feature = "injected-bugs")]
        if cx.has_bug(crate::InjectedBug::CoordinatorBypassed) {
            return self.broadcast(cx, wrapped, seqno, false);
        }
        let is_wanted_back = !message.transient.has(Transient::DONT_LOOPBACK);
        self.forwarded.insert(seqno, ForwardedMessage { wrapped: wrapped.clone(), is_wanted_back });
        if self.leads(cx) {
            self.broadcast(cx, wrapped, seqno, false);
        } else if self.is_serial() || self.in_flight.is_some() {
            self.send_next_serially(cx);
        } else {
            self.forward(cx, SequencerKind::Forward, wrapped, seqno);
        }
    }

    fn forward(&mut self, cx: &mut Cx<'_>, kind: SequencerKind, wrapped: Bytes, seqno: u64) {
        let Some(coordinator) = self.coordinator.clone() else { return };
        self.forwards += 1;
        let header = SequencerHeader { kind, seqno, flush_ack: false };
        let mut message = Message::bytes(Some(coordinator), wrapped)
            .with_header(ProtocolId::SEQUENCER, HeaderBody::Sequencer(header));
        message.src = Some(cx.local().clone());
        cx.send(message);
    }

    fn broadcast(&mut self, cx: &mut Cx<'_>, wrapped: Bytes, seqno: u64, flush_ack: bool) {
        self.broadcasts += 1;
        let header = SequencerHeader { kind: SequencerKind::WrappedBcast, seqno, flush_ack };
        let mut message =
            Message::bytes(None, wrapped).with_header(ProtocolId::SEQUENCER, HeaderBody::Sequencer(header));
        if flush_ack {
            message.flags |= Flags::DONT_BUNDLE;
        }
        message.src = Some(cx.local().clone());
        cx.send(message);
    }

    fn send_next_serially(&mut self, cx: &mut Cx<'_>) {
        if self.in_flight.is_some() {
            return;
        }
        let Some((&seqno, oldest)) = self.forwarded.first_key_value() else { return cx.disarm(RETRY) };
        let wrapped = oldest.wrapped.clone();
        self.in_flight = Some(seqno);
        self.forward(cx, SequencerKind::Flush, wrapped, seqno);
        cx.arm(RETRY, RETRY_INTERVAL);
    }

    fn is_serial(&self) -> bool {
        self.serial_left > 0 || self.config.threshold == 0
    }

    fn outstanding(&self) -> Vec<(u64, Bytes)> {
        self.forwarded.iter().map(|(&seqno, forwarded)| (seqno, forwarded.wrapped.clone())).collect()
    }

    /// Returns whether it is delivered here.
    fn note_returned(&mut self, cx: &mut Cx<'_>, seqno: u64) -> bool {
        let is_wanted = self.forwarded.remove(&seqno).is_none_or(|forwarded| forwarded.is_wanted_back);
        if self.in_flight != Some(seqno) {
            return is_wanted;
        }
        self.in_flight = None;
        cx.disarm(RETRY);
        self.serial_left = self.serial_left.saturating_sub(1);
        if self.is_serial() {
            self.send_next_serially(cx);
            return is_wanted;
        }
        // Enough messages were sent one at a time: the rest is sent in one sweep.
        for (seqno, wrapped) in self.outstanding() {
            self.forward(cx, SequencerKind::Forward, wrapped, seqno);
        }
        is_wanted
    }

    fn view(&mut self, cx: &mut Cx<'_>, view: &View) {
        #[cfg(feature = "injected-bugs")]
        if cx.has_bug(crate::InjectedBug::OrderedForgotten) {
            self.delivered.retain(|member, _| view.contains(member));
        }
        // A missed merge may have brought back members that the last view lacked.
        let has_missed = self.view.as_ref().is_some_and(|last| view.skips_views_after(last));
        if !view.is_merge() && !has_missed {
            // A process that joins under a former member's address numbers from the start.
            for departed in self.departed.iter().filter(|departed| departed.has_left) {
                if view.contains(&departed.sender) {
                    self.delivered.remove(&departed.sender);
                }
            }
        }
        self.departed.retain(|departed| !view.contains(&departed.sender));
        let gone: Vec<Address> =
            self.delivered.keys().filter(|member| !view.contains(member)).cloned().collect();
        gone.into_iter().for_each(|member| self.note_departed(member, true));
        self.view = Some(view.clone());
        let before = self.coordinator.replace(match view.coordinator() {
            Some(coordinator) => coordinator.clone(),
            None => return,
        });
        // This member may have been outside the coordinator's views, which dropped its messages meanwhile.
        let may_have_been_out = view.is_merge() || has_missed;
        if before == self.coordinator && (self.leads(cx) || !may_have_been_out) {
            return;
        }
        self.in_flight = None;
        cx.disarm(RETRY);
        if !self.config.flush_forward_table {
            self.forwarded.clear();
        }
        #[cfg(feature = "injected-bugs")]
        {
            if cx.has_bug(crate::InjectedBug::OutstandingDropped) {
                self.forwarded.clear();
            } else if cx.has_bug(crate::InjectedBug::OutstandingLoopedBack) {
                return self.loop_back_outstanding(cx);
            }
        }
        if self.leads(cx) {
            self.serial_left = 0;
            for (seqno, wrapped) in self.outstanding() {
                self.broadcast(cx, wrapped, seqno, false);
            }
        } else {
            self.serial_left = self.config.threshold.saturating_add(self.forwarded.len() as u32);
            self.send_next_serially(cx);
        }
    }

    /// This is the injected bug.
    #[cfg(feature = "injected-bugs")]
    fn loop_back_outstanding(&mut self, cx: &mut Cx<'_>) {
        for (seqno, wrapped) in self.outstanding() {
            let header = SequencerHeader { kind: SequencerKind::WrappedBcast, seqno, flush_ack: false };
            // Otherwise its credit would return as that of a multicast.
            let mut message = Message::bytes(Some(cx.local().clone()), wrapped)
                .with_flags(Flags::NO_FC)
                .with_header(ProtocolId::SEQUENCER, HeaderBody::Sequencer(header));
            message.src = Some(cx.local().clone());
            cx.send(message);
        }
    }

    fn receive(&mut self, cx: &mut Cx<'_>, header: SequencerHeader, message: Message) -> Option<Message> {
        match header.kind {
            SequencerKind::Forward | SequencerKind::Flush => {
                let is_flush = header.kind == SequencerKind::Flush;
                let is_member =
                    message.src.as_ref().is_some_and(|src| cx.view().is_some_and(|view| view.contains(src)));
                #[cfg(feature = "injected-bugs")]
                let is_member = is_member || cx.has_bug(crate::InjectedBug::NonMembersServed);
                match message.payload_bytes() {
                    // A sender that chose the wrong member installs the view and resends.
                    Some(wrapped) if self.leads(cx) && is_member => {
                        let wrapped = wrapped.clone();
                        if let (Some(src), 1..) = (message.src, message.credit) {
                            *self.pledged.entry((src, header.seqno)).or_default() +=
                                u64::from(message.credit);
                        }
                        self.broadcast(cx, wrapped, header.seqno, is_flush);
                    }
                    _ => cx.discard(&message, DropReason::Unexpected),
                }
                None
            }
            SequencerKind::Bcast => {
                let mut message = message;
                let src = message.src.clone()?;
                if !self.accept(cx, &src, header.seqno) {
                    cx.absorb(&message);
                    return None;
                }
                self.note_sender_credit(&message);
                message.transient |= Transient::TOTAL_ORDER;
                Some(message)
            }
            SequencerKind::WrappedBcast => {
                let inner = message.payload_bytes().map(wire::decode_typed);
                let Some(Ok(mut inner)) = inner else {
                    cx.discard(&message, DropReason::Malformed);
                    return None;
                };
                let seqno = match inner.headers.take(ProtocolId::SEQUENCER) {
                    Some(HeaderBody::Sequencer(inner)) => inner.seqno,
                    _ => header.seqno,
                };
                let Some(src) = inner.src.clone() else {
                    cx.discard(&message, DropReason::Malformed);
                    return None;
                };
                if message.src.as_ref() == Some(cx.local())
                    && let Some(credit) = self.pledged.remove(&(src.clone(), header.seqno))
                {
                    cx.return_credit(&src, false, credit);
                }
                if !self.accept(cx, &src, seqno) {
                    cx.absorb(&message);
                    return None;
                }
                inner.dest = None;
                inner.credit = message.credit;
                inner.transient |= Transient::TOTAL_ORDER;
                self.owed.note(&src, message.src.as_ref(), message.credit);
                Some(inner)
            }
        }
    }

    /// Its credit is the sender's own.
    fn note_sender_credit(&mut self, message: &Message) {
        if message.is_multicast()
            && let Some(src) = &message.src
        {
            self.owed.note(src, Some(src), message.credit);
        }
    }

    fn note_departed(&mut self, sender: Address, has_left: bool) {
        if self.departed.iter().any(|departed| departed.sender == sender) {
            return;
        }
        self.departed.push_back(DepartedSender { sender, has_left });
        if self.departed.len() > DEPARTED_SENDERS_MAX
            && let Some(oldest) = self.departed.pop_front()
        {
            self.delivered.remove(&oldest.sender);
        }
    }

    /// Returns true once per message.
    fn accept(&mut self, cx: &mut Cx<'_>, src: &Address, seqno: u64) -> bool {
        let is_wanted = !cx.is_local(src) || self.note_returned(cx, seqno);
        let most = self.config.delivery_table_max_size.max(1);
        let is_new = match self.delivered.get_mut(src) {
            Some(delivered) => delivered.add(seqno, most),
            None => {
                if !self.view.as_ref().is_some_and(|view| view.contains(src)) {
                    self.note_departed(src.clone(), false);
                }
                self.delivered.entry(src.clone()).or_default().add(seqno, most)
            }
        };
        if !is_new {
            cx.count_drop(DropReason::Duplicate, |book| format!("message {seqno} of {}", book.member(src)));
            return false;
        }
        is_wanted
    }
}

impl Protocol for Sequencer {
    fn name(&self) -> &'static str {
        "SEQUENCER"
    }

    fn id(&self) -> ProtocolId {
        ProtocolId::SEQUENCER
    }

    fn down(&mut self, cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        if self.coordinator.is_none() {
            return;
        }
        let messages = std::mem::take(&mut batch.messages);
        for message in messages {
            let is_ordered =
                message.is_multicast() && !message.flags.has(Flags::NO_TOTAL_ORDER) && !message.is_oob();
            if is_ordered {
                self.submit(cx, message);
            } else {
                batch.messages.push(message);
            }
        }
    }

    fn wants(&self, batch: &MessageBatch, headers: HeaderIds) -> bool {
        batch.is_multicast() || headers.has(self.id())
    }

    fn up(&mut self, cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        let is_ours = |message: &Message| message.headers.get(ProtocolId::SEQUENCER).is_some();
        let before = batch.messages.iter().position(is_ours).unwrap_or(batch.len());
        let rest = batch.messages.split_off(before);
        for message in &batch.messages {
            self.note_sender_credit(message);
        }
        for mut message in rest {
            let delivered = match message.headers.take(ProtocolId::SEQUENCER) {
                Some(HeaderBody::Sequencer(header)) => self.receive(cx, header, message),
                _ => {
                    self.note_sender_credit(&message);
                    Some(message)
                }
            };
            // Delivered one by one, because sources differ and order matters.
            delivered.into_iter().for_each(|message| cx.deliver(message));
        }
    }

    fn up_event(&mut self, cx: &mut Cx<'_>, event: &Event) -> Pass {
        if let Event::View(view) = event {
            self.view(cx, view);
        }
        Pass::On
    }

    fn down_event(&mut self, cx: &mut Cx<'_>, event: &Event) -> Pass {
        if *event == Event::Disconnect {
            cx.disarm(RETRY);
            // Delivered messages may arrive again until the leave is complete, and other members remember
            // this member's seqnos.
            *self = Self {
                next_seqno: self.next_seqno,
                delivered: std::mem::take(&mut self.delivered),
                departed: std::mem::take(&mut self.departed),
                ..Self::new(self.config.clone())
            };
        }
        Pass::On
    }

    fn timer(&mut self, cx: &mut Cx<'_>, _key: TimerKey) {
        if self.in_flight.take().is_some() {
            self.send_next_serially(cx);
        }
    }

    fn owed_below(&mut self, src: &Address, is_multicast: bool, credit: u64) -> Option<OwedCredits> {
        if is_multicast { self.owed.take(src, credit) } else { None }
    }

    fn answer(&self, query: &Query<'_>) -> Option<Answer> {
        matches!(query, Query::IsSentByOne).then_some(Answer::Yes(true))
    }

    fn queued_bytes(&self, dest: Option<&Address>) -> u64 {
        if dest.is_some() {
            return 0;
        }
        self.forwarded.values().map(|forwarded| forwarded.wrapped.len() as u64).sum()
    }

    fn probe(&self, out: &mut ProbeOut) {
        out.put_all(&self.config);
        out.put("bcast_msgs", self.broadcasts);
        out.put("forwarded_msgs", self.forwards);
        out.put("fwd_table_size", self.forwarded.len());
        out.put("ack_mode", self.is_serial());
    }
}

#[cfg(test)]
mod tests;
