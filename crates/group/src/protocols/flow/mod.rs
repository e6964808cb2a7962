//! Credit flow control: UFC for unicasts, MFC for multicasts, and their non-blocking variants.
//!
//! A sender has `max_credits` bytes per receiver; bytes consumed by the receiver's application return as credits. No
//! layer blocks: messages without credits wait here in order, and [`Protocol::queued_bytes`] lets the channel make
//! senders wait.
//!
//! The driver has to respect the limit ([`HOLD_LIMIT`], [`crate::Stack::hold_limit`]), as the channel's gate does,
//! because this layer cannot refuse a message. UFC_NB and MFC_NB differ only in their limit, `max_queue_size` bytes.
//! A DONT_BLOCK multicast is dropped instead of queued; with MFC_NB only if the queue is full.

mod granting;
mod multicast;
mod unicast;

use std::time::Duration;

use granting::CreditGrants;
use multicast::MulticastCredits;
use unicast::UnicastCredits;

use crate::{
    Address, Answer, Control, Cx, DropReason, Event, FcHeader, Flags, HeaderBody, HeaderIds, Message,
    MessageBatch, Pass, Payload, ProbeOut, Protocol, ProtocolId, Query, StackCount, TimerKey, View,
};

crate::properties! {
    /// Flow control's properties, the same on all members. The defaults are JGroups', so that stacks that omit them
    /// agree.
    FlowConfig {
        /// The bytes that may be in transit to a receiver or unconsumed there.
        max_credits: crate::config::Bytes = crate::config::Bytes(5_000_000),
        /// A receiver returns credits when its sender has at most this fraction left.
        min_threshold: f64 = 0.2,
        /// The limit of `min_threshold` in bytes; 0 = by `min_threshold`.
        min_credits: crate::config::Bytes = crate::config::Bytes(0),
        /// The time after which a waiting sender requests credits. It repeats the request at this interval.
        max_block_time: Duration = Duration::from_secs(5),
    }
}

crate::properties! {
    /// Further properties of the non-blocking variants.
    QueueConfig {
        /// The bytes that may wait for credits before senders have to wait.
        max_queue_size: crate::config::Bytes = crate::config::Bytes(10_000_000),
    }
}

/// The protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlowKind {
    /// Unicasts.
    Ufc,
    /// Multicasts.
    Mfc,
    /// Unicasts, with a queue.
    UfcNb,
    /// Multicasts, with a queue.
    MfcNb,
}

impl FlowKind {
    const fn is_multicast(self) -> bool {
        matches!(self, Self::Mfc | Self::MfcNb)
    }

    const fn has_queue(self) -> bool {
        matches!(self, Self::UfcNb | Self::MfcNb)
    }
}

/// The bytes per destination that may wait for credits before senders wait, also in stacks without flow control.
/// Enough to fill packets and to continue when credits return; small against the stock stacks' credits (2 MB and 4
/// MB).
pub const HOLD_LIMIT: u64 = 1_000_000;

const BLOCKED: TimerKey = TimerKey(1);

/// This bounds a short `max_block_time`.
const REQUEST_INTERVAL_MIN: Duration = Duration::from_millis(1);

/// The delay of a request to a member that may have lost count. Earlier messages arrive meanwhile; the receiver would
/// take them for lost and grant their credits twice.
const CREDIT_RESYNC_DELAY: Duration = Duration::from_millis(100);

#[derive(Clone, Copy)]
struct CreditTimeout {
    all: Duration,
    /// The time for members that may have counted too little.
    doubtful: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SendDecision {
    Passes,
    Queued,
    Dropped,
}

enum Credits {
    Unicast(UnicastCredits),
    Multicast(MulticastCredits),
}

impl Credits {
    const fn blocked(&self) -> usize {
        match self {
            Self::Unicast(unicast) => unicast.blocked(),
            Self::Multicast(multicast) => (multicast.queued_bytes() > 0) as usize,
        }
    }
}

/// A flow control layer.
pub struct FlowControl {
    kind: FlowKind,
    config: FlowConfig,
    queue: QueueConfig,
    credits: Credits,
    granting: CreditGrants,
    last_view: Option<View>,
    counters: Counters,
}

#[derive(Default)]
struct Counters {
    requests_sent: u64,
    requests_received: u64,
    replenishments_sent: u64,
    replenishments_received: u64,
    blockings: u64,
    dropped: u64,
}

impl FlowControl {
    /// Creates a layer. Only non-blocking kinds use `queue`.
    pub fn new(kind: FlowKind, config: FlowConfig, queue: QueueConfig) -> Self {
        let max = config.max_credits.0;
        let min = match config.min_credits.0 {
            0 => (max as f64 * config.min_threshold) as u64,
            min => min,
        };
        let credits = if kind.is_multicast() {
            Credits::Multicast(MulticastCredits::new(max))
        } else {
            Credits::Unicast(UnicastCredits::new(max))
        };
        Self {
            kind,
            config,
            queue,
            credits,
            granting: CreditGrants::new(max, min.min(max)),
            last_view: None,
            counters: Counters::default(),
        }
    }

    fn is_controlled(&self, message: &Message) -> bool {
        message.is_multicast() == self.kind.is_multicast() && !message.flags.has(Flags::NO_FC)
    }

    /// The variants use the plain kinds' headers.
    fn send_header(&self, cx: &mut Cx<'_>, dest: &Address, header: FcHeader, credits: u64) {
        let mut message = Message::new(Some(dest.clone()), Payload::Long(credits as i64))
            .with_flags(Flags::OOB | Flags::DONT_BUNDLE)
            .with_header(self.id(), HeaderBody::Fc(header));
        message.src = Some(cx.local().clone());
        cx.send(message);
    }

    fn replenish(&mut self, cx: &mut Cx<'_>, sender: &Address, credits: u64) {
        if cx.is_local(sender) {
            return self.replenished(cx, sender, credits);
        }
        self.counters.replenishments_sent += 1;
        self.send_header(cx, sender, FcHeader::Replenish, credits);
    }

    fn replenished(&mut self, cx: &mut Cx<'_>, receiver: &Address, credits: u64) {
        match &mut self.credits {
            Credits::Unicast(unicast) => unicast.replenish(receiver, credits),
            Credits::Multicast(multicast) => multicast.replenish(receiver, credits),
        }
        self.release(cx);
    }

    fn release(&mut self, cx: &mut Cx<'_>) {
        let is_blocked = match &mut self.credits {
            Credits::Unicast(unicast) => unicast.release(cx),
            Credits::Multicast(multicast) => multicast.release(cx),
        };
        if is_blocked {
            self.schedule_request(cx);
        } else {
            cx.disarm(BLOCKED);
        }
    }

    fn schedule_request(&self, cx: &mut Cx<'_>) {
        let due = match &self.credits {
            Credits::Unicast(unicast) => unicast.due(self.credit_timeout()),
            Credits::Multicast(multicast) => multicast.due(self.credit_timeout()),
        };
        if let Some(due) = due {
            cx.arm(BLOCKED, due.since(cx.now()));
        }
    }

    fn receive(&mut self, cx: &mut Cx<'_>, header: FcHeader, message: &Message) {
        cx.absorb(message);
        let (Some(src), Payload::Long(credits)) = (message.src.clone(), &message.payload) else {
            return cx.count_drop(DropReason::Malformed, |_| "credits".to_owned());
        };
        let Ok(credits) = u64::try_from(*credits) else {
            return cx.count_drop(DropReason::Malformed, |book| {
                format!("{credits} credits from {}", book.member(&src))
            });
        };
        match header {
            FcHeader::Replenish => {
                self.counters.replenishments_received += 1;
                self.replenished(cx, &src, credits);
            }
            FcHeader::CreditRequest => {
                self.counters.requests_received += 1;
                let has_gap = has_gap(cx, &src, self.kind.is_multicast());
                let granted = self.granting.requested(cx.now(), &src, credits, has_gap);
                #[cfg(feature = "injected-bugs")]
                let granted =
                    if cx.has_bug(crate::InjectedBug::CreditsOnRequest) { credits } else { granted };
                if granted > 0 {
                    self.replenish(cx, &src, granted);
                }
            }
        }
    }

    fn request_credits(&mut self, cx: &mut Cx<'_>, missing: Vec<(Address, u64)>) {
        for (receiver, credits) in missing {
            if !cx.is_local(&receiver) {
                self.counters.requests_sent += 1;
                self.send_header(cx, &receiver, FcHeader::CreditRequest, credits);
            }
        }
    }

    fn credit_timeout(&self) -> CreditTimeout {
        let all = self.config.max_block_time.max(REQUEST_INTERVAL_MIN);
        CreditTimeout { all, doubtful: all.min(CREDIT_RESYNC_DELAY) }
    }

    const fn nonblocking_queue_max(&self) -> u64 {
        if self.kind.has_queue() { self.queue.max_queue_size.0 } else { 0 }
    }

    fn drop_unsent(&mut self, cx: &mut Cx<'_>, message: &Message, length: u64) {
        self.counters.dropped += 1;
        cx.discard(message, DropReason::NoCredits);
        let timeout = self.credit_timeout();
        if let Credits::Multicast(multicast) = &mut self.credits {
            let missing = multicast.dropped(cx.now(), timeout.all, length);
            self.request_credits(cx, missing);
        }
    }

    fn view(&mut self, cx: &mut Cx<'_>, view: &View) {
        for sender in self.granting.view(view) {
            self.replenish(cx, &sender, 0);
        }
        let before = self.last_view.replace(view.clone());
        // Members may have moved to the digest of a merge view that this member missed.
        let is_merged = view.is_merge() || before.is_some_and(|before| view.skips_views_after(&before));
        #[cfg(feature = "injected-bugs")]
        if cx.has_bug(crate::InjectedBug::CreditForgotten)
            && let Credits::Multicast(multicast) = &mut self.credits
        {
            multicast.view_without_removals(view);
            return self.release(cx);
        }
        match &mut self.credits {
            Credits::Unicast(unicast) => unicast.view(cx, view, is_merged),
            Credits::Multicast(multicast) => multicast.view(view, is_merged),
        }
        self.release(cx);
    }
}

fn has_gap(cx: &Cx<'_>, sender: &Address, is_multicast: bool) -> bool {
    cx.ask(&Query::HasGap { sender, is_multicast }) == Some(Answer::Yes(true))
}

impl Protocol for FlowControl {
    fn name(&self) -> &'static str {
        match self.kind {
            FlowKind::Ufc => "UFC",
            FlowKind::Mfc => "MFC",
            FlowKind::UfcNb => "UFC_NB",
            FlowKind::MfcNb => "MFC_NB",
        }
    }

    /// The non-blocking variants interoperate with the plain kinds, the only ones in JGroups 5.5.
    fn id(&self) -> ProtocolId {
        if self.kind.is_multicast() { ProtocolId::MFC } else { ProtocolId::UFC }
    }

    fn down(&mut self, cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        if batch.messages.iter().all(|message| message.is_multicast() != self.kind.is_multicast()) {
            return;
        }
        let (now, room) = (cx.now(), self.nonblocking_queue_max());
        let blocked_before = self.credits.blocked();
        let mut messages = std::mem::take(&mut batch.messages);
        messages.retain_mut(|message| {
            let length = message.length() as u64;
            // Credits of the other flow control must not wait for this one's, or both may wait for each
            // other: SEQUENCER's coordinator returns unicast credits only when it can multicast. JGroups
            // counts such messages, so received ones are counted.
            if length == 0 || !self.is_controlled(message) || message.is_credit() {
                return true;
            }
            let decision = match &mut self.credits {
                Credits::Unicast(unicast) => unicast.try_send(now, message, length),
                Credits::Multicast(multicast) => multicast.try_send(now, cx.local(), message, length, room),
            };
            if decision == SendDecision::Dropped {
                self.drop_unsent(cx, message, length);
            }
            decision == SendDecision::Passes
        });
        batch.messages = messages;
        if self.credits.blocked() > blocked_before {
            self.counters.blockings += u64::from(!cx.is_armed(BLOCKED));
            self.schedule_request(cx);
        }
    }

    fn only_takes(&self) -> bool {
        true
    }

    fn wants(&self, batch: &MessageBatch, headers: HeaderIds) -> bool {
        batch.is_multicast() == self.kind.is_multicast() || headers.has(self.id())
    }

    fn up(&mut self, cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        let id = self.id();
        let mut delivered = 0;
        batch.messages.retain_mut(|message| match message.headers.take(id) {
            Some(HeaderBody::Fc(header)) => {
                self.receive(cx, header, message);
                false
            }
            _ => {
                if self.is_controlled(message) {
                    message.credit = message.credit.max(message.length() as u32);
                    delivered += u64::from(message.credit);
                }
                true
            }
        });
        if delivered > 0
            && let Some(src) = batch.src()
        {
            self.granting.delivered(src, delivered);
        }
    }

    fn consumed(&mut self, cx: &mut Cx<'_>, src: &Address, is_multicast: bool, credit: u64) {
        #[cfg(feature = "injected-bugs")]
        if cx.has_bug(crate::InjectedBug::NonMembersNotCounted)
            && !cx.view().is_some_and(|view| view.contains(src))
        {
            return;
        }
        if is_multicast != self.kind.is_multicast() {
            return;
        }
        if let Some(granted) = self.granting.consumed(src, credit) {
            self.replenish(cx, src, granted);
        }
        if self.granting.settled(src, || has_gap(cx, src, is_multicast)) {
            // Zero credits: the sender requests again.
            self.replenish(cx, src, 0);
        }
    }

    fn down_event(&mut self, cx: &mut Cx<'_>, event: &Event) -> Pass {
        if *event == Event::Disconnect {
            cx.disarm(BLOCKED);
            *self = Self::new(self.kind, self.config.clone(), self.queue.clone());
        }
        Pass::On
    }

    fn up_event(&mut self, cx: &mut Cx<'_>, event: &Event) -> Pass {
        // In JGroups' stacks the layer is above GMS; below it, the control call has handled the view already.
        if let Event::View(view) = event {
            self.view(cx, view);
        }
        Pass::On
    }

    fn control(&mut self, cx: &mut Cx<'_>, control: &Control<'_>) {
        if let Control::View(view) = control {
            self.view(cx, view);
        }
    }

    fn timer(&mut self, cx: &mut Cx<'_>, _key: TimerKey) {
        let (now, timeout) = (cx.now(), self.credit_timeout());
        let overdue = match &mut self.credits {
            Credits::Unicast(unicast) => unicast.overdue(now, timeout),
            Credits::Multicast(multicast) => multicast.overdue(now, timeout),
        };
        self.request_credits(cx, overdue);
        self.schedule_request(cx);
    }

    fn queued_bytes(&self, dest: Option<&Address>) -> u64 {
        match (&self.credits, dest) {
            (Credits::Unicast(unicast), Some(dest)) => unicast.queued_bytes(dest),
            (Credits::Multicast(multicast), None) => multicast.queued_bytes(),
            _ => 0,
        }
    }

    fn hold_limit(&self, is_multicast: bool) -> Option<u64> {
        let limit = if self.kind.has_queue() { self.queue.max_queue_size.0 } else { HOLD_LIMIT };
        (is_multicast == self.kind.is_multicast()).then_some(limit)
    }

    fn answer(&self, query: &Query<'_>) -> Option<Answer> {
        match query {
            // A sender waits with less than a fragment's credits left, and gets credits back at `min` or
            // below.
            Query::Withholdable { is_multicast, piece } if *is_multicast == self.kind.is_multicast() => {
                Some(Answer::Number(self.granting.min().saturating_sub(*piece)))
            }
            _ => None,
        }
    }

    fn counts(&self) -> Vec<(StackCount, u64)> {
        let (waiting, outstanding) = match &self.credits {
            Credits::Unicast(unicast) => (unicast.waiting(), unicast.outstanding()),
            Credits::Multicast(multicast) => (multicast.queued_bytes(), multicast.outstanding()),
        };
        vec![
            (StackCount::CreditBlockings, self.counters.blockings),
            (StackCount::CreditWaitingBytes, waiting),
            (StackCount::CreditOutstandingBytes, outstanding),
            (StackCount::CreditRequestsSent, self.counters.requests_sent),
            (StackCount::CreditRequestsReceived, self.counters.requests_received),
        ]
    }

    fn probe(&self, out: &mut ProbeOut) {
        out.put_all(&self.config);
        if self.kind.has_queue() {
            out.put("max_queue_size", self.queue.max_queue_size.0);
        }
        out.put("number_of_blockings", self.counters.blockings);
        out.put("num_credit_requests_sent", self.counters.requests_sent);
        out.put("num_credit_requests_received", self.counters.requests_received);
        out.put("num_credit_responses_sent", self.counters.replenishments_sent);
        out.put("num_credit_responses_received", self.counters.replenishments_received);
        out.put("num_msgs_dropped", self.counters.dropped);
        match &self.credits {
            Credits::Unicast(unicast) => unicast.probe(out),
            Credits::Multicast(multicast) => multicast.probe(out),
        }
        self.granting.probe(out);
    }

    fn operations(&self) -> &'static [&'static str] {
        &["unblock"]
    }

    fn operation(&mut self, cx: &mut Cx<'_>, name: &str, _args: &[&str]) -> Option<Result<String, String>> {
        // JGroups' operation for an operator with blocked senders.
        if name != "unblock" {
            return None;
        }
        match &mut self.credits {
            Credits::Unicast(unicast) => unicast.refill(),
            Credits::Multicast(multicast) => multicast.refill(),
        }
        self.release(cx);
        Some(Ok(String::new()))
    }
}

#[cfg(test)]
mod tests;
