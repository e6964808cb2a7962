//! SEQUENCER: one order of all multicasts at all members (facts 20.2).
//!
//! Members send their multicasts to the coordinator, which broadcasts them; the order in which its broadcasts arrive
//! is everybody's order. When the coordinator changes, or groups merge, members send what they have not seen come back
//! to whoever coordinates then, one message at a time, before anything else.
//!
//! The order is that of one coordinator at a time. As in JGroups, nothing makes all members see the same messages before
//! a view:
//!
//! * A coordinator that crashes may have reached some members only. What its senders have not seen come back is ordered
//!   anew, and what has come back to them is not sent again to those who lack it.
//! * Where subgroups merge, what a former coordinator has broadcast may come after what was sent later through the new
//!   one.
//! * What the coordinator has not taken from a member that was out of its views for a while may come after what that member
//!   has sent later: it is sent again as soon as the member sees that it has missed views.
//! * A message may come when its sender is not in the view any more: it waited for credits at the coordinator.
//!
//! Flow control counts a message twice: against its sender on the way to the coordinator, until the coordinator's
//! broadcast of it has gone out, and against the coordinator on the way to everybody, until it has been consumed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;

use crate::wire;
use crate::{
    Address, Answer, Cx, DropReason, Event, Flags, HeaderBody, HeaderIds, Message, MessageBatch, Owed, Pass,
    ProbeOut, Protocol, ProtocolId, Query, SequencerHeader, SequencerKind, TimerKey, Transient, View,
};

crate::properties! {
    /// SEQUENCER's properties.
    SequencerConfig {
        /// Messages per sender that are remembered to tell duplicates.
        delivery_table_max_size: usize = 2_000,
        /// Messages that go one at a time after a change of coordinator, besides those that were left from before
        /// it; 0 = all, for ever.
        threshold: u32 = 10,
        /// Whether what has not come back when the coordinator changes goes to the next one, or is dropped.
        flush_forward_table: bool = true,
    }
}

/// How long a message sent to the coordinator one at a time may take to come back.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

const RETRY: TimerKey = TimerKey(1);

/// Senders outside the view whose messages are remembered: members that are gone, whose last messages may come twice
/// or after they have come back. Those that come back do so within minutes.
const FORMER_MAX: usize = 100;

/// A sender's messages that have been delivered.
#[derive(Default)]
struct Delivered {
    seqnos: BTreeSet<u64>,
    /// Everything up to here counts as delivered.
    forgotten: u64,
}

impl Delivered {
    /// Notes a message, and that of `most` at most. Returns whether it is new.
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

/// A sender that is not in the view.
struct Former {
    sender: Address,
    /// Whether it has been in one. Otherwise it may be in the coordinator's already, and ours is on its way.
    has_left: bool,
}

/// One of our own messages on its way through the coordinator.
struct Forwarded {
    wrapped: Bytes,
    /// Whether it is delivered here too; it has to come back in any case.
    is_wanted_back: bool,
}

/// The protocol.
pub struct Sequencer {
    config: SequencerConfig,
    coordinator: Option<Address>,
    /// The view that has come up to here: messages before the next one are still behind GMS', which has it already.
    view: Option<View>,
    next_seqno: u64,
    /// Our own messages that have not come back.
    forwarded: BTreeMap<u64, Forwarded>,
    /// Messages that go one at a time: how many more; while it is not 0, or something is left from before a change of
    /// coordinator, new messages wait.
    careful: u32,
    /// The message that is out alone.
    alone: Option<u64>,
    delivered: BTreeMap<Address, Delivered>,
    /// The senders among those that are not in the view, newest last.
    former: VecDeque<Former>,
    /// Credit of forwarders whose message has been broadcast by us and has not come back: it may wait for credits of
    /// our own. Bounded by the credit that we give.
    pledged: BTreeMap<(Address, u64), u64>,
    /// Whose credit the application holds, for every sender whose messages it has not consumed. Bounded likewise.
    owed: BTreeMap<Address, VecDeque<(Address, u64)>>,
    broadcasts: u64,
    forwards: u64,
}

impl Sequencer {
    /// The protocol before the first view.
    pub const fn new(config: SequencerConfig) -> Self {
        Self {
            config,
            coordinator: None,
            view: None,
            next_seqno: 0,
            forwarded: BTreeMap::new(),
            careful: 0,
            alone: None,
            delivered: BTreeMap::new(),
            former: VecDeque::new(),
            pledged: BTreeMap::new(),
            owed: BTreeMap::new(),
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
        #[cfg(feature = "planted")]
        if cx.has_planted(crate::Planted::CoordinatorBypassed) {
            return self.broadcast(cx, wrapped, seqno, false);
        }
        let is_wanted_back = !message.transient.has(Transient::DONT_LOOPBACK);
        self.forwarded.insert(seqno, Forwarded { wrapped: wrapped.clone(), is_wanted_back });
        if self.leads(cx) {
            self.broadcast(cx, wrapped, seqno, false);
        } else if self.is_careful() || self.alone.is_some() {
            self.send_alone(cx);
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

    /// Sends the oldest message that has not come back, unless one is out already.
    fn send_alone(&mut self, cx: &mut Cx<'_>) {
        if self.alone.is_some() {
            return;
        }
        let Some((&seqno, oldest)) = self.forwarded.first_key_value() else { return cx.disarm(RETRY) };
        let wrapped = oldest.wrapped.clone();
        self.alone = Some(seqno);
        self.forward(cx, SequencerKind::Flush, wrapped, seqno);
        cx.arm(RETRY, RETRY_INTERVAL);
    }

    fn is_careful(&self) -> bool {
        self.careful > 0 || self.config.threshold == 0
    }

    /// All own messages that have not come back, in order.
    fn outstanding(&self) -> Vec<(u64, Bytes)> {
        self.forwarded.iter().map(|(&seqno, forwarded)| (seqno, forwarded.wrapped.clone())).collect()
    }

    /// One of our own messages has come back. Returns whether it is delivered here.
    fn came_back(&mut self, cx: &mut Cx<'_>, seqno: u64) -> bool {
        let is_wanted = self.forwarded.remove(&seqno).is_none_or(|forwarded| forwarded.is_wanted_back);
        if self.alone != Some(seqno) {
            return is_wanted;
        }
        self.alone = None;
        cx.disarm(RETRY);
        self.careful = self.careful.saturating_sub(1);
        if self.is_careful() {
            self.send_alone(cx);
            return is_wanted;
        }
        // Enough have gone one at a time: the rest goes in one sweep.
        for (seqno, wrapped) in self.outstanding() {
            self.forward(cx, SequencerKind::Forward, wrapped, seqno);
        }
        is_wanted
    }

    fn view(&mut self, cx: &mut Cx<'_>, view: &View) {
        #[cfg(feature = "planted")]
        if cx.has_planted(crate::Planted::OrderedForgotten) {
            self.delivered.retain(|member, _| view.contains(member));
        }
        // A merge that we have missed may have brought back whom this view has and our last one had not.
        let has_missed = self.view.as_ref().is_some_and(|last| view.skips_views_after(last));
        if !view.is_merge() && !has_missed {
            // Who joins under an address that was a member's before counts from the first.
            for former in self.former.iter().filter(|former| former.has_left) {
                if view.contains(&former.sender) {
                    self.delivered.remove(&former.sender);
                }
            }
        }
        self.former.retain(|former| !view.contains(&former.sender));
        let gone: Vec<Address> =
            self.delivered.keys().filter(|member| !view.contains(member)).cloned().collect();
        gone.into_iter().for_each(|member| self.note_former(member, true));
        self.view = Some(view.clone());
        let before = self.coordinator.replace(match view.coordinator() {
            Some(coordinator) => coordinator.clone(),
            None => return,
        });
        // We may have been out of the coordinator's views, before a merge or in views that we have missed: it has dropped
        // what we sent meanwhile.
        let may_have_been_out = view.is_merge() || has_missed;
        if before == self.coordinator && (self.leads(cx) || !may_have_been_out) {
            return;
        }
        self.alone = None;
        cx.disarm(RETRY);
        if !self.config.flush_forward_table {
            self.forwarded.clear();
        }
        #[cfg(feature = "planted")]
        {
            if cx.has_planted(crate::Planted::OutstandingDropped) {
                self.forwarded.clear();
            } else if cx.has_planted(crate::Planted::OutstandingKept) {
                return self.keep_outstanding(cx);
            }
        }
        if self.leads(cx) {
            self.careful = 0;
            for (seqno, wrapped) in self.outstanding() {
                self.broadcast(cx, wrapped, seqno, false);
            }
        } else {
            self.careful = self.config.threshold.saturating_add(self.forwarded.len() as u32);
            self.send_alone(cx);
        }
    }

    /// The bug: what others need comes back to ourselves only.
    #[cfg(feature = "planted")]
    fn keep_outstanding(&mut self, cx: &mut Cx<'_>) {
        for (seqno, wrapped) in self.outstanding() {
            let header = SequencerHeader { kind: SequencerKind::WrappedBcast, seqno, flush_ack: false };
            // Its credit would be given back as that of a multicast.
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
                #[cfg(feature = "planted")]
                let is_member = is_member || cx.has_planted(crate::Planted::StrangersHeard);
                match message.payload_bytes() {
                    // Whoever sent it to the wrong member will see the view and send it again.
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
                self.owe_sender(&message);
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
                    cx.give_back(&src, false, credit);
                }
                if !self.accept(cx, &src, seqno) {
                    cx.absorb(&message);
                    return None;
                }
                inner.dest = None;
                inner.credit = message.credit;
                inner.transient |= Transient::TOTAL_ORDER;
                self.owe(&src, message.src.as_ref(), message.credit);
                Some(inner)
            }
        }
    }

    /// The application is about to get a message of `src` whose credit is `creditor`'s.
    fn owe(&mut self, src: &Address, creditor: Option<&Address>, credit: u32) {
        let (Some(creditor), 1..) = (creditor, credit) else { return };
        let owed = self.owed.entry(src.clone()).or_default();
        match owed.back_mut() {
            Some((last, bytes)) if last == creditor => *bytes += u64::from(credit),
            _ => owed.push_back((creditor.clone(), u64::from(credit))),
        }
    }

    /// Multicasts outside the order count against their own sender, among those inside.
    fn owe_sender(&mut self, message: &Message) {
        if message.is_multicast()
            && let Some(src) = &message.src
        {
            self.owe(src, Some(src), message.credit);
        }
    }

    /// Remembers a sender that is not in the view, in the place of the one that has been out of it longest.
    fn note_former(&mut self, sender: Address, has_left: bool) {
        if self.former.iter().any(|former| former.sender == sender) {
            return;
        }
        self.former.push_back(Former { sender, has_left });
        if self.former.len() > FORMER_MAX
            && let Some(oldest) = self.former.pop_front()
        {
            self.delivered.remove(&oldest.sender);
        }
    }

    /// Whether a message is delivered, which it is once.
    fn accept(&mut self, cx: &mut Cx<'_>, src: &Address, seqno: u64) -> bool {
        let is_wanted = !cx.is_local(src) || self.came_back(cx, seqno);
        let most = self.config.delivery_table_max_size.max(1);
        let is_new = match self.delivered.get_mut(src) {
            Some(delivered) => delivered.add(seqno, most),
            None => {
                if !self.view.as_ref().is_some_and(|view| view.contains(src)) {
                    self.note_former(src.clone(), false);
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
            self.owe_sender(message);
        }
        for mut message in rest {
            let delivered = match message.headers.take(ProtocolId::SEQUENCER) {
                Some(HeaderBody::Sequencer(header)) => self.receive(cx, header, message),
                _ => {
                    self.owe_sender(&message);
                    Some(message)
                }
            };
            // One by one: their sources differ, and their order matters.
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
            // Until we are gone, what has been delivered may come again; and others remember what we have numbered.
            *self = Self {
                next_seqno: self.next_seqno,
                delivered: std::mem::take(&mut self.delivered),
                former: std::mem::take(&mut self.former),
                ..Self::new(self.config.clone())
            };
        }
        Pass::On
    }

    fn timer(&mut self, cx: &mut Cx<'_>, _key: TimerKey) {
        if self.alone.take().is_some() {
            self.send_alone(cx);
        }
    }

    fn owed_below(&mut self, src: &Address, is_multicast: bool, credit: u64) -> Option<Owed> {
        let owed = self.owed.get_mut(src).filter(|_| is_multicast)?;
        let mut result = Owed::new();
        let mut left = credit;
        while left > 0
            && let Some((creditor, bytes)) = owed.front_mut()
        {
            let part = left.min(*bytes);
            result.push((creditor.clone(), part));
            left -= part;
            *bytes -= part;
            if *bytes == 0 {
                owed.pop_front();
            }
        }
        if owed.is_empty() {
            self.owed.remove(src);
        }
        if left > 0 {
            result.push((src.clone(), left));
        }
        Some(result)
    }

    fn answer(&self, query: &Query<'_>) -> Option<Answer> {
        matches!(query, Query::IsSentByOne).then_some(Answer::Yes(true))
    }

    fn held(&self, dest: Option<&Address>) -> u64 {
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
        out.put("ack_mode", self.is_careful());
    }
}

#[cfg(test)]
mod tests;
