//! TRACE, HDRS and SNIFF: log the messages at their place in the stack, without effect on the wire.
//!
//! Lines are `tracing` events at level INFO and target [`TARGET`]. Any layer can be traced without a change of the
//! stack (see [`crate::trace`]).

use crate::config::Properties;
use crate::trace::bounded;
use crate::{AddressBook, Cx, Event, Message, MessageBatch, Pass, ProbeOut, Protocol, ProtocolId};

/// The target of the lines.
pub const TARGET: &str = "consort::messages";

/// As in JGroups.
const SNIFFED_MAX: usize = 50;

crate::properties! {
    /// TRACE has no properties.
    TraceConfig {}
}

crate::properties! {
    /// HDRS' properties.
    HdrsConfig {
        /// Whether sent messages are logged.
        print_down: bool = true,
        /// Whether received messages are logged.
        print_up: bool = true,
    }
}

crate::properties! {
    /// SNIFF's properties.
    SniffConfig {
        /// Whether received messages are logged.
        up: bool = true,
        /// Whether sent messages are logged.
        down: bool = false,
    }
}

/// The protocol.
#[derive(Clone, PartialEq, Debug)]
pub enum MessageLogKind {
    /// Events and messages of both directions.
    Trace(TraceConfig),
    /// Headers.
    Hdrs(HdrsConfig),
    /// Headers, and payloads' beginnings.
    Sniff(SniffConfig),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Up,
    Down,
}

/// A logging layer.
pub struct MessageLog {
    kind: MessageLogKind,
}

impl MessageLog {
    /// Creates a layer.
    pub const fn new(kind: MessageLogKind) -> Self {
        Self { kind }
    }

    const fn logs(&self, way: Direction) -> bool {
        match (&self.kind, way) {
            (MessageLogKind::Trace(_), _) => true,
            (MessageLogKind::Hdrs(config), Direction::Up) => config.print_up,
            (MessageLogKind::Hdrs(config), Direction::Down) => config.print_down,
            (MessageLogKind::Sniff(config), Direction::Up) => config.up,
            (MessageLogKind::Sniff(config), Direction::Down) => config.down,
        }
    }

    fn line(&self, book: &AddressBook, way: Direction, message: &Message) -> String {
        let (way, peer) = match way {
            Direction::Up => ("from", message.src.as_ref()),
            Direction::Down => ("to", message.dest.as_ref()),
        };
        let peer = peer.map_or_else(|| "all".to_owned(), |peer| book.display(peer));
        let headers: Vec<String> =
            message.headers.0.iter().map(|header| bounded(format_args!("{:?}", header.body))).collect();
        let mut line = format!("{way} {peer} ({} bytes): {}", message.length(), headers.join(", "));
        if matches!(self.kind, MessageLogKind::Sniff(_))
            && let Some(payload) = message.payload_bytes()
            && !payload.is_empty()
        {
            let sniffed = &payload[..payload.len().min(SNIFFED_MAX)];
            line += &format!("; payload: {}", sniffed.escape_ascii());
        }
        line
    }

    fn log(&self, cx: &Cx<'_>, way: Direction, batch: &MessageBatch) {
        if !self.logs(way) || !tracing::enabled!(target: TARGET, tracing::Level::INFO) {
            return;
        }
        for message in &batch.messages {
            let line = self.line(&cx.shared().book, way, message);
            tracing::info!(target: TARGET, layer = self.name(), member = &*cx.shared().name, "{line}");
        }
    }

    fn log_event(&self, cx: &Cx<'_>, way: &str, event: &Event) {
        if matches!(self.kind, MessageLogKind::Trace(_)) {
            let event = bounded(format_args!("{event:?}"));
            tracing::info!(target: TARGET, layer = self.name(), member = &*cx.shared().name, "{way}: {event}");
        }
    }
}

impl Protocol for MessageLog {
    fn name(&self) -> &'static str {
        match self.kind {
            MessageLogKind::Trace(_) => "TRACE",
            MessageLogKind::Hdrs(_) => "HDRS",
            MessageLogKind::Sniff(_) => "SNIFF",
        }
    }

    fn id(&self) -> ProtocolId {
        ProtocolId(0)
    }

    fn down(&mut self, cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        self.log(cx, Direction::Down, batch);
    }

    fn only_takes(&self) -> bool {
        true
    }

    fn up(&mut self, cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        self.log(cx, Direction::Up, batch);
    }

    fn down_event(&mut self, cx: &mut Cx<'_>, event: &Event) -> Pass {
        self.log_event(cx, "event from above", event);
        Pass::On
    }

    fn up_event(&mut self, cx: &mut Cx<'_>, event: &Event) -> Pass {
        self.log_event(cx, "event from below", event);
        Pass::On
    }

    fn variable_properties(&mut self) -> Option<&mut dyn Properties> {
        Some(match &mut self.kind {
            MessageLogKind::Trace(config) => config,
            MessageLogKind::Hdrs(config) => config,
            MessageLogKind::Sniff(config) => config,
        })
    }

    fn probe(&self, out: &mut ProbeOut) {
        match &self.kind {
            MessageLogKind::Trace(config) => out.put_all(config),
            MessageLogKind::Hdrs(config) => out.put_all(config),
            MessageLogKind::Sniff(config) => out.put_all(config),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HeaderBody;
    use crate::harness::{Harness, member};

    fn line(kind: MessageLogKind, way: Direction, message: &Message) -> String {
        let mut book = AddressBook::default();
        book.learn(&member(2), Some("B"), None);
        MessageLog::new(kind).line(&book, way, message)
    }

    #[test]
    fn a_line_has_peer_size_and_headers_and_with_sniff_the_payload() {
        let mut message = Message::bytes(None, &b"hi\n\xff"[..]);
        message.src = Some(member(2));
        message.headers.put(ProtocolId::FD_ALL3, HeaderBody::Heartbeat);
        let hdrs = line(MessageLogKind::Hdrs(HdrsConfig::default()), Direction::Up, &message);
        assert_eq!(hdrs, "from B (4 bytes): Heartbeat");
        let sniff = line(MessageLogKind::Sniff(SniffConfig::default()), Direction::Down, &message);
        assert_eq!(sniff, r"to all (4 bytes): Heartbeat; payload: hi\n\xff");
        message.payload = crate::Payload::Bytes(Some(vec![b'x'; 1_000].into()));
        let sniff = line(MessageLogKind::Sniff(SniffConfig::default()), Direction::Up, &message);
        assert!(sniff.ends_with(&format!(": {}", "x".repeat(SNIFFED_MAX))), "{sniff}");
    }

    #[test]
    fn each_direction_has_its_switch() {
        let logs = |kind: &MessageLogKind| {
            let log = MessageLog::new(kind.clone());
            (log.logs(Direction::Up), log.logs(Direction::Down))
        };
        assert_eq!(logs(&MessageLogKind::Trace(TraceConfig {})), (true, true));
        assert_eq!(logs(&MessageLogKind::Hdrs(HdrsConfig::default())), (true, true));
        assert_eq!(
            logs(&MessageLogKind::Hdrs(HdrsConfig { print_up: false, print_down: true })),
            (false, true)
        );
        assert_eq!(logs(&MessageLogKind::Sniff(SniffConfig::default())), (true, false));
        assert_eq!(logs(&MessageLogKind::Sniff(SniffConfig { up: false, down: true })), (false, true));
    }

    #[test]
    fn messages_pass_unchanged_and_attributes_change_at_run_time() {
        for kind in [
            MessageLogKind::Trace(TraceConfig {}),
            MessageLogKind::Hdrs(HdrsConfig::default()),
            MessageLogKind::Sniff(SniffConfig::default()),
        ] {
            let mut harness = Harness::new(MessageLog::new(kind));
            let mut message = Message::bytes(Some(member(1)), "x");
            message.src = Some(member(2));
            assert_eq!(harness.up(message.clone()).take_up(), [message]);
            assert_eq!(harness.send(Message::bytes(None, "y")).take_down().len(), 1);
        }
        let mut harness = Harness::new(MessageLog::new(MessageLogKind::Sniff(SniffConfig::default())));
        assert_eq!(harness.stack.set_attribute("SNIFF", "down", "true"), Some(Ok(())));
        assert_eq!(harness.stack.set_attribute("SNIFF", "print_up", "true"), None);
    }
}
