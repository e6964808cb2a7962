//! DELIVERY_TIME (TIME in JGroups 5.5): measures how long the application takes to consume a message.
//!
//! The time begins when the message passes this layer, and includes the receiver's queue.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::{Address, Cx, Event, MessageBatch, Pass, ProbeOut, Protocol, ProtocolId, Time};

crate::properties! {
    /// DELIVERY_TIME has no properties.
    DeliveryTimeConfig {}
}

/// Further messages of a sender are not timed.
const TIMED_MAX: usize = 100_000;

#[derive(Clone, Copy, Default)]
struct Summary {
    min: Duration,
    max: Duration,
    total: Duration,
    count: u64,
}

impl Summary {
    fn add(&mut self, time: Duration) {
        self.min = if self.count == 0 { time } else { self.min.min(time) };
        self.max = self.max.max(time);
        self.total += time;
        self.count += 1;
    }
}

/// The DELIVERY_TIME layer.
pub struct DeliveryTime {
    is_first_name: bool,
    /// Each message's remaining credit and time of passing.
    under_way: BTreeMap<(Address, bool), VecDeque<(u64, Time)>>,
    summary: Summary,
}

impl DeliveryTime {
    /// Creates the layer.
    pub fn new(_config: DeliveryTimeConfig) -> Self {
        Self { is_first_name: true, under_way: BTreeMap::new(), summary: Summary::default() }
    }

    /// Creates the layer under the name TIME.
    pub fn named_time(config: DeliveryTimeConfig) -> Self {
        Self { is_first_name: false, ..Self::new(config) }
    }
}

impl Protocol for DeliveryTime {
    fn name(&self) -> &'static str {
        if self.is_first_name { "DELIVERY_TIME" } else { "TIME" }
    }

    fn id(&self) -> ProtocolId {
        ProtocolId(0)
    }

    fn up(&mut self, cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        let now = cx.now();
        for message in &mut batch.messages {
            let Some(src) = message.src.clone() else { continue };
            message.credit = message.credit.max(1);
            let under_way = self.under_way.entry((src, message.dest.is_none())).or_default();
            if under_way.len() < TIMED_MAX {
                under_way.push_back((u64::from(message.credit), now));
            }
        }
    }

    fn consumed(&mut self, cx: &mut Cx<'_>, src: &Address, is_multicast: bool, credit: u64) {
        let now = cx.now();
        let Some(under_way) = self.under_way.get_mut(&(src.clone(), is_multicast)) else { return };
        let mut credit = credit;
        while credit > 0
            && let Some((left, since)) = under_way.front_mut()
        {
            let taken = credit.min(*left);
            *left -= taken;
            credit -= taken;
            if *left > 0 {
                break;
            }
            self.summary.add(now.since(*since));
            under_way.pop_front();
        }
    }

    fn up_event(&mut self, _cx: &mut Cx<'_>, event: &Event) -> Pass {
        if let Event::View(view) = event {
            self.under_way.retain(|(member, _), _| view.contains(member));
        }
        Pass::On
    }

    fn probe(&self, out: &mut ProbeOut) {
        let summary = &self.summary;
        let mean =
            summary.total.checked_div(u32::try_from(summary.count).unwrap_or(u32::MAX)).unwrap_or_default();
        out.put("delivery_count", summary.count);
        out.put("delivery_min_us", summary.min.as_micros());
        out.put("delivery_avg_us", mean.as_micros());
        out.put("delivery_max_us", summary.max.as_micros());
    }

    fn operations(&self) -> &'static [&'static str] {
        &["resetStats"]
    }

    fn operation(&mut self, _cx: &mut Cx<'_>, name: &str, _args: &[&str]) -> Option<Result<String, String>> {
        (name == "resetStats").then(|| {
            self.summary = Summary::default();
            Ok(String::new())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Message;
    use crate::harness::{Harness, member};

    /// S000-60
    #[test]
    fn the_time_of_the_application_is_measured() {
        let mut harness = Harness::new(DeliveryTime::new(DeliveryTimeConfig {}));
        for _ in 0..3 {
            let mut message = Message::bytes(Some(member(1)), "hello");
            message.src = Some(member(2));
            message.credit = 5;
            harness.up(message);
            harness.advance(Duration::from_millis(5));
            harness.consumed(&member(2), false, 5);
        }
        let probe = harness.stack.probe("DELIVERY_TIME").unwrap();
        let wanted = [("count", "3"), ("min_us", "5000"), ("avg_us", "5000"), ("max_us", "5000")];
        for ((name, value), (end, wanted)) in probe.attributes.iter().zip(wanted) {
            assert_eq!((name.strip_prefix("delivery_"), value.as_str()), (Some(end), wanted));
        }
    }
}
