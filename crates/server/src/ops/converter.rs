//! Converters of listeners (facts section 2.7); an application's cannot run here.

use bytes::Bytes;
use consort_cache::EntryEvent;
use consort_cache::EventKind::{Expired, Removed};
use consort_hotrod::MediaType;
use consort_hotrod::ops::event::{EventData, key_value_version};
use consort_hotrod::ops::listener::{Factory, KEY_VALUE_VERSION};
use consort_protostream::wire::{LENGTH, MESSAGE, TYPE_NAME, put_bytes, put_tag};

use crate::media::Format;

pub(crate) const WITH_PREVIOUS: &str = "key-value-with-previous-converter-factory";

/// The event's type in Java's clients.
const TYPE: &str = "org.infinispan.global.commons.KeyValueWithPrevious";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Converter {
    form: Form,
    /// The client gets keys and values in the cache's types.
    pub(crate) is_raw: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Form {
    /// Key, value and version as bytes behind one another.
    Version {
        /// Whether a removal's event has the removed value and its version; any parameter requests it.
        with_removed: bool,
    },
    /// Key, value and previous value, as one object in the client's format.
    Previous(ObjectFormat),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ObjectFormat {
    Message,
    Json,
    Text,
}

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum ConverterError {
    #[error("unknown converter '{name}'; this server has {KEY_VALUE_VERSION} and {WITH_PREVIOUS}")]
    Unknown { name: String },
    #[error(
        "converter '{WITH_PREVIOUS}' requires a media type of the client's values: application/x-protostream, \
         application/json or text/plain"
    )]
    Format,
}

impl Converter {
    pub(crate) fn of(
        factory: &Factory,
        is_raw: bool,
        value_type: &MediaType,
    ) -> Result<Self, ConverterError> {
        let form = match factory.name.as_str() {
            KEY_VALUE_VERSION => Form::Version { with_removed: !factory.params.is_empty() },
            WITH_PREVIOUS => Form::Previous(match Format::from_media_type(value_type) {
                Ok(Some(Format::Protostream)) => ObjectFormat::Message,
                Ok(Some(Format::JSON)) => ObjectFormat::Json,
                Ok(Some(Format::TEXT)) => ObjectFormat::Text,
                _ => return Err(ConverterError::Format),
            }),
            name => return Err(ConverterError::Unknown { name: name.to_owned() }),
        };
        Ok(Self { form, is_raw })
    }

    pub(crate) const fn needs_previous(self) -> bool {
        matches!(self.form, Form::Version { with_removed: true } | Form::Previous(_))
    }

    /// The data has no value if the key has none, or if it was overwritten before the event was sent.
    pub(crate) fn convert(self, event: &EntryEvent<Bytes, Bytes>) -> EventData {
        let bytes = match self.form {
            Form::Version { with_removed } => with_version(event, with_removed),
            Form::Previous(written) => with_previous(event, written),
        };
        if self.is_raw { EventData::Raw(bytes) } else { EventData::Custom(bytes) }
    }
}

fn with_version(event: &EntryEvent<Bytes, Bytes>, with_removed: bool) -> Bytes {
    let is_gone = matches!(event.kind, Removed | Expired);
    let gone = event.previous.as_ref().filter(|_| is_gone && with_removed);
    let there = event.value.as_ref().map(|value| (value, event.version));
    let said = there.or_else(|| gone.map(|gone| (&gone.value, gone.version)));
    key_value_version(&event.key, said.map(|(value, version)| (value, version.0.cast_signed())))
}

fn with_previous(event: &EntryEvent<Bytes, Bytes>, written: ObjectFormat) -> Bytes {
    let previous = event.previous.as_ref().map(|previous| &previous.value);
    // An expired value is reported as the value, as Infinispan does.
    let (value, previous) = match event.kind {
        Expired => (previous, None),
        _ => (event.value.as_ref(), previous),
    };
    let parts = [Some(&event.key), value, previous];
    match written {
        ObjectFormat::Message => message(parts),
        ObjectFormat::Json => json(parts),
        ObjectFormat::Text => text(parts),
    }
}

/// A missing part has no field.
fn message(parts: [Option<&Bytes>; 3]) -> Bytes {
    let mut message = Vec::new();
    for (field, part) in (1..).zip(parts) {
        put_tag(&mut message, field, LENGTH);
        put_bytes(&mut message, part.map_or(&[], |part| part));
    }
    let mut wrapped = Vec::new();
    put_tag(&mut wrapped, TYPE_NAME, LENGTH);
    put_bytes(&mut wrapped, TYPE.as_bytes());
    put_tag(&mut wrapped, MESSAGE, LENGTH);
    put_bytes(&mut wrapped, &message);
    wrapped.into()
}

/// A part that is no JSON, such as a key, becomes a text.
fn json(parts: [Option<&Bytes>; 3]) -> Bytes {
    let [key, value, previous] = parts.map(|part| {
        let Some(part) = part else { return serde_json::Value::Null };
        serde_json::from_slice(part).unwrap_or_else(|_| String::from_utf8_lossy(part).into())
    });
    serde_json::json!({"_type": TYPE, "key": key, "value": value, "prev": previous}).to_string().into()
}

fn text(parts: [Option<&Bytes>; 3]) -> Bytes {
    let [key, value, previous] =
        parts.map(|part| part.map_or("null".into(), |part| String::from_utf8_lossy(part)));
    format!("KeyValueWithPrevious{{key={key}, value={value}, prev={previous}}}").into()
}
