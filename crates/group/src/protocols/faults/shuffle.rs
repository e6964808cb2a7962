//! SHUFFLE: collects messages and passes them on in random order.

use std::time::Duration;

use super::NO_HEADER;
use crate::config::Properties;
use crate::{Cx, Message, MessageBatch, ProbeOut, Protocol, ProtocolId, TimerKey};

crate::properties! {
    /// SHUFFLE's properties.
    ShuffleConfig {
        /// Whether incoming messages are shuffled.
        up: bool = true,
        /// Whether outgoing messages are shuffled.
        down: bool = false,
        /// How many messages to collect before they pass.
        max_size: usize = 10,
        /// The maximum time to collect.
        max_time: Duration = Duration::from_millis(1_500),
    }
}

const UP: TimerKey = TimerKey(1);
const DOWN: TimerKey = TimerKey(2);

/// The SHUFFLE layer.
pub struct Shuffle {
    config: ShuffleConfig,
    up: Vec<Message>,
    down: Vec<Message>,
}

impl Shuffle {
    /// Creates the layer.
    pub const fn new(config: ShuffleConfig) -> Self {
        Self { config, up: Vec::new(), down: Vec::new() }
    }

    fn pass(&mut self, cx: &mut Cx<'_>, key: TimerKey) {
        cx.disarm(key);
        let mut gathered = std::mem::take(if key == UP { &mut self.up } else { &mut self.down });
        cx.rng().shuffle(&mut gathered);
        for message in gathered {
            if key == UP { cx.deliver(message) } else { cx.send(message) }
        }
    }

    fn gather(&mut self, cx: &mut Cx<'_>, key: TimerKey, batch: &mut MessageBatch) {
        let gathered = if key == UP { &mut self.up } else { &mut self.down };
        gathered.append(&mut batch.messages);
        if gathered.len() >= self.config.max_size {
            self.pass(cx, key);
        } else if !cx.is_armed(key) {
            cx.arm(key, self.config.max_time);
        }
    }
}

impl Protocol for Shuffle {
    fn name(&self) -> &'static str {
        "SHUFFLE"
    }

    fn id(&self) -> ProtocolId {
        NO_HEADER
    }

    fn up(&mut self, cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        if self.config.up {
            self.gather(cx, UP, batch);
        }
    }

    fn down(&mut self, cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        if self.config.down {
            self.gather(cx, DOWN, batch);
        }
    }

    fn timer(&mut self, cx: &mut Cx<'_>, key: TimerKey) {
        self.pass(cx, key);
    }

    fn stop(&mut self, cx: &mut Cx<'_>) {
        self.pass(cx, DOWN);
    }

    fn variable_properties(&mut self) -> Option<&mut dyn Properties> {
        Some(&mut self.config)
    }

    fn probe(&self, out: &mut ProbeOut) {
        out.put_all(&self.config);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::{Harness, member};

    #[test]
    fn nothing_is_lost_or_added_and_the_order_changes() {
        let mut harness = Harness::new(Shuffle::new(ShuffleConfig::default()));
        for n in 0..25 {
            harness.up(Message::bytes(Some(member(1)), vec![n]).sent_by(2));
        }
        harness.advance(Duration::from_millis(1_500));
        let mut order: Vec<u8> = harness.take_up().iter().map(|m| m.payload_bytes().unwrap()[0]).collect();
        assert_ne!(order, (0..25).collect::<Vec<u8>>());
        order.sort_unstable();
        assert_eq!(order, (0..25).collect::<Vec<u8>>());
    }
}
