//! SIZE: counts messages by the size of their payload, without effect on the wire.

use std::collections::BTreeMap;

use crate::{Cx, MessageBatch, ProbeOut, Protocol, ProtocolId};

crate::properties! {
    /// SIZE has no properties.
    SizeConfig {}
}

/// Further sizes are counted together, so that a peer cannot grow the table.
pub(super) const SIZES_MAX: usize = 10_000;

#[derive(Default)]
struct SizeCounts {
    by_size: BTreeMap<usize, u64>,
    other: u64,
}

impl SizeCounts {
    fn add(&mut self, batch: &MessageBatch) {
        for message in &batch.messages {
            let size = message.length();
            if self.by_size.len() < SIZES_MAX || self.by_size.contains_key(&size) {
                *self.by_size.entry(size).or_default() += 1;
            } else {
                self.other += 1;
            }
        }
    }

    fn total(&self) -> u64 {
        self.by_size.values().sum::<u64>() + self.other
    }

    /// JGroups' lines have the size, a colon and the number of messages.
    fn dump(&self) -> String {
        let mut lines: Vec<String> =
            self.by_size.iter().map(|(size, count)| format!("{size}: {count}")).collect();
        if self.other > 0 {
            lines.push(format!("other sizes: {}", self.other));
        }
        lines.join("\n")
    }
}

/// The SIZE layer.
pub struct Size {
    up: SizeCounts,
    down: SizeCounts,
}

impl Size {
    /// Creates the layer.
    pub fn new(_config: SizeConfig) -> Self {
        Self { up: SizeCounts::default(), down: SizeCounts::default() }
    }
}

impl Protocol for Size {
    fn name(&self) -> &'static str {
        "SIZE"
    }

    fn id(&self) -> ProtocolId {
        ProtocolId(0)
    }

    fn down(&mut self, _cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        self.down.add(batch);
    }

    fn only_takes(&self) -> bool {
        true
    }

    fn up(&mut self, _cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        self.up.add(batch);
    }

    fn probe(&self, out: &mut ProbeOut) {
        out.put("num_down_samples", self.down.total());
        out.put("num_up_samples", self.up.total());
    }

    fn operations(&self) -> &'static [&'static str] {
        &["clear", "dump", "dumpDownSamples", "dumpUpSamples"]
    }

    fn operation(&mut self, _cx: &mut Cx<'_>, name: &str, _args: &[&str]) -> Option<Result<String, String>> {
        Some(Ok(match name {
            "clear" => {
                *self = Self::new(SizeConfig {});
                String::new()
            }
            "dump" => format!("down:\n{}\n\nup:\n{}\n", self.down.dump(), self.up.dump()),
            "dumpDownSamples" => self.down.dump(),
            "dumpUpSamples" => self.up.dump(),
            _ => return None,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Message;
    use crate::harness::{Harness, member};

    fn operation(harness: &mut Harness, name: &str) -> String {
        harness.stack.operation(harness.now, "SIZE", name, &[]).unwrap().unwrap()
    }

    #[test]
    fn messages_are_counted_by_size_and_pass_unchanged() {
        let mut harness = Harness::new(Size::new(SizeConfig {}));
        let mut received = Message::bytes(Some(member(1)), vec![0; 7]);
        received.src = Some(member(2));
        harness.up_batch(vec![received.clone(), received.clone()]);
        assert_eq!(harness.take_up(), [received.clone(), received]);
        harness.send(Message::empty(None)).send(Message::bytes(None, vec![0; 300]));
        assert_eq!(harness.take_down().len(), 2);
        assert_eq!(operation(&mut harness, "dumpUpSamples"), "7: 2");
        assert_eq!(operation(&mut harness, "dumpDownSamples"), "0: 1\n300: 1");
        assert_eq!(operation(&mut harness, "dump"), "down:\n0: 1\n300: 1\n\nup:\n7: 2\n");
        operation(&mut harness, "clear");
        assert_eq!(operation(&mut harness, "dumpUpSamples"), "");
    }

    #[test]
    fn further_sizes_are_counted_together_when_the_table_is_full() {
        let mut counts = SizeCounts::default();
        let messages = (0..SIZES_MAX + 5).map(|size| Message::bytes(None, vec![0; size])).collect();
        counts.add(&MessageBatch { messages });
        counts.add(&MessageBatch::single(Message::empty(None)));
        assert_eq!((counts.by_size.len(), counts.other), (SIZES_MAX, 5));
        assert_eq!((counts.by_size[&0], counts.total()), (2, SIZES_MAX as u64 + 6));
    }
}
