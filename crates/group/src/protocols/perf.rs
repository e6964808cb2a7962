//! PERF: measures how long messages take from the sender's PERF layer to this one, by a header with the time.
//!
//! As in JGroups, members of one host share the clock, the system's monotonic one. Between hosts the latency means
//! nothing.

use std::collections::VecDeque;
use std::time::Duration;

use crate::config::changed;
use crate::{Cx, HeaderBody, HeaderIds, MessageBatch, ProbeOut, Protocol, ProtocolId};

crate::properties! {
    /// PERF's properties.
    PerfConfig {
        /// The number of latest messages over which the average is taken.
        avg_size: u32 = 1024,
    }
}

/// A message of the average takes 8 bytes.
const AVG_SIZE_MAX: u32 = 1_000_000;

impl PerfConfig {
    /// Checks the average's size; the error is the invalid attribute and the reason.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        if !(1..=AVG_SIZE_MAX).contains(&self.avg_size) {
            let size = self.avg_size;
            return Err(("avg_size", format!("avg_size ({size}) must be from 1 to {AVG_SIZE_MAX}")));
        }
        Ok(())
    }
}

/// The PERF layer.
pub struct Perf {
    config: PerfConfig,
    /// In nanoseconds.
    latencies: VecDeque<i64>,
    sum: i128,
    /// Messages without a header, or from the future.
    unmeasured: u64,
}

impl Perf {
    /// Creates the layer of a config that [`PerfConfig::check`] accepts.
    pub const fn new(config: PerfConfig) -> Self {
        Self { config, latencies: VecDeque::new(), sum: 0, unmeasured: 0 }
    }

    fn clear(&mut self) {
        *self = Self::new(self.config.clone());
    }

    fn add(&mut self, latency: i64) {
        while self.latencies.len() >= self.config.avg_size as usize {
            self.sum -= self.latencies.pop_front().map_or(0, i128::from);
        }
        self.latencies.push_back(latency);
        self.sum += i128::from(latency);
    }

    fn average(&self) -> Duration {
        let count = self.latencies.len().max(1) as i128;
        Duration::from_nanos(u64::try_from(self.sum / count).unwrap_or(0))
    }
}

/// Returns the system's monotonic clock in nanoseconds.
fn clock(cx: &Cx<'_>) -> i64 {
    cx.shared().clock_origin.saturating_add(cx.now().0) as i64
}

impl Protocol for Perf {
    fn name(&self) -> &'static str {
        "PERF"
    }

    fn id(&self) -> ProtocolId {
        ProtocolId::PERF
    }

    fn down(&mut self, cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        let now = clock(cx);
        for message in &mut batch.messages {
            message.headers.put(ProtocolId::PERF, HeaderBody::Perf(now));
        }
    }

    fn only_takes(&self) -> bool {
        true
    }

    fn wants(&self, _batch: &MessageBatch, _headers: HeaderIds) -> bool {
        true
    }

    fn up(&mut self, cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        let now = clock(cx);
        for message in &mut batch.messages {
            match message.headers.take(ProtocolId::PERF) {
                Some(HeaderBody::Perf(start)) if now > start => self.add(now.saturating_sub(start)),
                _ => self.unmeasured += 1,
            }
        }
    }

    fn set_attribute(&mut self, name: &str, value: &str) -> Option<Result<(), String>> {
        let changed = changed(&self.config, name, value, PerfConfig::check)?;
        Some(changed.map(|config| self.config = config))
    }

    fn probe(&self, out: &mut ProbeOut) {
        out.put_all(&self.config);
        let average = self.average();
        out.put("latency_in_ns", average.as_nanos());
        out.put("latency_in_ms", average.as_secs_f64() * 1e3);
        out.put("measured_msgs", self.latencies.len());
        out.put("unmeasured_msgs", self.unmeasured);
    }

    fn operations(&self) -> &'static [&'static str] {
        &["resetStats"]
    }

    fn operation(&mut self, _cx: &mut Cx<'_>, name: &str, _args: &[&str]) -> Option<Result<String, String>> {
        (name == "resetStats").then(|| {
            self.clear();
            Ok(String::new())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::{Harness, member};
    use crate::{Message, wire};

    fn attribute(harness: &Harness, name: &str) -> String {
        harness.stack.attribute("PERF", name).unwrap()
    }

    fn received(start: i64) -> Message {
        let mut message =
            Message::bytes(Some(member(1)), "x").with_header(ProtocolId::PERF, HeaderBody::Perf(start));
        message.src = Some(member(2));
        message
    }

    /// The bytes are id 49, magic id 84 and the time in 8 bytes.
    #[test]
    fn the_header_has_jgroups_bytes() {
        let message =
            Message::empty(None).with_header(ProtocolId::PERF, HeaderBody::Perf(0x0102_0304_0506_0708));
        let bytes = wire::encode_body(&message);
        assert_eq!(bytes[..], [0, 0, 0, 0, 1, 0, 49, 0, 84, 1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(wire::decode_body(2, &bytes).unwrap(), message);
        assert_eq!(wire::message_size(&message, 0, None), bytes.len() + 2);
    }

    #[test]
    fn latency_is_the_average_over_the_latest_messages() {
        let mut harness = Harness::new(Perf::new(PerfConfig { avg_size: 2 }));
        harness.stack.set_clock_origin(5_000_000_000);
        harness.advance(Duration::from_secs(1));
        for start in [1, 5_999_000_000, 5_997_000_000] {
            harness.up(received(start));
        }
        assert!(harness.take_up().iter().all(|message| message.headers.0.is_empty()));
        assert_eq!(attribute(&harness, "latency_in_ns"), "2000000");
        harness.up(received(6_000_000_001)).up(received(6_000_000_000));
        assert_eq!(
            (attribute(&harness, "unmeasured_msgs"), attribute(&harness, "measured_msgs")),
            ("2".into(), "2".into())
        );
        harness.stack.operation(harness.now, "PERF", "resetStats", &[]);
        assert_eq!(
            (attribute(&harness, "latency_in_ns"), attribute(&harness, "avg_size")),
            ("0".into(), "2".into())
        );
    }

    #[test]
    fn sent_messages_carry_the_time_of_the_systems_clock() {
        let mut harness = Harness::new(Perf::new(PerfConfig::default()));
        harness.stack.set_clock_origin(7);
        harness.advance(Duration::from_nanos(3)).send(Message::empty(None));
        let sent = harness.take_down();
        assert_eq!(sent[0].headers.get(ProtocolId::PERF), Some(&HeaderBody::Perf(10)));
    }

    #[test]
    fn an_average_over_no_or_too_many_messages_is_refused() {
        assert_eq!(PerfConfig { avg_size: 0 }.check().unwrap_err().0, "avg_size");
        let error = PerfConfig { avg_size: AVG_SIZE_MAX + 1 }.check().unwrap_err();
        assert_eq!(error.1, "avg_size (1000001) must be from 1 to 1000000");
        assert_eq!(PerfConfig { avg_size: AVG_SIZE_MAX }.check(), Ok(()));
    }
}
