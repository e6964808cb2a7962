//! SIZE2: counts messages by ranges of sizes, without effect on the wire.

use crate::{Cx, Message, MessageBatch, ProbeOut, Protocol, ProtocolId, wire};

crate::properties! {
    /// SIZE2's properties.
    Size2Config {
        /// Boundaries of ranges for received messages, ascending: `1,100,500` counts 1 to 100 and 101 to 500 bytes. Without
        /// boundaries, received messages are not counted.
        up_sizes: String = String::new(),
        /// Boundaries of ranges for sent messages.
        down_sizes: String = String::new(),
        /// Boundaries for received and sent messages that `up_sizes` or `down_sizes` do not set.
        sizes: String = String::new(),
        /// Counts the size of the whole message with headers, not of its payload.
        use_size: bool = false,
    }
}

/// A range takes 24 bytes.
const BOUNDARIES_MAX: usize = 10_000;

impl Size2Config {
    /// Checks the boundaries; the error is the invalid attribute and the reason.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        let all = [("up_sizes", &self.up_sizes), ("down_sizes", &self.down_sizes), ("sizes", &self.sizes)];
        for (name, text) in all {
            boundaries(text).map_err(|why| (name, format!("{name}: {why}")))?;
        }
        Ok(())
    }
}

fn boundaries(text: &str) -> Result<Vec<u64>, String> {
    let numbers = text.split(',').map(str::trim).filter(|number| !number.is_empty());
    let numbers =
        numbers.map(|number| number.parse().map_err(|_| format!("`{number}` is not a number of bytes")));
    let numbers = numbers.collect::<Result<Vec<u64>, _>>()?;
    if numbers.len() == 1 {
        return Err("a range needs two boundaries".to_owned());
    }
    if numbers.len() > BOUNDARIES_MAX {
        return Err(format!("more than {BOUNDARIES_MAX} boundaries"));
    }
    if !numbers.is_sorted_by(|one, other| one < other) {
        return Err("boundaries must be in increasing order".to_owned());
    }
    Ok(numbers)
}

struct Range {
    first: u64,
    last: u64,
    count: u64,
}

/// Ranges are adjacent and ascending.
struct Ranges(Vec<Range>);

impl Ranges {
    fn new(own: &str, both: &str) -> Self {
        // Checked before.
        let numbers = boundaries(if own.trim().is_empty() { both } else { own }).unwrap_or_default();
        let pairs = numbers.windows(2).enumerate();
        // A boundary belongs to the range that it ends, and the first one begins its range.
        let ranges =
            pairs.map(|(nth, pair)| Range { first: pair[0] + u64::from(nth > 0), last: pair[1], count: 0 });
        Self(ranges.collect())
    }

    fn add(&mut self, batch: &MessageBatch, use_size: bool) {
        if self.0.is_empty() {
            return;
        }
        for message in &batch.messages {
            let size = size(message, use_size);
            let at = self.0.partition_point(|range| range.last < size);
            if let Some(range) = self.0.get_mut(at).filter(|range| range.first <= size) {
                range.count += 1;
            }
        }
    }

    fn total(&self) -> u64 {
        self.0.iter().map(|range| range.count).sum()
    }

    fn dump(&self) -> String {
        if self.0.is_empty() {
            return "n/a".to_owned();
        }
        let lines = self.0.iter().map(|Range { first, last, count }| {
            format!("[{} .. {}]: {}", grouped(*first), grouped(*last), grouped(*count))
        });
        lines.collect::<Vec<_>>().join("\n")
    }
}

fn size(message: &Message, use_size: bool) -> u64 {
    // JGroups does not count the 2 bytes of a message's type.
    let bytes = if use_size { wire::message_size(message, 0, None) - 2 } else { message.length() };
    bytes as u64
}

/// With commas between groups of three digits, as in JGroups' output.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (nth, digit) in digits.chars().enumerate() {
        if nth > 0 && (digits.len() - nth).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// The SIZE2 layer.
pub struct Size2 {
    config: Size2Config,
    up: Ranges,
    down: Ranges,
}

impl Size2 {
    /// Creates the layer of a config that [`Size2Config::check`] accepts.
    pub fn new(config: Size2Config) -> Self {
        let (up, down) =
            (Ranges::new(&config.up_sizes, &config.sizes), Ranges::new(&config.down_sizes, &config.sizes));
        Self { config, up, down }
    }
}

impl Protocol for Size2 {
    fn name(&self) -> &'static str {
        "SIZE2"
    }

    fn id(&self) -> ProtocolId {
        ProtocolId(0)
    }

    fn down(&mut self, _cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        self.down.add(batch, self.config.use_size);
    }

    fn only_takes(&self) -> bool {
        true
    }

    fn up(&mut self, _cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        self.up.add(batch, self.config.use_size);
    }

    fn probe(&self, out: &mut ProbeOut) {
        out.put_all(&self.config);
        out.put("num_down_samples", self.down.total());
        out.put("num_up_samples", self.up.total());
    }

    fn operations(&self) -> &'static [&'static str] {
        &["dump", "dumpDownSamples", "dumpUpSamples", "resetStats"]
    }

    fn operation(&mut self, _cx: &mut Cx<'_>, name: &str, _args: &[&str]) -> Option<Result<String, String>> {
        Some(Ok(match name {
            "dump" => format!("down:\n{}\nup:\n{}\n", self.down.dump(), self.up.dump()),
            "dumpDownSamples" => self.down.dump(),
            "dumpUpSamples" => self.up.dump(),
            "resetStats" => {
                *self = Self::new(self.config.clone());
                String::new()
            }
            _ => return None,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::{Harness, member};

    fn size2(config: Size2Config) -> Harness {
        Harness::new(Size2::new(config))
    }

    fn operation(harness: &mut Harness, name: &str) -> String {
        harness.stack.operation(harness.now, "SIZE2", name, &[]).unwrap().unwrap()
    }

    fn of(length: usize) -> Message {
        Message::bytes(Some(member(2)), vec![0; length])
    }

    #[test]
    fn messages_are_counted_by_range_and_pass_unchanged() {
        let mut harness =
            size2(Size2Config { sizes: "1, 100,500,10000".to_owned(), ..Size2Config::default() });
        // 0 and 10,001 are outside of all ranges.
        harness.send_batch([0, 1, 100, 101, 500, 10_000, 10_001].map(of).to_vec());
        assert_eq!(harness.take_down().len(), 7);
        assert_eq!(
            operation(&mut harness, "dumpDownSamples"),
            "[1 .. 100]: 2\n[101 .. 500]: 2\n[501 .. 10,000]: 1"
        );
        let mut received = of(7);
        received.src = Some(member(2));
        assert_eq!(harness.up(received.clone()).take_up(), [received]);
        assert_eq!(
            operation(&mut harness, "dumpUpSamples"),
            "[1 .. 100]: 1\n[101 .. 500]: 0\n[501 .. 10,000]: 0"
        );
        assert_eq!(harness.stack.attribute("SIZE2", "num_down_samples").as_deref(), Some("5"));
        operation(&mut harness, "resetStats");
        assert_eq!(harness.stack.attribute("SIZE2", "num_down_samples").as_deref(), Some("0"));
    }

    #[test]
    fn direction_without_boundaries_is_not_counted() {
        let mut harness = size2(Size2Config { down_sizes: "1,1000".to_owned(), ..Size2Config::default() });
        harness.send(of(10)).take_down();
        assert_eq!(operation(&mut harness, "dump"), "down:\n[1 .. 1,000]: 1\nup:\nn/a\n");
        // Boundaries of one direction go before those of both.
        let sizes = |text: &str| text.to_owned();
        let mut harness =
            size2(Size2Config { up_sizes: sizes("1,9"), sizes: sizes("1,10"), ..Size2Config::default() });
        harness.send(of(10)).up(of(10)).take_down();
        assert_eq!(operation(&mut harness, "dump"), "down:\n[1 .. 10]: 1\nup:\n[1 .. 9]: 0\n");
    }

    #[test]
    fn use_size_counts_headers() {
        let config = Size2Config { sizes: "1,10,1000".to_owned(), ..Size2Config::default() };
        for (use_size, counts) in
            [(false, "[1 .. 10]: 1\n[11 .. 1,000]: 0"), (true, "[1 .. 10]: 0\n[11 .. 1,000]: 1")]
        {
            let mut harness = size2(Size2Config { use_size, ..config.clone() });
            harness.send(of(10)).take_down();
            assert_eq!(operation(&mut harness, "dumpDownSamples"), counts, "{use_size}");
        }
    }

    #[test]
    fn wrong_boundaries_are_refused() {
        for (sizes, why) in
            [("1", "two boundaries"), ("1,x", "`x` is not a number"), ("1,100,100", "increasing order")]
        {
            let config = Size2Config { up_sizes: sizes.to_owned(), ..Size2Config::default() };
            let (attribute, text) = config.check().unwrap_err();
            assert!(attribute == "up_sizes" && text.contains(why), "{text}");
        }
        let many: Vec<String> = (0..=BOUNDARIES_MAX).map(|number| number.to_string()).collect();
        assert!(Size2Config { sizes: many.join(","), ..Size2Config::default() }.check().is_err());
    }
}
