//! DELAY: delays every message by a random or constant time.

use std::collections::BTreeMap;
use std::time::Duration;

use super::NO_HEADER;
use crate::config::Properties;
use crate::{Cx, MessageBatch, ProbeOut, Protocol, ProtocolId, Time, TimerKey};

crate::properties! {
    /// DELAY's properties.
    DelayConfig {
        /// The maximum delay of incoming messages in milliseconds.
        in_delay: u32 = 0,
        /// The maximum delay of outgoing messages in milliseconds.
        out_delay: u32 = 0,
        /// A further constant delay of incoming messages in nanoseconds.
        in_delay_nanos: u32 = 0,
        /// A further constant delay of outgoing messages in nanoseconds.
        out_delay_nanos: u32 = 0,
        /// Whether every message is delayed by exactly the milliseconds.
        constant_delay: bool = false,
    }
}

/// Further batches pass at once.
const HELD_MAX: usize = 100_000;

const NEXT: TimerKey = TimerKey(1);

/// The DELAY layer.
pub struct Delay {
    config: DelayConfig,
    /// The number keeps the order; true is upwards.
    held: BTreeMap<(Time, u64), (bool, MessageBatch)>,
    next: u64,
}

impl Delay {
    /// Creates the layer.
    pub const fn new(config: DelayConfig) -> Self {
        Self { config, held: BTreeMap::new(), next: 0 }
    }

    fn hold(&mut self, cx: &mut Cx<'_>, is_up: bool, batch: &mut MessageBatch) {
        let config = &self.config;
        let (millis, nanos) = if is_up {
            (config.in_delay, config.in_delay_nanos)
        } else {
            (config.out_delay, config.out_delay_nanos)
        };
        if (millis == 0 && nanos == 0) || self.held.len() >= HELD_MAX {
            return;
        }
        let most = Duration::from_millis(u64::from(millis));
        let delay = if config.constant_delay { most } else { cx.rng().duration(Duration::ZERO, most) };
        let delay = delay + Duration::from_nanos(u64::from(nanos));
        self.next += 1;
        self.held.insert((cx.now() + delay, self.next), (is_up, std::mem::take(batch)));
        self.arm(cx);
    }

    fn arm(&self, cx: &mut Cx<'_>) {
        if let Some((&(at, _), _)) = self.held.first_key_value() {
            let after = at.since(cx.now());
            cx.arm(NEXT, after);
        }
    }
}

impl Protocol for Delay {
    fn name(&self) -> &'static str {
        "DELAY"
    }

    fn id(&self) -> ProtocolId {
        NO_HEADER
    }

    fn up(&mut self, cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        self.hold(cx, true, batch);
    }

    fn down(&mut self, cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        self.hold(cx, false, batch);
    }

    fn timer(&mut self, cx: &mut Cx<'_>, _key: TimerKey) {
        let now = cx.now();
        while let Some(entry) = self.held.first_entry()
            && entry.key().0 <= now
        {
            match entry.remove() {
                (true, batch) => cx.deliver_batch(batch),
                (false, batch) => batch.messages.into_iter().for_each(|message| cx.send(message)),
            }
        }
        self.arm(cx);
    }

    fn variable_properties(&mut self) -> Option<&mut dyn Properties> {
        Some(&mut self.config)
    }

    fn probe(&self, out: &mut ProbeOut) {
        out.put_all(&self.config);
        out.put("held_batches", self.held.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Message;
    use crate::harness::{Harness, member};

    #[test]
    fn a_constant_delay_keeps_order() {
        let config = DelayConfig { in_delay: 20, constant_delay: true, ..DelayConfig::default() };
        let mut harness = Harness::new(Delay::new(config));
        for n in 0..3 {
            harness.up(Message::bytes(Some(member(1)), vec![n]).sent_by(2));
        }
        harness.advance(Duration::from_millis(19));
        assert_eq!(harness.take_up(), []);
        harness.advance(Duration::from_millis(1));
        let order: Vec<u8> = harness.take_up().iter().map(|m| m.payload_bytes().unwrap()[0]).collect();
        assert_eq!(order, [0, 1, 2]);
    }

    #[test]
    fn a_random_delay_loses_nothing_and_ends_in_time() {
        let mut harness = Harness::new(Delay::new(DelayConfig { out_delay: 50, ..DelayConfig::default() }));
        for _ in 0..100 {
            harness.send(Message::bytes(None, "x"));
        }
        harness.advance(Duration::from_millis(25));
        let early = harness.take_down().len();
        assert!((20..80).contains(&early), "{early}");
        harness.advance(Duration::from_millis(25));
        assert_eq!(early + harness.take_down().len(), 100);
    }

    #[test]
    fn nanoseconds_add_up_and_attributes_change_at_run_time() {
        let mut harness = Harness::new(Delay::new(DelayConfig::default()));
        harness.send(Message::bytes(None, "x"));
        assert_eq!(harness.take_down().len(), 1, "no delay is the default");
        for (name, value) in [("out_delay", "1"), ("out_delay_nanos", "500"), ("constant_delay", "true")] {
            assert_eq!(harness.stack.set_attribute("DELAY", name, value), Some(Ok(())));
        }
        harness.send(Message::bytes(None, "x")).advance(Duration::from_nanos(1_000_499));
        assert_eq!(harness.take_down(), []);
        harness.advance(Duration::from_nanos(1));
        assert_eq!(harness.take_down().len(), 1);
    }
}
