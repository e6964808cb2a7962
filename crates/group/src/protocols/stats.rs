//! STATS: counts messages and bytes in total and per peer, without effect on the wire.
//!
//! JGroups 5.5.7 counts only when a program enables it; this layer always does.

use std::collections::BTreeMap;

use crate::{Address, AddressBook, Cx, Event, MessageBatch, Pass, ProbeOut, Protocol, ProtocolId};

crate::properties! {
    /// STATS has no properties.
    StatsConfig {}
}

/// Invented senders cannot grow the table.
const NON_MEMBERS_MAX: usize = 100;

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Traffic {
    unicasts: u64,
    unicast_bytes: u64,
    multicasts: u64,
    multicast_bytes: u64,
}

impl Traffic {
    fn add(&mut self, is_multicast: bool, bytes: u64) {
        let (messages, sum) = if is_multicast {
            (&mut self.multicasts, &mut self.multicast_bytes)
        } else {
            (&mut self.unicasts, &mut self.unicast_bytes)
        };
        *messages += 1;
        *sum += bytes;
    }

    fn text(&self) -> String {
        let Self { unicasts, unicast_bytes, multicasts, multicast_bytes } = self;
        format!(
            "{unicasts} unicasts ({unicast_bytes} bytes), {multicasts} multicasts ({multicast_bytes} bytes)"
        )
    }

    fn probe(&self, out: &mut ProbeOut, end: &str) {
        out.put(&format!("num_msgs_{end}"), self.unicasts + self.multicasts);
        out.put(&format!("num_bytes_{end}"), self.unicast_bytes + self.multicast_bytes);
        out.put(&format!("num_ucasts_{end}"), self.unicasts);
        out.put(&format!("num_ucast_bytes_{end}"), self.unicast_bytes);
        out.put(&format!("num_mcasts_{end}"), self.multicasts);
        out.put(&format!("num_mcast_bytes_{end}"), self.multicast_bytes);
    }
}

/// The STATS layer.
#[derive(Default)]
pub struct Stats {
    all_sent: Traffic,
    all_received: Traffic,
    /// `None` is multicasts.
    sent: BTreeMap<Option<Address>, Traffic>,
    received: BTreeMap<Address, Traffic>,
    batches_received: u64,
}

impl Stats {
    /// Creates the layer.
    pub fn new(_config: StatsConfig) -> Self {
        Self::default()
    }

    fn text(&self, book: &AddressBook) -> String {
        let mut text = "sent:\n".to_owned();
        for (dest, traffic) in &self.sent {
            let dest = dest.as_ref().map_or_else(|| "<mcast dest>".to_owned(), |dest| book.display(dest));
            text += &format!("{dest}: {}\n", traffic.text());
        }
        text += "\nreceived:\n";
        for (src, traffic) in &self.received {
            text += &format!("{}: {}\n", book.display(src), traffic.text());
        }
        text
    }
}

fn has_room(cx: &Cx<'_>, len: usize, peer: &Address) -> bool {
    cx.view().is_some_and(|view| view.contains(peer))
        || len < cx.view().map_or(0, |view| view.len()) + NON_MEMBERS_MAX
}

impl Protocol for Stats {
    fn name(&self) -> &'static str {
        "STATS"
    }

    fn id(&self) -> ProtocolId {
        ProtocolId(0)
    }

    fn down(&mut self, cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        for message in &batch.messages {
            let (is_multicast, bytes) = (message.is_multicast(), message.length() as u64);
            self.all_sent.add(is_multicast, bytes);
            let len = self.sent.len();
            match self.sent.get_mut(&message.dest) {
                Some(traffic) => traffic.add(is_multicast, bytes),
                None if message.dest.as_ref().is_none_or(|dest| has_room(cx, len, dest)) => {
                    self.sent.entry(message.dest.clone()).or_default().add(is_multicast, bytes);
                }
                None => {}
            }
        }
    }

    fn only_takes(&self) -> bool {
        true
    }

    fn up(&mut self, cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        self.batches_received += u64::from(batch.len() > 1);
        for message in &batch.messages {
            let (is_multicast, bytes) = (message.is_multicast(), message.length() as u64);
            self.all_received.add(is_multicast, bytes);
            let Some(src) = &message.src else { continue };
            let len = self.received.len();
            match self.received.get_mut(src) {
                Some(traffic) => traffic.add(is_multicast, bytes),
                None if has_room(cx, len, src) => {
                    self.received.entry(src.clone()).or_default().add(is_multicast, bytes);
                }
                None => {}
            }
        }
    }

    fn control(&mut self, cx: &mut Cx<'_>, control: &crate::Control<'_>) {
        if let crate::Control::View(view) = control {
            self.up_event(cx, &Event::View((*view).clone()));
        }
    }

    fn up_event(&mut self, _cx: &mut Cx<'_>, event: &Event) -> Pass {
        if let Event::View(view) = event {
            self.sent.retain(|dest, _| dest.as_ref().is_none_or(|dest| view.contains(dest)));
            self.received.retain(|src, _| view.contains(src));
        }
        Pass::On
    }

    fn probe(&self, out: &mut ProbeOut) {
        self.all_sent.probe(out, "sent");
        self.all_received.probe(out, "received");
        out.put("num_batches_received", self.batches_received);
    }

    fn operations(&self) -> &'static [&'static str] {
        &["printStats", "resetStats"]
    }

    fn operation(&mut self, cx: &mut Cx<'_>, name: &str, _args: &[&str]) -> Option<Result<String, String>> {
        match name {
            "printStats" => Some(Ok(self.text(&cx.shared().book))),
            "resetStats" => {
                *self = Self::default();
                Some(Ok(String::new()))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Message;
    use crate::harness::{Harness, member, view};

    fn operation(harness: &mut Harness, name: &str) -> String {
        harness.stack.operation(harness.now, "STATS", name, &[]).unwrap().unwrap()
    }

    fn attribute(harness: &Harness, name: &str) -> String {
        let attributes = harness.stack.probe("STATS").unwrap().attributes;
        attributes.into_iter().find(|(own, _)| own == name).unwrap().1
    }

    #[test]
    fn traffic_is_counted_in_total_and_per_member_until_the_member_leaves() {
        let mut harness = Harness::new(Stats::new(StatsConfig {}));
        harness.install(view(1, &[1, 2, 3]));
        harness.send(Message::bytes(None, vec![0; 10])).send(Message::bytes(Some(member(2)), vec![0; 5]));
        let mut received = Message::bytes(Some(member(1)), vec![0; 7]);
        received.src = Some(member(3));
        harness.up_batch(vec![received.clone(), received.clone()]);
        assert_eq!(harness.take_up(), [received.clone(), received]);
        assert_eq!(
            (attribute(&harness, "num_msgs_sent"), attribute(&harness, "num_bytes_sent")),
            ("2".into(), "15".into())
        );
        assert_eq!(attribute(&harness, "num_ucast_bytes_received"), "14");
        let text = operation(&mut harness, "printStats");
        assert!(text.contains("<mcast dest>: 0 unicasts (0 bytes), 1 multicasts (10 bytes)"), "{text}");
        assert!(text.contains("1 unicasts (5 bytes)") && text.contains("2 unicasts (14 bytes)"), "{text}");
        harness.install(view(2, &[1]));
        let text = operation(&mut harness, "printStats");
        assert!(!text.contains("2 unicasts") && text.contains("<mcast dest>"), "{text}");
        operation(&mut harness, "resetStats");
        assert_eq!(attribute(&harness, "num_msgs_received"), "0");
    }

    #[test]
    fn invented_senders_do_not_grow_the_table_without_limit() {
        let mut harness = Harness::new(Stats::new(StatsConfig {}));
        harness.install(view(1, &[1, 2]));
        for n in 10..10 + 2 * NON_MEMBERS_MAX as u64 {
            let mut message = Message::empty(Some(member(1)));
            message.src = Some(member(n));
            harness.up(message);
        }
        let text = operation(&mut harness, "printStats");
        assert_eq!(text.lines().filter(|line| line.contains("unicasts")).count(), NON_MEMBERS_MAX + 2);
        assert_eq!(attribute(&harness, "num_msgs_received"), (2 * NON_MEMBERS_MAX).to_string());
    }
}
