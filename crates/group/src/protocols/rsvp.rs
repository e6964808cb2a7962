//! RSVP: messages that their receivers acknowledge.
//!
//! The sender's ticket returns when all receivers have the message; RSVP_NB only makes sure that it is flushed out.
//!
//! JGroups acknowledges when the callback returns. Here a receiver acknowledges when as much credit is consumed as
//! arrived up to the message, so not while the application keeps it. The empty, out-of-band acknowledgement bypasses
//! flow control.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::{
    Address, Cx, DropReason, Event, Flags, HeaderBody, Message, MessageBatch, Pass, ProbeOut, Protocol,
    ProtocolId, RsvpHeader, RsvpKind, Time, TimerKey, Transient, View,
};

crate::properties! {
    /// RSVP's properties.
    RsvpConfig {
        /// How long a sender waits for acknowledgements; 0 = forever.
        timeout: Duration = Duration::from_secs(10),
        /// Whether a missing acknowledgement fails the send or is only logged.
        throw_exception_on_timeout: bool = true,
        /// Whether a receiver acknowledges when its application has consumed the message or when it arrives.
        ack_on_delivery: bool = true,
        /// The time between reminders to receivers while the sender waits; 0 = never.
        resend_interval: Duration = Duration::from_secs(2),
    }
}

/// Ids have 16 bits.
const PENDING_SENDS_MAX: usize = 30_000;

const UNACKED_MAX: usize = 30_000;

const LATE: TimerKey = TimerKey(1);
const REMIND: TimerKey = TimerKey(2);

struct PendingSend {
    dest: Option<Address>,
    missing: BTreeSet<Address>,
    ticket: u32,
    until: Option<Time>,
    is_blocking: bool,
}

#[derive(Default)]
struct UnconsumedMessages {
    credit: u64,
    /// The credit to consume before the acknowledgement.
    acks: VecDeque<(u64, i16)>,
}

/// The RSVP layer.
pub struct Rsvp {
    config: RsvpConfig,
    members: Vec<Address>,
    next_id: i16,
    waiting: BTreeMap<i16, PendingSend>,
    /// The key is the sender and the kind.
    unconsumed: BTreeMap<(Address, bool), UnconsumedMessages>,
}

impl Rsvp {
    /// Creates the layer.
    pub fn new(mut config: RsvpConfig) -> Self {
        if !config.timeout.is_zero() && config.resend_interval >= config.timeout {
            config.resend_interval = config.timeout / 3;
            tracing::warn!(interval = ?config.resend_interval, "RSVP: resend_interval must be below timeout");
        }
        Self {
            config,
            members: Vec::new(),
            next_id: 0,
            waiting: BTreeMap::new(),
            unconsumed: BTreeMap::new(),
        }
    }

    fn begin(&mut self, cx: &mut Cx<'_>, message: &mut Message) {
        if self.waiting.len() >= PENDING_SENDS_MAX {
            cx.count_drop(DropReason::QueueFull, |_| {
                "too many pending RSVP messages: sent without RSVP".to_owned()
            });
            return self.finish(cx, message.ticket, false);
        }
        while self.waiting.contains_key(&self.next_id) {
            self.next_id = self.next_id.wrapping_add(1);
        }
        let id = self.next_id;
        self.next_id = self.next_id.wrapping_add(1);
        message.headers.put(ProtocolId::RSVP, HeaderBody::Rsvp(RsvpHeader { kind: RsvpKind::Request, id }));
        let mut missing: BTreeSet<Address> = match &message.dest {
            Some(dest) => BTreeSet::from([dest.clone()]),
            None => self.members.iter().cloned().collect(),
        };
        if message.transient.has(Transient::DONT_LOOPBACK) {
            missing.remove(cx.local());
        }
        if missing.is_empty() {
            return self.finish(cx, message.ticket, true);
        }
        let until = (!self.config.timeout.is_zero()).then(|| cx.now() + self.config.timeout);
        let is_blocking = message.flags.has(Flags::RSVP);
        let waiting =
            PendingSend { dest: message.dest.clone(), missing, ticket: message.ticket, until, is_blocking };
        self.waiting.insert(id, waiting);
        self.arm(cx);
    }

    fn finish(&self, cx: &mut Cx<'_>, ticket: u32, is_complete: bool) {
        if ticket != 0 {
            let is_complete = is_complete || !self.config.throw_exception_on_timeout;
            cx.raise(Event::RsvpDone { ticket, is_complete });
        }
    }

    fn arm(&self, cx: &mut Cx<'_>) {
        match self.waiting.values().filter_map(|waiting| waiting.until).min() {
            Some(until) => {
                let after = until.since(cx.now());
                cx.arm(LATE, after);
            }
            None => cx.disarm(LATE),
        }
        if self.waiting.is_empty() || self.config.resend_interval.is_zero() {
            cx.disarm(REMIND);
        } else if !cx.is_armed(REMIND) {
            cx.arm(REMIND, self.config.resend_interval);
        }
    }

    fn end_all_waits(&mut self, cx: &mut Cx<'_>) {
        for waiting in std::mem::take(&mut self.waiting).into_values() {
            self.finish(cx, waiting.ticket, false);
        }
        self.unconsumed.clear();
        self.arm(cx);
    }

    fn acked(&mut self, cx: &mut Cx<'_>, id: i16, member: &Address) {
        let Some(waiting) = self.waiting.get_mut(&id) else { return };
        waiting.missing.remove(member);
        self.complete(cx);
    }

    fn complete(&mut self, cx: &mut Cx<'_>) {
        let done: Vec<PendingSend> = self
            .waiting
            .extract_if(.., |_, waiting| waiting.missing.is_empty())
            .map(|(_, done)| done)
            .collect();
        for done in &done {
            self.finish(cx, done.ticket, true);
        }
        if !done.is_empty() {
            self.arm(cx);
        }
    }

    fn ack(cx: &mut Cx<'_>, to: &Address, id: i16) {
        let header = RsvpHeader { kind: RsvpKind::Response, id };
        let mut answer = Message::empty(Some(to.clone()))
            .with_flags(Flags::RSVP | Flags::DONT_BUNDLE | Flags::OOB)
            .with_header(ProtocolId::RSVP, HeaderBody::Rsvp(header));
        answer.src = Some(cx.local().clone());
        cx.send(answer);
    }

    fn view(&mut self, cx: &mut Cx<'_>, view: &View) {
        self.members = view.members().to_vec();
        for waiting in self.waiting.values_mut() {
            waiting.missing.retain(|member| view.contains(member));
        }
        self.unconsumed.retain(|(member, _), _| view.contains(member));
        self.complete(cx);
    }
}

fn wants_rsvp(message: &Message) -> bool {
    message.flags.has(Flags::RSVP) || message.flags.has(Flags::RSVP_NB)
}

impl Protocol for Rsvp {
    fn name(&self) -> &'static str {
        "RSVP"
    }

    fn id(&self) -> ProtocolId {
        ProtocolId::RSVP
    }

    /// A running stack may remove the layer.
    fn stop(&mut self, cx: &mut Cx<'_>) {
        self.end_all_waits(cx);
    }

    fn down(&mut self, cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        for message in batch.messages.iter_mut().filter(|message| wants_rsvp(message)) {
            self.begin(cx, message);
        }
    }

    fn up(&mut self, cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        batch.messages.retain_mut(|message| {
            let header = message.headers.take(ProtocolId::RSVP);
            let Some(src) = message.src.clone() else { return true };
            match header {
                Some(HeaderBody::Rsvp(RsvpHeader { kind: RsvpKind::Response, id })) => {
                    cx.absorb(message);
                    self.acked(cx, id, &src);
                    false
                }
                Some(HeaderBody::Rsvp(RsvpHeader { kind: RsvpKind::RequestOnly, .. })) => {
                    cx.absorb(message);
                    false
                }
                Some(HeaderBody::Rsvp(RsvpHeader { kind: RsvpKind::Request, id })) => {
                    if !self.config.ack_on_delivery {
                        Self::ack(cx, &src, id);
                        return true;
                    }
                    // The message needs credit, so that its consumption is reported.
                    message.credit = message.credit.max(1);
                    let unconsumed = self.unconsumed.entry((src, message.is_multicast())).or_default();
                    unconsumed.credit += u64::from(message.credit);
                    if unconsumed.acks.len() < UNACKED_MAX {
                        unconsumed.acks.push_back((unconsumed.credit, id));
                    } else {
                        cx.count_drop(DropReason::QueueFull, |_| "an acknowledgement".to_owned());
                    }
                    true
                }
                _ => {
                    if message.credit > 0 {
                        let key = (src, message.is_multicast());
                        self.unconsumed.entry(key).or_default().credit += u64::from(message.credit);
                    }
                    true
                }
            }
        });
    }

    fn consumed(&mut self, cx: &mut Cx<'_>, src: &Address, is_multicast: bool, credit: u64) {
        let Some(unconsumed) = self.unconsumed.get_mut(&(src.clone(), is_multicast)) else { return };
        unconsumed.credit = unconsumed.credit.saturating_sub(credit);
        let mut done = Vec::new();
        for (left, id) in &mut unconsumed.acks {
            *left = left.saturating_sub(credit);
            if *left == 0 {
                done.push(*id);
            }
        }
        unconsumed.acks.retain(|(left, _)| *left > 0);
        for id in done {
            Self::ack(cx, src, id);
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
            self.end_all_waits(cx);
        }
        Pass::On
    }

    fn timer(&mut self, cx: &mut Cx<'_>, key: TimerKey) {
        if key == REMIND {
            // One reminder flushes all other messages to the same destination.
            let mut reminded = BTreeSet::new();
            for (&id, waiting) in &self.waiting {
                if !reminded.insert(waiting.dest.as_ref()) {
                    continue;
                }
                let header = RsvpHeader { kind: RsvpKind::RequestOnly, id };
                let mut reminder = Message::empty(waiting.dest.clone())
                    .with_flags(Flags::RSVP)
                    .with_header(ProtocolId::RSVP, HeaderBody::Rsvp(header));
                reminder.src = Some(cx.local().clone());
                cx.send(reminder);
            }
        } else {
            let now = cx.now();
            let late: Vec<PendingSend> = self
                .waiting
                .extract_if(.., |_, waiting| waiting.until.is_some_and(|until| until <= now))
                .map(|(_, late)| late)
                .collect();
            for late in late {
                if late.is_blocking {
                    let missing = cx.shared().book.members(&late.missing);
                    tracing::warn!(?missing, "members have not acknowledged a message");
                }
                self.finish(cx, late.ticket, false);
            }
        }
        self.arm(cx);
    }

    fn probe(&self, out: &mut ProbeOut) {
        out.put_all(&self.config);
        out.put("pending_rsvp_requests", self.waiting.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::{Harness, member, view};

    fn harness() -> Harness {
        let mut harness = Harness::new(Rsvp::new(RsvpConfig::default()));
        harness.raise(Event::View(view(1, &[1, 2, 3])));
        harness.take_up_events();
        harness
    }

    fn asked(flag: Flags) -> Message {
        let mut message = Message::bytes(None, "x").with_flags(flag);
        message.ticket = 7;
        message
    }

    fn answer(n: u64, id: i16) -> Message {
        let header = RsvpHeader { kind: RsvpKind::Response, id };
        Message::empty(Some(member(1))).with_header(ProtocolId::RSVP, HeaderBody::Rsvp(header)).sent_by(n)
    }

    fn kinds(messages: &[Message]) -> Vec<RsvpKind> {
        messages
            .iter()
            .filter_map(|message| match message.headers.get(ProtocolId::RSVP) {
                Some(HeaderBody::Rsvp(header)) => Some(header.kind),
                _ => None,
            })
            .collect()
    }

    #[test]
    fn a_send_is_complete_when_every_member_has_acknowledged() {
        let mut harness = harness();
        harness.send(asked(Flags::RSVP)).up(answer(1, 0)).up(answer(2, 0));
        assert_eq!(harness.take_up_events(), []);
        harness.up(answer(3, 0));
        assert_eq!(harness.take_up_events(), [Event::RsvpDone { ticket: 7, is_complete: true }]);
    }

    #[test]
    fn members_that_leave_are_not_waited_for() {
        let mut harness = harness();
        harness.send(asked(Flags::RSVP)).up(answer(1, 0)).up(answer(2, 0));
        harness.raise(Event::View(view(2, &[1, 2])));
        assert!(harness.take_up_events().contains(&Event::RsvpDone { ticket: 7, is_complete: true }));
    }

    #[test]
    fn receivers_are_reminded_and_the_wait_ends() {
        let mut harness = harness();
        harness.send(asked(Flags::RSVP)).take_down();
        harness.advance(Duration::from_secs(5));
        assert_eq!(kinds(&harness.take_down()), [RsvpKind::RequestOnly, RsvpKind::RequestOnly]);
        harness.advance(Duration::from_secs(5));
        assert_eq!(harness.take_up_events(), [Event::RsvpDone { ticket: 7, is_complete: false }]);
        harness.take_down();
        harness.advance(Duration::from_secs(30));
        assert_eq!(harness.take_down(), []);
    }

    #[test]
    fn a_receiver_acknowledges_consumed_messages() {
        let mut harness = harness();
        let request = HeaderBody::Rsvp(RsvpHeader { kind: RsvpKind::Request, id: 9 });
        let mut earlier = Message::bytes(None, "0123456789");
        earlier.src = Some(member(2));
        earlier.credit = 10;
        let mut message =
            Message::bytes(None, "x").with_flags(Flags::RSVP).with_header(ProtocolId::RSVP, request);
        message.src = Some(member(2));
        harness.up_batch(vec![earlier, message]);
        assert_eq!(harness.take_up().len(), 2);
        harness.consumed(&member(2), true, 10);
        assert_eq!(harness.take_down(), [], "the message itself has not been consumed");
        harness.consumed(&member(2), true, 1);
        let sent = harness.take_down();
        assert_eq!(kinds(&sent), [RsvpKind::Response]);
        assert_eq!(sent[0].dest, Some(member(2)));
    }

    #[test]
    fn a_destination_is_reminded_once_however_many_messages_it_has_not_acknowledged() {
        let mut harness = harness();
        let unicast = |n| Message::bytes(Some(member(n)), "x").with_flags(Flags::RSVP);
        harness.send_batch(vec![asked(Flags::RSVP), asked(Flags::RSVP_NB)]);
        harness.send_batch(vec![unicast(2), unicast(2), unicast(3)]).take_down();
        harness.advance(Duration::from_secs(2));
        let dests: Vec<_> = harness.take_down().into_iter().map(|message| message.dest).collect();
        assert_eq!(dests, [None, Some(member(2)), Some(member(3))]);
    }

    #[test]
    fn reminders_come_before_the_wait_ends() {
        let config = RsvpConfig { timeout: Duration::from_secs(1), ..RsvpConfig::default() };
        let mut harness = Harness::new(Rsvp::new(config));
        harness.raise(Event::View(view(1, &[1, 2])));
        harness.send(asked(Flags::RSVP)).take_down();
        harness.advance(Duration::from_millis(999));
        assert_eq!(kinds(&harness.take_down()), [RsvpKind::RequestOnly; 3][..2]);
    }

    #[test]
    fn reminders_end_here() {
        let mut harness = harness();
        let header = HeaderBody::Rsvp(RsvpHeader { kind: RsvpKind::RequestOnly, id: 9 });
        let mut reminder = Message::empty(None).with_flags(Flags::RSVP).with_header(ProtocolId::RSVP, header);
        reminder.src = Some(member(2));
        harness.up(reminder);
        assert_eq!(harness.take_up(), []);
        assert_eq!(harness.take_down(), []);
    }
}
