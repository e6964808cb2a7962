//! RATE: measures sent and received bytes per interval, without effect on the wire.

use std::collections::VecDeque;
use std::time::Duration;

use crate::config::changed;
use crate::{Cx, MessageBatch, ProbeOut, Protocol, ProtocolId, TimerKey, wire};

crate::properties! {
    /// RATE's properties.
    RateConfig {
        /// Measures whole messages with headers, not payloads.
        measure_serialized_size: bool = false,
        /// The time of a measurement.
        interval: Duration = Duration::from_secs(1),
        /// The number of latest measurements that are kept.
        history_size: u32 = 60,
    }
}

/// A measurement takes 8 bytes.
const HISTORY_MAX: u32 = 100_000;

impl RateConfig {
    /// Checks the interval and the history; the error is the invalid attribute and the reason.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        if self.interval.is_zero() {
            return Err(("interval", "interval must be greater than 0".to_owned()));
        }
        if !(1..=HISTORY_MAX).contains(&self.history_size) {
            let size = self.history_size;
            return Err(("history_size", format!("history_size ({size}) must be from 1 to {HISTORY_MAX}")));
        }
        Ok(())
    }
}

const INTERVAL: TimerKey = TimerKey(1);

/// The bytes of one direction.
#[derive(Default)]
struct Direction {
    in_interval: u64,
    current: u64,
    highest: u64,
    /// Without intervals of no bytes, as in JGroups.
    history: VecDeque<u64>,
}

impl Direction {
    fn end_interval(&mut self, history_size: u32) {
        self.current = std::mem::take(&mut self.in_interval);
        if self.current > 0 {
            self.highest = self.highest.max(self.current);
            while self.history.len() >= history_size as usize {
                self.history.pop_front();
            }
            self.history.push_back(self.current);
        }
    }

    fn print_history(&self) -> String {
        self.history.iter().map(|bytes| printed(*bytes)).collect::<Vec<_>>().join(",")
    }
}

/// JGroups' units: powers of 1,000, two decimals unless the number is whole.
fn printed(bytes: u64) -> String {
    let (unit, name) = match bytes {
        0..1_000 => (1, "b"),
        1_000..1_000_000 => (1_000, "KB"),
        1_000_000..1_000_000_000 => (1_000_000, "MB"),
        _ => (1_000_000_000, "GB"),
    };
    if bytes.is_multiple_of(unit) {
        return format!("{}{name}", bytes / unit);
    }
    format!("{:.2}{name}", bytes as f64 / unit as f64)
}

/// The RATE layer.
pub struct Rate {
    config: RateConfig,
    sent: Direction,
    received: Direction,
    is_measuring: bool,
}

impl Rate {
    /// Creates the layer of a config that [`RateConfig::check`] accepts.
    pub fn new(config: RateConfig) -> Self {
        Self { config, sent: Direction::default(), received: Direction::default(), is_measuring: false }
    }

    fn bytes(&self, batch: &MessageBatch) -> u64 {
        let is_whole = self.config.measure_serialized_size;
        let sizes = batch
            .messages
            .iter()
            .map(|message| if is_whole { wire::message_size(message, 0, None) } else { message.length() });
        sizes.sum::<usize>() as u64
    }

    /// The first message after a time without messages begins an interval, so that an idle member has no timer.
    fn begin(&mut self, cx: &mut Cx<'_>) {
        if !self.is_measuring {
            self.is_measuring = true;
            cx.arm(INTERVAL, self.config.interval);
        }
    }
}

impl Protocol for Rate {
    fn name(&self) -> &'static str {
        "RATE"
    }

    fn id(&self) -> ProtocolId {
        ProtocolId(0)
    }

    fn down(&mut self, cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        self.begin(cx);
        self.sent.in_interval += self.bytes(batch);
    }

    fn only_takes(&self) -> bool {
        true
    }

    fn up(&mut self, cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        self.begin(cx);
        self.received.in_interval += self.bytes(batch);
    }

    fn timer(&mut self, cx: &mut Cx<'_>, _key: TimerKey) {
        for direction in [&mut self.sent, &mut self.received] {
            direction.end_interval(self.config.history_size);
        }
        self.is_measuring = self.sent.current + self.received.current > 0;
        if self.is_measuring {
            cx.arm(INTERVAL, self.config.interval);
        }
    }

    fn set_attribute(&mut self, name: &str, value: &str) -> Option<Result<(), String>> {
        let changed = changed(&self.config, name, value, RateConfig::check)?;
        Some(changed.map(|config| self.config = config))
    }

    fn probe(&self, out: &mut ProbeOut) {
        out.put_all(&self.config);
        out.put("current_send_rate", printed(self.sent.current));
        out.put("highest_send_rate", printed(self.sent.highest));
        out.put("current_receive_rate", printed(self.received.current));
        out.put("highest_receive_rate", printed(self.received.highest));
    }

    fn operations(&self) -> &'static [&'static str] {
        &["printReceiveHistory", "printSendHistory", "resetStats"]
    }

    fn operation(&mut self, _cx: &mut Cx<'_>, name: &str, _args: &[&str]) -> Option<Result<String, String>> {
        Some(Ok(match name {
            "printReceiveHistory" => self.received.print_history(),
            "printSendHistory" => self.sent.print_history(),
            "resetStats" => {
                (self.sent.highest, self.received.highest) = (0, 0);
                String::new()
            }
            _ => return None,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Message;
    use crate::harness::{Harness, member};

    const SECOND: Duration = Duration::from_secs(1);

    fn of(length: usize) -> Message {
        Message::bytes(Some(member(2)), vec![0; length])
    }

    fn attribute(harness: &Harness, name: &str) -> String {
        harness.stack.attribute("RATE", name).unwrap()
    }

    #[test]
    fn bytes_of_each_interval_are_measured_and_kept() {
        let mut harness = Harness::new(Rate::new(RateConfig { history_size: 2, ..RateConfig::default() }));
        for length in [1_500, 2_000_000, 10] {
            harness.send(of(length));
            harness.advance(SECOND);
        }
        assert_eq!(harness.take_down().len(), 3);
        assert_eq!(attribute(&harness, "current_send_rate"), "10b");
        assert_eq!(attribute(&harness, "highest_send_rate"), "2MB");
        let history = |harness: &mut Harness, name| {
            harness.stack.operation(harness.now, "RATE", name, &[]).unwrap().unwrap()
        };
        assert_eq!(history(&mut harness, "printSendHistory"), "2MB,10b");
        assert_eq!(history(&mut harness, "printReceiveHistory"), "");
        let mut received = of(1_500);
        received.src = Some(member(2));
        assert_eq!(harness.up(received.clone()).take_up(), [received]);
        harness.advance(SECOND);
        assert_eq!(attribute(&harness, "current_send_rate"), "0b");
        assert_eq!(attribute(&harness, "highest_receive_rate"), "1.50KB");
        history(&mut harness, "resetStats");
        assert_eq!(attribute(&harness, "highest_receive_rate"), "0b");
    }

    #[test]
    fn interval_sets_the_time_of_a_measurement() {
        let mut harness =
            Harness::new(Rate::new(RateConfig { interval: 5 * SECOND, ..RateConfig::default() }));
        harness.send(of(10));
        harness.advance(4 * SECOND);
        assert_eq!(attribute(&harness, "current_send_rate"), "0b");
        harness.advance(SECOND);
        assert_eq!(attribute(&harness, "current_send_rate"), "10b");
    }

    #[test]
    fn measure_serialized_size_adds_headers() {
        let config = RateConfig { measure_serialized_size: true, ..RateConfig::default() };
        let mut harness = Harness::new(Rate::new(config));
        harness.send(of(1_000));
        harness.advance(SECOND);
        assert!(attribute(&harness, "current_send_rate").ends_with("KB"), "more than 1,000 bytes");
        assert_ne!(attribute(&harness, "current_send_rate"), "1KB");
    }

    #[test]
    fn interval_and_history_of_no_length_are_refused() {
        let config = RateConfig { interval: Duration::ZERO, ..RateConfig::default() };
        assert_eq!(config.check().unwrap_err().0, "interval");
        for history_size in [0, HISTORY_MAX + 1] {
            let config = RateConfig { history_size, ..RateConfig::default() };
            assert_eq!(config.check().unwrap_err().0, "history_size");
        }
    }
}
