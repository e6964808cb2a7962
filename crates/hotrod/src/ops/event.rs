//! What a server says unasked: entries and counters that have changed (facts sections 2.7 and 2.14).

use bytes::Bytes;

use crate::error::Result;
use crate::layout::{Field, Fields};
use crate::ops::listener::ID;
use crate::ops::{KEY, TEXT, VALUE};
use crate::output::Output;
use crate::reader::Reader;
use crate::text::Text;

/// What has happened to an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum EventKind {
    /// It is new.
    Created = 0x60,
    /// It has another value.
    Modified = 0x61,
    /// It was taken away.
    Removed = 0x62,
    /// Its time was over.
    Expired = 0x63,
}

/// What is said of an entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EventData {
    /// Its key, and its version if it is there.
    Key(Bytes, Option<i64>),
    /// What a converter made of it.
    Custom(Bytes),
    /// What a converter made of it that works on bytes as they are. From 2.1 on.
    Raw(Bytes),
}

/// What the converter [`KEY_VALUE_VERSION`](super::listener::KEY_VALUE_VERSION) makes of a key, and of a value with its
/// version.
pub fn key_value_version(key: &Bytes, value: Option<(&Bytes, i64)>) -> Bytes {
    let mut out = Output::new();
    out.array(key);
    if let Some((value, version)) = value {
        out.array(value);
        out.i64(version);
    }
    out.into_bytes()
}

/// An entry has changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// Zero, or the id of the request that added the listener, in events for what was there already.
    pub id: u64,
    /// What has happened.
    pub kind: EventKind,
    /// The listener.
    pub listener: Bytes,
    /// Whether it may have been said before.
    pub is_retried: bool,
    /// What is said.
    pub data: EventData,
}

/// Where a bounded counter is.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum CounterState {
    /// Within its bounds.
    #[default]
    Valid,
    /// At its lower bound.
    LowerBound,
    /// At its upper bound.
    UpperBound,
}

/// A counter has changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CounterEvent {
    /// The counter.
    pub counter: Text,
    /// The listener.
    pub listener: Bytes,
    /// What it had.
    pub old: (i64, CounterState),
    /// What it has.
    pub new: (i64, CounterState),
}

const PLAIN: u8 = 0;
const CUSTOM: u8 = 1;
const CUSTOM_RAW: u8 = 2;

/// What follows opcode, status and topology marker.
pub(crate) const fn layout(kind: EventKind) -> Fields {
    match kind {
        EventKind::Created | EventKind::Modified => &[ID, Field::Choice("marker", with_version)],
        EventKind::Removed | EventKind::Expired => &[ID, Field::Choice("marker", without_version)],
    }
}

const RETRIED: Field = Field::Fixed(1);

const fn with_version(marker: u8) -> Option<Fields> {
    match marker {
        PLAIN => Some(&[RETRIED, KEY, Field::Fixed(8)]),
        CUSTOM | CUSTOM_RAW => Some(&[RETRIED, VALUE]),
        _ => None,
    }
}

const fn without_version(marker: u8) -> Option<Fields> {
    match marker {
        PLAIN => Some(&[RETRIED, KEY]),
        CUSTOM | CUSTOM_RAW => Some(&[RETRIED, VALUE]),
        _ => None,
    }
}

/// The same of a counter's.
pub(crate) const COUNTER: Fields = &[TEXT, ID, Field::Fixed(1 + 8 + 8)];

impl EventKind {
    pub(crate) const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            0x60 => Some(Self::Created),
            0x61 => Some(Self::Modified),
            0x62 => Some(Self::Removed),
            0x63 => Some(Self::Expired),
            _ => None,
        }
    }

    const fn has_version(self) -> bool {
        matches!(self, Self::Created | Self::Modified)
    }
}

impl Event {
    pub(crate) fn read(id: u64, kind: EventKind, from: &mut Reader) -> Result<Self> {
        let listener = from.array()?;
        let marker = from.u8()?;
        let is_retried = from.bool()?;
        let data = match marker {
            PLAIN => EventData::Key(from.array()?, kind.has_version().then(|| from.i64()).transpose()?),
            CUSTOM => EventData::Custom(from.array()?),
            _ => EventData::Raw(from.array()?),
        };
        Ok(Self { id, kind, listener, is_retried, data })
    }

    pub(crate) fn write(&self, out: &mut Output) {
        let (marker, bytes) = match &self.data {
            EventData::Key(key, _) => (PLAIN, key),
            EventData::Custom(data) => (CUSTOM, data),
            EventData::Raw(data) => (CUSTOM_RAW, data),
        };
        out.array(&self.listener);
        out.u8(marker);
        out.bool(self.is_retried);
        out.array(bytes);
        if let EventData::Key(_, version) = self.data
            && self.kind.has_version()
        {
            out.i64(version.unwrap_or_default());
        }
    }
}

impl CounterState {
    const fn from_bits(bits: u8) -> Option<Self> {
        match bits {
            0 => Some(Self::Valid),
            1 => Some(Self::LowerBound),
            2 => Some(Self::UpperBound),
            _ => None,
        }
    }
}

impl CounterEvent {
    pub(crate) fn read(from: &mut Reader) -> Result<Self> {
        let (counter, listener, states) = (from.text()?, from.array()?, from.u8()?);
        let pair = (CounterState::from_bits(states & 3), CounterState::from_bits(states >> 2));
        let (Some(old), Some(new)) = pair else { return from.invalid("states", states) };
        Ok(Self { counter, listener, old: (from.i64()?, old), new: (from.i64()?, new) })
    }

    pub(crate) fn write(&self, out: &mut Output) {
        out.text(&self.counter);
        out.array(&self.listener);
        out.u8(self.old.1 as u8 | (self.new.1 as u8) << 2);
        out.i64(self.old.0);
        out.i64(self.new.0);
    }
}
