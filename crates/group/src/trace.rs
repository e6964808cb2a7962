//! Traces of a layer's messages and events, as JGroups at level `trace`.
//!
//! Probe changes a layer's level at run time (`NAKACK2.level=trace`). The stack checks it once per batch and layer,
//! so that a disabled trace costs nothing per message. Lines are `tracing` events at level TRACE and target
//! [`TARGET`]. A subscriber should pass that whole target, because each layer has its own switch.

use std::fmt::{self, Write as _};

use crate::{AddressBook, Event, Message, MessageBatch, ProtocolId, Shared};

/// The target of traces.
pub const TARGET: &str = "consort::trace";

/// JGroups' levels. Only `trace` has an effect; the subscriber filters warnings and errors.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum Level {
    Off,
    Fatal,
    Error,
    #[default]
    Warn,
    Info,
    Debug,
    Trace,
}

impl Level {
    const ALL: [Self; 7] =
        [Self::Off, Self::Fatal, Self::Error, Self::Warn, Self::Info, Self::Debug, Self::Trace];

    const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Fatal => "fatal",
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }

    fn parse(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|level| level.name().eq_ignore_ascii_case(text));
        known.ok_or_else(|| {
            format!("unknown level `{text}`; the levels are {}", Self::ALL.map(Self::name).join(", "))
        })
    }
}

/// A layer's trace level.
#[derive(Clone, Copy, Default, Debug)]
pub struct Switch(Level);

impl Switch {
    /// Returns whether it is `trace`.
    #[inline]
    pub const fn is_on(&self) -> bool {
        matches!(self.0, Level::Trace)
    }

    /// Returns the name.
    pub const fn level(&self) -> &'static str {
        self.0.name()
    }

    /// Sets the level; an unknown one is an error and changes nothing.
    pub fn set(&mut self, level: &str) -> Result<(), String> {
        self.0 = Level::parse(level)?;
        Ok(())
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Up,
    Down,
}

#[derive(Clone, Copy)]
pub(crate) struct LayerTrace {
    pub(crate) layer: &'static str,
    pub(crate) id: ProtocolId,
}

impl LayerTrace {
    /// The transport logs all messages, another layer those with its header.
    #[cold]
    pub(crate) fn batch(self, shared: &Shared, way: Direction, batch: &MessageBatch) {
        if !tracing::enabled!(target: TARGET, tracing::Level::TRACE) {
            return;
        }
        for message in &batch.messages {
            if let Some(headers) = self.headers(message) {
                let line = line(&shared.book, way, message, &headers);
                tracing::trace!(target: TARGET, layer = self.layer, member = &*shared.name, "{line}");
            }
        }
    }

    #[cold]
    pub(crate) fn event(self, shared: &Shared, way: Direction, event: &Event) {
        if !tracing::enabled!(target: TARGET, tracing::Level::TRACE) {
            return;
        }
        let way = if way == Direction::Up { "from below" } else { "from above" };
        let event = bounded(format_args!("{event:?}"));
        tracing::trace!(target: TARGET, layer = self.layer, member = &*shared.name, "{way}: {event}");
    }

    fn headers(self, message: &Message) -> Option<String> {
        let headers = message.headers.0.iter();
        let own: Vec<_> = if self.id == ProtocolId::TP {
            headers.collect()
        } else {
            headers.filter(|header| header.id == self.id).collect()
        };
        if own.is_empty() && self.id != ProtocolId::TP {
            return None;
        }
        let bodies: Vec<_> = own.iter().map(|header| bounded(format_args!("{:?}", header.body))).collect();
        Some(bodies.join(", "))
    }
}

/// Headers and events may carry hundreds of members or a whole state.
const TEXT_LEN_MAX: usize = 500;

pub(crate) fn bounded(text: fmt::Arguments<'_>) -> String {
    struct Bounded(String);
    impl fmt::Write for Bounded {
        fn write_str(&mut self, part: &str) -> fmt::Result {
            let room = TEXT_LEN_MAX - self.0.len();
            if part.len() <= room {
                self.0.push_str(part);
                return Ok(());
            }
            self.0.push_str(&part[..part.floor_char_boundary(room)]);
            Err(fmt::Error)
        }
    }
    let mut out = Bounded(String::new());
    if out.write_fmt(text).is_err() {
        out.0.push('…');
    }
    out.0
}

/// For example `--> B: 1000 bytes, [OOB], Unicast3(…)`.
fn line(book: &AddressBook, way: Direction, message: &Message, headers: &str) -> String {
    let (arrow, peer) = match way {
        Direction::Up => {
            ("<--", message.src.as_ref().map_or_else(|| "?".to_owned(), |src| book.display(src)))
        }
        Direction::Down => {
            ("-->", message.dest.as_ref().map_or_else(|| "all".to_owned(), |dest| book.display(dest)))
        }
    };
    let mut line = format!("{arrow} {peer}: {} bytes", message.length());
    if message.flags.0 != 0 {
        let _ = write!(line, ", {:?}", message.flags);
    }
    if !headers.is_empty() {
        let _ = write!(line, ", {headers}");
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::member;
    use crate::{Flags, HeaderBody};

    #[test]
    fn levels_have_jgroups_names() {
        let mut switch = Switch::default();
        assert!(!switch.is_on());
        switch.set("TRACE").unwrap();
        assert!(switch.is_on());
        assert!(switch.set("loud").unwrap_err().contains("off, fatal, error, warn, info, debug, trace"));
        assert_eq!((switch.is_on(), switch.level()), (true, "trace"));
        switch.set("Debug").unwrap();
        assert_eq!((switch.is_on(), switch.level()), (false, "debug"));
    }

    #[test]
    fn a_layer_traces_messages_with_its_header_and_the_transport_traces_all() {
        let of = |id| LayerTrace { layer: "", id };
        let mut message = Message::bytes(Some(member(2)), vec![0; 5]).with_flags(Flags::OOB);
        assert_eq!(of(ProtocolId::FD_ALL3).headers(&message), None);
        assert_eq!(of(ProtocolId::TP).headers(&message).as_deref(), Some(""));
        message.headers.put(ProtocolId::FD_ALL3, HeaderBody::Heartbeat);
        let headers = of(ProtocolId::FD_ALL3).headers(&message).unwrap();
        let mut book = AddressBook::default();
        book.learn(&member(2), Some("B"), None);
        assert_eq!(line(&book, Direction::Down, &message, &headers), "--> B: 5 bytes, [OOB], Heartbeat");
    }

    #[test]
    fn a_large_state_makes_a_short_line() {
        let state = bytes::Bytes::from(vec![b'x'; 1_000_000]);
        let text = bounded(format_args!("{:?}", Event::StateReceived(Ok(Some(state)))));
        assert!(text.starts_with("StateReceived(") && text.ends_with("xxx…"), "{text}");
        assert!(text.len() <= TEXT_LEN_MAX + '…'.len_utf8());
        assert_eq!(bounded(format_args!("{}", 5)), "5");
    }
}
