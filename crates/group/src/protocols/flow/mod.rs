//! Credit flow control (facts section 18): UFC for unicasts, MFC for multicasts, and their non-blocking variants.
//!
//! A sender has `max_credits` bytes per receiver; what the receiver's application has consumed comes back. No layer
//! blocks: messages without credits wait here in order, and [`Protocol::held`] tells the channel how much that is, so
//! that it can make senders wait. It cannot refuse what has been sent, so the bound of its queue is [`HOLD_LIMIT`] as
//! whoever drives the stack keeps to it ([`crate::Stack::hold_limit`]; the channel's gate does). UFC_NB and MFC_NB let
//! `max_queue_size` bytes wait before that happens; nothing else about them differs. A multicast flagged DONT_BLOCK is
//! dropped rather than made to wait, with MFC_NB when the queue is full.

mod granting;
mod multicast;
mod unicast;

use std::time::Duration;

use granting::Granting;
use multicast::MulticastCredits;
use unicast::UnicastCredits;

use crate::{
    Address, Answer, Control, Cx, DropReason, Event, FcHeader, Flags, HeaderBody, HeaderIds, Message,
    MessageBatch, Pass, Payload, ProbeOut, Protocol, ProtocolId, Query, StackCount, TimerKey, View,
};

crate::properties! {
    /// What flow control can be told. All members have to use the same credits (facts 18.3): the defaults are those
    /// of JGroups' classes, so that a stack that leaves them out means the same to all.
    FlowConfig {
        /// Bytes that may be on their way to a receiver and unconsumed there.
        max_credits: crate::config::Bytes = crate::config::Bytes(5_000_000),
        /// A receiver returns credits when its sender has at most this part of them left.
        min_threshold: f64 = 0.2,
        /// The same in bytes; 0 = by `min_threshold`.
        min_credits: crate::config::Bytes = crate::config::Bytes(0),
        /// After waiting this long a sender asks for credits, and again after every further such time.
        max_block_time: Duration = Duration::from_secs(5),
    }
}

crate::properties! {
    /// What the non-blocking variants can be told besides.
    QueueConfig {
        /// Bytes that may wait for credits before senders have to.
        max_queue_size: crate::config::Bytes = crate::config::Bytes(10_000_000),
    }
}

/// Which messages are controlled, and under which name.
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

/// Bytes that may wait for credits per destination before senders have to; the channel's gate keeps to it also in
/// stacks without flow control. Enough to fill packets and to go on at once when credits come; small beside the
/// credits of the stock stacks (2 MB and 4 MB), so that a sender without any waits almost at once.
pub const HOLD_LIMIT: u64 = 1_000_000;

const BLOCKED: TimerKey = TimerKey(1);

/// Asking more often than this is pointless, whatever `max_block_time` says.
const ASK_INTERVAL_MIN: Duration = Duration::from_millis(1);

/// Who may have lost count is asked when it has let us wait this long, if `max_block_time` is longer. What we sent before
/// is there by then: asked at once it would take that for lost, and give us credits for it a second time.
const DOUBT_TIME: Duration = Duration::from_millis(100);

/// How long we wait for credits before we ask for them.
#[derive(Clone, Copy)]
struct Patience {
    all: Duration,
    /// With those that may have counted less than we have sent.
    doubtful: Duration,
}

/// What becomes of a message on its way down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Taken {
    /// It goes now.
    Passes,
    /// It has been taken into the queue.
    Waits,
    /// It would have to wait, and must not.
    Dropped,
}

enum Credits {
    Unicast(UnicastCredits),
    Multicast(MulticastCredits),
}

impl Credits {
    /// How many destinations have something that waits.
    const fn blocked(&self) -> usize {
        match self {
            Self::Unicast(unicast) => unicast.blocked(),
            Self::Multicast(multicast) => (multicast.held() > 0) as usize,
        }
    }
}

/// The protocol.
pub struct FlowControl {
    kind: FlowKind,
    config: FlowConfig,
    queue: QueueConfig,
    credits: Credits,
    granting: Granting,
    /// The last view that took effect here.
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
    /// Flow control of a kind; `queue` counts for the non-blocking kinds only.
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
            granting: Granting::new(max, min.min(max)),
            last_view: None,
            counters: Counters::default(),
        }
    }

    fn is_controlled(&self, message: &Message) -> bool {
        message.is_multicast() == self.kind.is_multicast() && !message.flags.has(Flags::NO_FC)
    }

    /// The non-blocking variants never wrote headers of their own: credits are the same messages.
    fn tell(&self, cx: &mut Cx<'_>, dest: &Address, header: FcHeader, credits: u64) {
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
        self.tell(cx, sender, FcHeader::Replenish, credits);
    }

    /// Credits have come back: what waited for them goes out.
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
            self.plan_ask(cx);
        } else {
            cx.disarm(BLOCKED);
        }
    }

    fn plan_ask(&self, cx: &mut Cx<'_>) {
        let due = match &self.credits {
            Credits::Unicast(unicast) => unicast.due(self.patience()),
            Credits::Multicast(multicast) => multicast.due(self.patience()),
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
                #[cfg(feature = "planted")]
                let granted =
                    if cx.has_planted(crate::Planted::CreditsForAsking) { credits } else { granted };
                if granted > 0 {
                    self.replenish(cx, &src, granted);
                }
            }
        }
    }

    fn ask(&mut self, cx: &mut Cx<'_>, missing: Vec<(Address, u64)>) {
        for (receiver, credits) in missing {
            if !cx.is_local(&receiver) {
                self.counters.requests_sent += 1;
                self.tell(cx, &receiver, FcHeader::CreditRequest, credits);
            }
        }
    }

    fn patience(&self) -> Patience {
        let all = self.config.max_block_time.max(ASK_INTERVAL_MIN);
        Patience { all, doubtful: all.min(DOUBT_TIME) }
    }

    /// How many bytes of messages that must not block may wait.
    const fn room(&self) -> u64 {
        if self.kind.has_queue() { self.queue.max_queue_size.0 } else { 0 }
    }

    fn drop_unsent(&mut self, cx: &mut Cx<'_>, message: &Message, length: u64) {
        self.counters.dropped += 1;
        cx.discard(message, DropReason::NoCredits);
        let patience = self.patience();
        if let Credits::Multicast(multicast) = &mut self.credits {
            let missing = multicast.dropped(cx.now(), patience.all, length);
            self.ask(cx, missing);
        }
    }

    fn view(&mut self, cx: &mut Cx<'_>, view: &View) {
        for sender in self.granting.view(view) {
            self.replenish(cx, &sender, 0);
        }
        let before = self.last_view.replace(view.clone());
        // Members may have moved on to the digest of a merged view that we have missed.
        let is_merged = view.is_merge() || before.is_some_and(|before| view.skips_views_after(&before));
        #[cfg(feature = "planted")]
        if cx.has_planted(crate::Planted::CreditForgotten)
            && let Credits::Multicast(multicast) = &mut self.credits
        {
            multicast.view_forgotten(view);
            return self.release(cx);
        }
        match &mut self.credits {
            Credits::Unicast(unicast) => unicast.view(cx, view, is_merged),
            Credits::Multicast(multicast) => multicast.view(view, is_merged),
        }
        self.release(cx);
    }
}

/// Whether something of this sender has come and waits for what was sent before it.
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

    /// The non-blocking variants interoperate with the plain ones, which are all that JGroups 5.5 has.
    fn id(&self) -> ProtocolId {
        if self.kind.is_multicast() { ProtocolId::MFC } else { ProtocolId::UFC }
    }

    fn down(&mut self, cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        if batch.messages.iter().all(|message| message.is_multicast() != self.kind.is_multicast()) {
            return;
        }
        let (now, room) = (cx.now(), self.room());
        let blocked_before = self.credits.blocked();
        let mut messages = std::mem::take(&mut batch.messages);
        messages.retain_mut(|message| {
            let length = message.length() as u64;
            // Credits of the other flow control must not wait for ours: what would bring ours may wait for those
            // (SEQUENCER's coordinator gives unicast credits back when it could multicast). JGroups counts such
            // messages, so those that arrive are counted as any other.
            if length == 0 || !self.is_controlled(message) || message.is_credit() {
                return true;
            }
            let taken = match &mut self.credits {
                Credits::Unicast(unicast) => unicast.take(now, message, length),
                Credits::Multicast(multicast) => multicast.take(now, cx.local(), message, length, room),
            };
            if taken == Taken::Dropped {
                self.drop_unsent(cx, message, length);
            }
            taken == Taken::Passes
        });
        batch.messages = messages;
        if self.credits.blocked() > blocked_before {
            self.counters.blockings += u64::from(!cx.is_armed(BLOCKED));
            self.plan_ask(cx);
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
        #[cfg(feature = "planted")]
        if cx.has_planted(crate::Planted::StrangersNotCounted)
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
            // No credits: the sender asks again.
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
        // Above GMS in JGroups' stacks; where it sits below, the control call has done it already.
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
        let (now, patience) = (cx.now(), self.patience());
        let overdue = match &mut self.credits {
            Credits::Unicast(unicast) => unicast.overdue(now, patience),
            Credits::Multicast(multicast) => multicast.overdue(now, patience),
        };
        self.ask(cx, overdue);
        self.plan_ask(cx);
    }

    fn held(&self, dest: Option<&Address>) -> u64 {
        match (&self.credits, dest) {
            (Credits::Unicast(unicast), Some(dest)) => unicast.held(dest),
            (Credits::Multicast(multicast), None) => multicast.held(),
            _ => 0,
        }
    }

    fn hold_limit(&self, is_multicast: bool) -> Option<u64> {
        let limit = if self.kind.has_queue() { self.queue.max_queue_size.0 } else { HOLD_LIMIT };
        (is_multicast == self.kind.is_multicast()).then_some(limit)
    }

    fn answer(&self, query: &Query<'_>) -> Option<Answer> {
        match query {
            // A sender waits with less than a piece left, and gets credits back at `min` or below.
            Query::Withholdable { is_multicast, piece } if *is_multicast == self.kind.is_multicast() => {
                Some(Answer::Number(self.granting.min().saturating_sub(*piece)))
            }
            _ => None,
        }
    }

    fn counts(&self) -> Vec<(StackCount, u64)> {
        let (waiting, outstanding) = match &self.credits {
            Credits::Unicast(unicast) => (unicast.waiting(), unicast.outstanding()),
            Credits::Multicast(multicast) => (multicast.held(), multicast.outstanding()),
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
        // JGroups' way out for an operator who sees senders stuck.
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
