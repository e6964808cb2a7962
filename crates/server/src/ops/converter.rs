//! Converters of listeners (facts section 2.7); an application's cannot run here.

use std::sync::Arc;

use bytes::Bytes;
use consort_cache::EntryEvent;
use consort_cache::EventKind::{Expired, Removed};
use consort_hotrod::MediaType;
use consort_hotrod::ops::event::{EventData, key_value_version};
use consort_hotrod::ops::listener::{Factory, KEY_VALUE_VERSION};
use consort_protostream::Wrapped;
use consort_protostream::wire::{LENGTH, MESSAGE, TYPE_NAME, put_bytes, put_tag};
use serde_json::Value;

use crate::media::{Format, Types, to_object_json};

pub(crate) const WITH_PREVIOUS: &str = "key-value-with-previous-converter-factory";

/// The event's type in Java's clients, as Protobuf and as JSON.
const TYPE: &str = "org.infinispan.global.commons.KeyValueWithPrevious";
const JSON_TYPE: &str = "org.infinispan.commons.util.KeyValueWithPrevious";

#[derive(Clone, Debug)]
pub(crate) struct Converter {
    form: Form,
    /// The client gets keys and values in the cache's types.
    is_raw: bool,
}

#[derive(Clone, Debug)]
enum Form {
    /// Key, value and version as bytes behind one another.
    Version {
        /// Whether a removal's event has the removed value and its version; any parameter requests it.
        with_removed: bool,
    },
    /// Key, value and previous value, as one object in the client's format.
    Previous(ObjectFormat),
}

#[derive(Clone, Debug)]
enum ObjectFormat {
    Message,
    /// A message whose parts are wrapped bytes: their format is unknown.
    Opaque,
    /// An object with values of the cache, whose formats these are.
    Json {
        formats: [Option<Format>; 2],
        types: Arc<Types>,
    },
    Text,
}

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum ConverterError {
    #[error(
        "ISPN006013: Listener converter factory '{name}' not found in server, which has {KEY_VALUE_VERSION} and \
         {WITH_PREVIOUS}"
    )]
    Unknown { name: String },
    #[error(
        "converter '{WITH_PREVIOUS}' has no form in the media type of the client's values; there are \
         application/x-protostream, application/json, text/plain, and for others application/octet-stream"
    )]
    Format,
}

impl Converter {
    /// `stored` are the formats of the cache, with the types of its entities.
    pub(crate) fn of(
        factory: &Factory,
        is_raw: bool,
        value_type: &MediaType,
        stored: ([Option<&Format>; 2], &Arc<Types>),
    ) -> Result<Self, ConverterError> {
        let form = match factory.name.as_str() {
            KEY_VALUE_VERSION => Form::Version { with_removed: !factory.params.is_empty() },
            WITH_PREVIOUS => Form::Previous(match Format::from_media_type(value_type) {
                Ok(Some(Format::Protostream)) => ObjectFormat::Message,
                Ok(None | Some(Format::Octets)) => ObjectFormat::Opaque,
                Ok(Some(Format::JSON)) => {
                    let (formats, types) = stored;
                    let formats = if is_raw {
                        [Some(Format::Octets), Some(Format::Octets)]
                    } else {
                        formats.map(|one| one.cloned())
                    };
                    ObjectFormat::Json { formats, types: types.clone() }
                }
                Ok(Some(Format::TEXT)) => ObjectFormat::Text,
                _ => return Err(ConverterError::Format),
            }),
            name => return Err(ConverterError::Unknown { name: name.to_owned() }),
        };
        Ok(Self { form, is_raw })
    }

    pub(crate) const fn needs_previous(&self) -> bool {
        matches!(self.form, Form::Version { with_removed: true } | Form::Previous(_))
    }

    /// Whether it takes keys and values as the cache has them.
    pub(crate) const fn takes_stored(&self) -> bool {
        self.is_raw || matches!(self.form, Form::Previous(ObjectFormat::Json { .. }))
    }

    /// The data has no value if the key has none, or if it was overwritten before the event was sent.
    pub(crate) fn convert(&self, event: &EntryEvent<Bytes, Bytes>) -> EventData {
        let bytes = match &self.form {
            Form::Version { with_removed } => with_version(event, *with_removed),
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

fn with_previous(event: &EntryEvent<Bytes, Bytes>, written: &ObjectFormat) -> Bytes {
    let previous = event.previous.as_ref().map(|previous| &previous.value);
    // An expired value is reported as the value, as Infinispan does.
    let (value, previous) = match event.kind {
        Expired => (previous, None),
        _ => (event.value.as_ref(), previous),
    };
    let parts = [Some(&event.key), value, previous];
    match written {
        ObjectFormat::Message => message(parts),
        ObjectFormat::Opaque => {
            let wrapped = parts.map(|part| part.map(|part| Wrapped::Bytes(part.clone()).write()));
            message(wrapped.each_ref().map(Option::as_ref))
        }
        ObjectFormat::Json { formats, types } => json(parts, formats, types),
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

/// The fields are in the order of Infinispan's.
fn json(parts: [Option<&Bytes>; 3], formats: &[Option<Format>; 2], types: &Types) -> Bytes {
    let [of_key, of_value] = formats.each_ref().map(Option::as_ref);
    let mut object = format!("{{\"_type\":\"{JSON_TYPE}\"");
    for ((name, part), format) in ["key", "value", "prev"].iter().zip(parts).zip([of_key, of_value, of_value])
    {
        let value = part.map_or(Value::Null, |part| to_object_json(part, format, types));
        object.push_str(&format!(",\"{name}\":{value}"));
    }
    object.push('}');
    object.into()
}

fn text(parts: [Option<&Bytes>; 3]) -> Bytes {
    let [key, value, previous] =
        parts.map(|part| part.map_or("null".into(), |part| String::from_utf8_lossy(part)));
    format!("KeyValueWithPrevious{{key={key}, value={value}, prev={previous}}}").into()
}
