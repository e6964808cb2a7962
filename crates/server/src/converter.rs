//! The converters that clients can name in listeners: what an event says beside, or instead of, its key and version
//! (facts section 2.7).
//!
//! There is one. What an application has made for another server cannot run here.

use bytes::Bytes;
use consort_cache::EntryEvent;
use consort_hotrod::ops::event::{EventData, key_value_version};
use consort_hotrod::ops::listener::{Factory, KEY_VALUE_VERSION};

/// A converter that clients name: key, value and version as bytes behind one another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Converter {
    /// Whether what is gone is told with the value and the version that it had. Any parameter asks for it.
    pub(crate) with_gone: bool,
    /// Whether the client is given keys and values as the cache has them.
    pub(crate) is_raw: bool,
}

/// There is no such converter.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("there is no converter '{name}' here; there is {KEY_VALUE_VERSION}")]
pub(crate) struct UnknownConverter {
    name: String,
}

impl Converter {
    /// The converter that is meant.
    pub(crate) fn of(factory: &Factory, is_raw: bool) -> Result<Self, UnknownConverter> {
        match factory.name.as_str() {
            KEY_VALUE_VERSION => Ok(Self { with_gone: !factory.params.is_empty(), is_raw }),
            name => Err(UnknownConverter { name: name.to_owned() }),
        }
    }

    /// What is said of an event. Its value is missing if the key has none after it, or if it was overwritten before it could
    /// be told.
    pub(crate) fn made(self, event: &EntryEvent<Bytes, Bytes>) -> EventData {
        use consort_cache::EventKind::{Expired, Removed};
        let is_gone = matches!(event.kind, Removed | Expired);
        let gone = event.previous.as_ref().filter(|_| is_gone && self.with_gone);
        let there = event.value.as_ref().map(|value| (value, event.version));
        let said = there.or_else(|| gone.map(|gone| (&gone.value, gone.version)));
        let bytes =
            key_value_version(&event.key, said.map(|(value, version)| (value, version.0.cast_signed())));
        if self.is_raw { EventData::Raw(bytes) } else { EventData::Custom(bytes) }
    }
}
