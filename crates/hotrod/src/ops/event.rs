//! Events of entries and counters (facts sections 2.7 and 2.14).

use bytes::Bytes;

use crate::error::Result;
use crate::layout::{Field, Fields};
use crate::ops::listener::ID;
use crate::ops::{KEY, TEXT, VALUE};
use crate::output::Output;
use crate::reader::Reader;
use crate::text::Text;

/// The kind of an entry event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum EventKind {
    /// The entry is new.
    Created = 0x60,
    /// The entry has a new value.
    Modified = 0x61,
    /// The entry was removed.
    Removed = 0x62,
    /// The entry expired.
    Expired = 0x63,
}

/// The data of an entry event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EventData {
    /// With the version if the entry exists.
    Key(Bytes, Option<i64>),
    /// A converter's output.
    Custom(Bytes),
    /// The same of raw bytes. From 2.1 on.
    Raw(Bytes),
}

/// The output of [`KEY_VALUE_VERSION`](super::listener::KEY_VALUE_VERSION), with a version for the value.
pub fn key_value_version(key: &Bytes, value: Option<(&Bytes, i64)>) -> Bytes {
    let mut out = Output::new();
    out.array(key);
    if let Some((value, version)) = value {
        out.array(value);
        out.i64(version);
    }
    out.into_bytes()
}

/// Reads the output of that converter: the key, and if present value and version.
pub fn from_key_value_version(output: &Bytes) -> Option<(Bytes, Option<(Bytes, i64)>)> {
    let mut from = Reader::new(output.clone(), 0);
    let key = from.array().ok()?;
    if from.end().is_ok() {
        return Some((key, None));
    }
    let (value, version) = (from.array().ok()?, from.i64().ok()?);
    from.end().ok()?;
    Some((key, Some((value, version))))
}

/// An entry event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// Zero, or for initial state the id of the listener's request.
    pub id: u64,
    /// The kind.
    pub kind: EventKind,
    /// The listener.
    pub listener: Bytes,
    /// It may be a duplicate.
    pub is_retried: bool,
    /// The data.
    pub data: EventData,
}

/// The state of a counter.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum CounterState {
    /// Within the bounds.
    #[default]
    Valid,
    /// At the lower bound.
    LowerBound,
    /// At the upper bound.
    UpperBound,
}

/// A counter event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CounterEvent {
    /// The counter.
    pub counter: Text,
    /// The listener.
    pub listener: Bytes,
    /// The previous value.
    pub old: (i64, CounterState),
    /// The new value.
    pub new: (i64, CounterState),
}

const PLAIN: u8 = 0;
const CUSTOM: u8 = 1;
const CUSTOM_RAW: u8 = 2;

/// After opcode, status and topology marker.
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

/// The same for counter events.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_of_the_converter_is_read_with_and_without_a_value() {
        let (key, value) = (Bytes::from_static(b"key"), Bytes::from_static(b"value"));
        for value in [None, Some((&value, -7))] {
            let output = key_value_version(&key, value);
            let expected = (key.clone(), value.map(|(value, version)| (value.clone(), version)));
            assert_eq!(from_key_value_version(&output), Some(expected));
            for length in 0..output.len() {
                let cut = from_key_value_version(&output.slice(..length));
                assert!(cut.is_none() || length == 4, "{length} bytes");
            }
        }
        assert_eq!(from_key_value_version(&Bytes::from_static(b"\x01k\x01v\0\0\0\0\0\0\0\0\0")), None);
    }
}
