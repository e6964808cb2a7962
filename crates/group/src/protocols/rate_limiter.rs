//! RATE_LIMITER: sends at most `max_bytes` bytes of payload per `time_period`, without effect on the wire. RATE_LIMITER2
//! does the same with `interval`, and may drop messages instead of delaying them.
//!
//! Messages beyond the rate wait here in order; [`Protocol::queued_bytes`] lets the channel make senders wait. As in
//! JGroups, messages without payload or with flag NO_FC do not count. Credits do not either, because receivers return
//! them only as fast as senders may send.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::config::{Bytes, changed};
use crate::{
    Address, Cx, DropReason, Event, Flags, Message, MessageBatch, Pass, ProbeOut, Protocol, ProtocolId, Time,
    TimerKey, Transient,
};

crate::properties! {
    /// RATE_LIMITER's properties.
    RateLimiterConfig {
        /// The bytes that may be sent in a period. A larger message raises it to its own size.
        max_bytes: Bytes = Bytes(300_000),
        /// The length of a period.
        time_period: Duration = Duration::from_millis(10),
    }
}

impl RateLimiterConfig {
    /// Checks the period; the error is the invalid attribute and the reason.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        if self.time_period.is_zero() {
            return Err(("time_period", "time_period must be greater than 0".to_owned()));
        }
        Ok(())
    }
}

crate::properties! {
    /// RATE_LIMITER2's properties.
    RateLimiter2Config {
        /// The bytes that may be sent in an interval. A larger message raises it to its own size.
        max_bytes: Bytes = Bytes(20_000_000),
        /// The length of an interval.
        interval: Duration = Duration::from_secs(1),
        /// Drops messages with DONT_BLOCK that would wait.
        drop_dont_block_msgs: bool = false,
    }
}

impl RateLimiter2Config {
    /// Checks the interval; the error is the invalid attribute and the reason.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        if self.interval.is_zero() {
            return Err(("interval", "interval must be greater than 0".to_owned()));
        }
        Ok(())
    }
}

/// The attributes of either kind.
enum Kind {
    First(RateLimiterConfig),
    Second(RateLimiter2Config),
}

const PERIOD: TimerKey = TimerKey(1);

/// Bytes of waiting messages that a layer above repeats: other members cause them, so senders do not wait. Further
/// ones are discarded and requested again.
const REPEATABLE_BYTES_MAX: u64 = 64 << 20;

/// A waiting message counts these bytes beside its payload.
const MESSAGE_BYTES: u64 = 256;

/// Layers that resend until receivers have the message.
const REPEATING: [ProtocolId; 5] = [
    ProtocolId::NAKACK2,
    ProtocolId::NAKACK3,
    ProtocolId::NAKACK4,
    ProtocolId::UNICAST3,
    ProtocolId::UNICAST4,
];

fn is_repeatable(message: &Message) -> bool {
    REPEATING.iter().any(|id| message.headers.get(*id).is_some())
}

fn repeatable_bytes(message: &Message) -> u64 {
    if is_repeatable(message) { message.length() as u64 + MESSAGE_BYTES } else { 0 }
}

/// The RATE_LIMITER layer, or the RATE_LIMITER2 layer.
pub struct RateLimiter {
    kind: Kind,
    dropped: u64,
    period_start: Time,
    sent_in_period: u64,
    queue: VecDeque<Message>,
    queued: BTreeMap<Option<Address>, u64>,
    /// The waiting bytes that a layer above repeats.
    repeatable_bytes: u64,
    blockings: u64,
    blocked_since: Time,
    blocked: Duration,
}

impl RateLimiter {
    /// Creates the layer of a config that [`RateLimiterConfig::check`] accepts.
    pub fn new(config: RateLimiterConfig) -> Self {
        Self::of_kind(Kind::First(config))
    }

    /// Creates RATE_LIMITER2, of a config that [`RateLimiter2Config::check`] accepts.
    pub fn second(config: RateLimiter2Config) -> Self {
        Self::of_kind(Kind::Second(config))
    }

    fn of_kind(kind: Kind) -> Self {
        Self {
            kind,
            dropped: 0,
            period_start: Time::ZERO,
            sent_in_period: 0,
            queue: VecDeque::new(),
            queued: BTreeMap::new(),
            repeatable_bytes: 0,
            blockings: 0,
            blocked_since: Time::ZERO,
            blocked: Duration::ZERO,
        }
    }

    const fn max_bytes(&self) -> u64 {
        match &self.kind {
            Kind::First(config) => config.max_bytes.0,
            Kind::Second(config) => config.max_bytes.0,
        }
    }

    const fn period(&self) -> Duration {
        match &self.kind {
            Kind::First(config) => config.time_period,
            Kind::Second(config) => config.interval,
        }
    }

    fn drops(&self, message: &Message) -> bool {
        let Kind::Second(config) = &self.kind else { return false };
        config.drop_dont_block_msgs && message.transient.has(Transient::DONT_BLOCK)
    }

    /// The first message after a period begins the next. (JGroups waits for one that does not fit, so that twice the bytes may
    /// leave.)
    fn try_spend(&mut self, now: Time, bytes: u64) -> bool {
        if bytes > self.max_bytes() {
            tracing::warn!(
                max_bytes = self.max_bytes(),
                bytes,
                "{}: a message is larger than max_bytes, which is raised to its size",
                self.name()
            );
            match &mut self.kind {
                Kind::First(config) => config.max_bytes.0 = bytes,
                Kind::Second(config) => config.max_bytes.0 = bytes,
            }
        }
        if now.since(self.period_start) >= self.period() {
            self.period_start = now;
            self.sent_in_period = 0;
        }
        let fits = self.sent_in_period + bytes <= self.max_bytes();
        if fits {
            self.sent_in_period += bytes;
        }
        fits
    }

    fn enqueue(&mut self, cx: &mut Cx<'_>, message: Message) {
        if self.drops(&message) {
            self.dropped += 1;
            return cx.discard(&message, DropReason::QueueFull);
        }
        let repeatable = repeatable_bytes(&message);
        if self.repeatable_bytes + repeatable > REPEATABLE_BYTES_MAX && repeatable > 0 {
            return cx.discard(&message, DropReason::QueueFull);
        }
        self.repeatable_bytes += repeatable;
        if self.queue.is_empty() {
            self.blockings += 1;
            self.blocked_since = cx.now();
            let end = self.period_start + self.period();
            cx.arm(PERIOD, end.since(cx.now()));
        }
        *self.queued.entry(message.dest.clone()).or_default() += message.length() as u64;
        self.queue.push_back(message);
    }

    /// Sends as much as the period allows, unless `is_unlimited`.
    fn release(&mut self, cx: &mut Cx<'_>, is_unlimited: bool) {
        while let Some(bytes) = self.queue.front().map(|message| message.length() as u64) {
            if !is_unlimited && !self.try_spend(cx.now(), bytes) {
                let end = self.period_start + self.period();
                return cx.arm(PERIOD, end.since(cx.now()));
            }
            let Some(message) = self.queue.pop_front() else { break };
            self.repeatable_bytes -= repeatable_bytes(&message);
            if let Some(queued) = self.queued.get_mut(&message.dest) {
                *queued -= bytes;
                if *queued == 0 {
                    self.queued.remove(&message.dest);
                }
            }
            cx.send(message);
        }
        self.blocked += cx.now().since(self.blocked_since);
        cx.disarm(PERIOD);
    }
}

impl Protocol for RateLimiter {
    fn name(&self) -> &'static str {
        match self.kind {
            Kind::First(_) => "RATE_LIMITER",
            Kind::Second(_) => "RATE_LIMITER2",
        }
    }

    fn id(&self) -> ProtocolId {
        ProtocolId(0)
    }

    fn down(&mut self, cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        let mut messages = std::mem::take(&mut batch.messages);
        messages.retain_mut(|message| {
            let bytes = message.length() as u64;
            let is_free = message.flags.has(Flags::NO_FC) || message.is_credit();
            // A regular message without payload must not overtake the waiting messages of its sender.
            let passes = if is_free || (bytes == 0 && message.is_oob()) {
                true
            } else {
                self.queue.is_empty() && (bytes == 0 || self.try_spend(cx.now(), bytes))
            };
            if !passes {
                self.enqueue(cx, std::mem::replace(message, Message::empty(None)));
            }
            passes
        });
        batch.messages = messages;
    }

    fn only_takes(&self) -> bool {
        true
    }

    fn wants(&self, _batch: &MessageBatch, _headers: crate::HeaderIds) -> bool {
        false
    }

    /// Later there is no connection for a leaving member's messages.
    fn down_event(&mut self, cx: &mut Cx<'_>, event: &Event) -> Pass {
        if *event == Event::Disconnect && !self.queue.is_empty() {
            self.release(cx, true);
        }
        Pass::On
    }

    fn timer(&mut self, cx: &mut Cx<'_>, _key: TimerKey) {
        self.release(cx, false);
    }

    fn queued_bytes(&self, dest: Option<&Address>) -> u64 {
        self.queued.get(&dest.cloned()).copied().unwrap_or(0)
    }

    fn set_attribute(&mut self, name: &str, value: &str) -> Option<Result<(), String>> {
        let kind = match &self.kind {
            Kind::First(config) => changed(config, name, value, RateLimiterConfig::check)?.map(Kind::First),
            Kind::Second(config) => {
                changed(config, name, value, RateLimiter2Config::check)?.map(Kind::Second)
            }
        };
        Some(kind.map(|kind| self.kind = kind))
    }

    fn probe(&self, out: &mut ProbeOut) {
        match &self.kind {
            Kind::First(config) => out.put_all(config),
            Kind::Second(config) => {
                out.put_all(config);
                out.put("num_dropped_msgs", self.dropped);
            }
        }
        out.put("num_bytes_sent_in_period", self.sent_in_period);
        out.put("num_blockings", self.blockings);
        out.put("total_block_time", self.blocked.as_millis());
        out.put("queued_bytes", self.queued.values().sum::<u64>());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::{Harness, member};
    use crate::{HeaderBody, UnicastHeader};

    const PERIOD: Duration = Duration::from_millis(10);

    fn limiter(max_bytes: u64) -> Harness {
        let config = RateLimiterConfig { max_bytes: Bytes(max_bytes), time_period: PERIOD };
        let mut harness = Harness::new(RateLimiter::new(config));
        harness.advance(Duration::from_secs(1));
        harness
    }

    fn of(first: u8, length: usize) -> Message {
        let mut bytes = vec![0; length];
        bytes[0] = first;
        Message::bytes(Some(member(2)), bytes)
    }

    fn firsts(messages: &[Message]) -> Vec<u8> {
        messages.iter().map(|message| message.payload_bytes().map_or(0, |bytes| bytes[0])).collect()
    }

    #[test]
    fn at_most_max_bytes_pass_in_each_period_and_in_order() {
        let mut harness = limiter(100);
        harness.send_batch((1..=5).map(|n| of(n, 40)).collect());
        assert_eq!(firsts(&harness.take_down()), [1, 2], "the third would exceed 100 bytes");
        assert_eq!(harness.stack.queued_bytes(Some(&member(2))), 120);
        assert_eq!(harness.stack.queued_bytes(None), 0);
        harness.advance(PERIOD / 2);
        assert_eq!(harness.take_down(), []);
        harness.advance(PERIOD);
        assert_eq!(firsts(&harness.take_down()), [3, 4]);
        harness.advance(PERIOD);
        assert_eq!(firsts(&harness.take_down()), [5]);
        assert_eq!(harness.stack.queued_bytes(Some(&member(2))), 0);
    }

    #[test]
    fn a_busy_sender_sends_at_the_configured_rate() {
        let mut harness = limiter(1_000);
        harness.send_batch((0..2_000).map(|_| of(1, 100)).collect());
        harness.take_down();
        harness.advance(Duration::from_secs(1));
        let sent: usize = harness.take_down().iter().map(Message::length).sum();
        assert!((99_000..=101_000).contains(&sent), "{sent} bytes in 100 periods of 1,000 bytes");
    }

    #[test]
    fn messages_flagged_no_fc_and_oob_messages_without_payload_do_not_wait() {
        let mut harness = limiter(100);
        harness.send(of(1, 100)).send(of(2, 100)).take_down();
        harness.send(of(3, 100).with_flags(Flags::NO_FC));
        harness.send(Message::empty(Some(member(2))).with_flags(Flags::OOB));
        assert_eq!(firsts(&harness.take_down()), [3, 0]);
        harness.send(Message::empty(Some(member(2))));
        assert_eq!(harness.take_down(), [], "a regular message stays behind the waiting one");
        harness.advance(2 * PERIOD);
        assert_eq!(firsts(&harness.take_down()), [2, 0]);
    }

    #[test]
    fn a_message_larger_than_the_rate_raises_it() {
        let mut harness = limiter(100);
        harness.send(of(1, 1_000));
        assert_eq!(harness.take_down().len(), 1);
        assert_eq!(harness.stack.attribute("RATE_LIMITER", "max_bytes").as_deref(), Some("1000"));
    }

    #[test]
    fn a_leaving_member_sends_its_waiting_messages() {
        let mut harness = limiter(100);
        harness.send_batch((1..=5).map(|n| of(n, 100)).collect());
        harness.lower(Event::Disconnect);
        assert_eq!(firsts(&harness.take_down()), [1, 2, 3, 4, 5]);
        assert_eq!(harness.take_down_events(), [Event::Disconnect]);
    }

    #[test]
    fn repeatable_messages_beyond_the_limit_are_discarded_and_others_wait() {
        let mut harness = limiter(1_000);
        let piece = bytes::Bytes::from(vec![7; 1 << 20]);
        let of = |seqno: Option<u64>| {
            let message = Message::bytes(Some(member(2)), piece.clone());
            match seqno {
                Some(seqno) => {
                    let header =
                        HeaderBody::Unicast3(UnicastHeader::Data { seqno, conn_id: 0, first: false });
                    message.with_header(ProtocolId::UNICAST3, header)
                }
                None => message,
            }
        };
        harness.send(of(None)).take_down();
        harness.send_batch((1..=70).map(|seqno| of(Some(seqno))).collect());
        assert_eq!(
            harness.stack.shared().drops.total(DropReason::QueueFull),
            7,
            "63 of 1 MiB and 256 bytes fit"
        );
        harness.send_batch((0..10).map(|_| of(None)).collect());
        assert_eq!(harness.stack.shared().drops.total(DropReason::QueueFull), 7);
        assert_eq!(harness.stack.queued_bytes(Some(&member(2))), 73 << 20);
        harness.advance(PERIOD * 80);
        assert_eq!(harness.take_down().len(), 73);
        harness.send_batch((71..=134).map(|seqno| of(Some(seqno))).collect());
        assert_eq!(
            harness.stack.shared().drops.total(DropReason::QueueFull),
            7,
            "sent messages are not counted"
        );
    }

    #[test]
    fn rate_limiter2_sends_at_most_max_bytes_in_each_interval() {
        let config =
            RateLimiter2Config { max_bytes: Bytes(100), interval: PERIOD, ..RateLimiter2Config::default() };
        let mut harness = Harness::new(RateLimiter::second(config));
        harness.advance(Duration::from_secs(1));
        let unblocked = |first| {
            let mut message = of(first, 40);
            message.transient |= Transient::DONT_BLOCK;
            message
        };
        harness.send_batch(vec![of(1, 40), of(2, 40), unblocked(3)]);
        assert_eq!(firsts(&harness.take_down()), [1, 2]);
        harness.advance(2 * PERIOD);
        assert_eq!(
            firsts(&harness.take_down()),
            [3],
            "messages with DONT_BLOCK wait unless drop_dont_block_msgs is set"
        );
        let mut set = |name, value| harness.stack.set_attribute("RATE_LIMITER2", name, value).unwrap();
        assert!(set("interval", "0").is_err());
        set("drop_dont_block_msgs", "true").unwrap();
        harness.advance(2 * PERIOD);
        harness.send_batch(vec![of(1, 40), of(2, 40), unblocked(3), of(4, 40)]);
        harness.advance(2 * PERIOD);
        assert_eq!(firsts(&harness.take_down()), [1, 2, 4]);
        assert_eq!(harness.stack.attribute("RATE_LIMITER2", "num_dropped_msgs").as_deref(), Some("1"));
    }

    #[test]
    fn a_period_of_no_length_is_refused() {
        let config = RateLimiterConfig { time_period: Duration::ZERO, ..RateLimiterConfig::default() };
        assert_eq!(config.check().unwrap_err().0, "time_period");
        let mut harness = limiter(100);
        let set = harness.stack.set_attribute("RATE_LIMITER", "time_period", "0").unwrap();
        assert!(set.is_err());
    }
}
