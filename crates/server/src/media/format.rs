//! Formats of keys and values by media type, converted as by Infinispan's transcoders.

use bytes::Bytes;
use consort_hotrod::MediaType;
use consort_protostream::Wrapped;
use serde::de::IgnoredAny;

use super::charset::Charset;
use super::types::Types;
use super::{containers, entity, java_text};
use crate::limits::ENTITY_JSON_MAX;
use crate::reply::{Answer, Refusal};

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Format {
    /// `application/octet-stream`: UTF-8 where it is converted to text.
    Octets,
    Text(Charset),
    Json(Charset),
    Protostream,
    Other(Box<str>),
}

/// Bytes cannot be converted; nothing was changed. The texts begin with Infinispan's exception.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum ConversionError {
    #[error(
        "org.infinispan.commons.dataconversion.EncodingException: ISPN000492: Cannot find transcoder between \
         '{from}' to '{to}'"
    )]
    NoTranscoder { from: String, to: String },
    #[error(
        "org.infinispan.commons.dataconversion.EncodingException: cannot convert from '{from}' to '{to}': {why}"
    )]
    Content { from: String, to: String, why: String },
    #[error("java.nio.charset.UnsupportedCharsetException: {0}")]
    Charset(String),
    #[error("{0}")]
    Key(String),
}

impl Format {
    pub(crate) const TEXT: Self = Self::Text(Charset::Utf8);

    pub(crate) const JSON: Self = Self::Json(Charset::Utf8);

    pub(crate) const ALL: [Self; 8] = [
        Self::Octets,
        Self::Text(Charset::Utf8),
        Self::Text(Charset::Ascii),
        Self::Text(Charset::Latin1),
        Self::Text(Charset::Utf16),
        Self::Text(Charset::Utf16Le),
        Self::Json(Charset::Utf8),
        Self::Protostream,
    ];

    /// `None` leaves bytes unconverted.
    pub(crate) fn from_media_type(media_type: &MediaType) -> Result<Option<Self>, ConversionError> {
        let (id, params) = match media_type {
            MediaType::Unspecified => return Ok(None),
            MediaType::Known { id, params } => (*id, params),
            MediaType::Named { params, .. } => (0, params),
        };
        let name = media_type.name().map_or_else(|| id.to_string(), str::to_ascii_lowercase);
        let charset = || {
            let stated = params.iter().find(|(param, _)| param.as_str().eq_ignore_ascii_case("charset"));
            let stated = stated.map(|(_, value)| value.as_str()).or_else(|| charset_in(media_type));
            let Some(stated) = stated else { return Ok(Charset::default()) };
            let name = stated.trim().trim_matches('"');
            Charset::named(name).ok_or_else(|| ConversionError::Charset(name.to_owned()))
        };
        Ok(Some(match &name[..] {
            "application/unknown" | "*/*" => return Ok(None),
            "application/octet-stream" => Self::Octets,
            "text/plain" => Self::Text(charset()?),
            "application/json" => Self::Json(charset()?),
            "application/x-protostream" => Self::Protostream,
            _ => Self::Other(name.into()),
        }))
    }

    const fn name(&self) -> &str {
        match self {
            Self::Octets => "application/octet-stream",
            Self::Text(_) => "text/plain",
            Self::Json(_) => "application/json",
            Self::Protostream => "application/x-protostream",
            Self::Other(name) => name,
        }
    }

    pub(crate) fn check(&self, to: &Self) -> Result<(), ConversionError> {
        let is_other = matches!(self, Self::Other(_)) || matches!(to, Self::Other(_));
        if is_other && self != to {
            return Err(ConversionError::NoTranscoder {
                from: self.name().to_owned(),
                to: to.name().to_owned(),
            });
        }
        Ok(())
    }

    pub(crate) const fn needs_types(&self, to: &Self) -> bool {
        matches!(
            (self, to),
            (Self::Protostream, Self::Json(_) | Self::Text(_)) | (Self::Json(_), Self::Protostream)
        )
    }

    pub(crate) fn convert(&self, bytes: Bytes, to: &Self, types: &Types) -> Result<Bytes, ConversionError> {
        self.check(to)?;
        if self == to {
            return Ok(bytes);
        }
        let failed = |why: String| {
            let (from, to) = (self.name().to_owned(), to.name().to_owned());
            ConversionError::Content { from, to, why }
        };
        let own = match self {
            Self::Octets | Self::Other(_) => Charset::Utf8,
            Self::Text(charset) | Self::Json(charset) => *charset,
            Self::Protostream => return unwrap(bytes, to, types).map_err(failed),
        };
        Ok(match to {
            Self::Octets | Self::Other(_) => own.recode(bytes, Charset::Utf8),
            Self::Text(charset) => own.recode(bytes, *charset),
            Self::Json(charset) if matches!(self, Self::Json(_)) => own.recode(bytes, *charset),
            Self::Json(charset) => {
                let text = own.decode(&bytes);
                if !text.is_empty() {
                    let checked: Result<IgnoredAny, _> = serde_json::from_str(&text);
                    checked.map_err(|error| failed(format!("invalid JSON: {error}")))?;
                }
                own.recode(bytes, *charset)
            }
            Self::Protostream => match self {
                Self::Text(_) => Wrapped::Text(own.decode(&bytes).into_owned()).write(),
                Self::Json(_) => wrap(&own.decode(&bytes), types).map_err(failed)?,
                _ => Wrapped::Bytes(bytes).write(),
            },
        })
    }
}

fn wrap(text: &str, types: &Types) -> Result<Bytes, String> {
    if text.is_empty() {
        return Ok(Bytes::new());
    }
    if text.len() > ENTITY_JSON_MAX {
        return Err(format!("JSON of more than {ENTITY_JSON_MAX} bytes cannot be converted to an entity"));
    }
    containers::wrap_value(&serde_json::from_str(text).map_err(|error| error.to_string())?, types)
}

/// A client that asks for bytes gets a byte array's content, and other values wrapped.
fn unwrap(bytes: Bytes, to: &Format, types: &Types) -> Result<Bytes, String> {
    // An empty array is a wrapped null.
    if bytes.is_empty() {
        return Ok(bytes);
    }
    let read = Wrapped::read(bytes.clone());
    match (to, read) {
        (Format::Octets, Some(Wrapped::Bytes(bytes))) => Ok(bytes),
        (Format::Text(charset), Some(wrapped)) => {
            let text = wrapped.to_text().ok_or("bytes cannot be converted to text")?;
            Ok(charset.encode(&text))
        }
        (Format::Json(charset), Some(wrapped)) => {
            let text = wrapped.to_json().ok_or("JSON cannot represent this number")?;
            Ok(charset.encode(&text))
        }
        (Format::Json(charset), None) if containers::is_one(&bytes) => {
            Ok(charset.encode(&containers::to_json(&bytes, types)?))
        }
        (Format::Json(charset), None) => Ok(charset.encode(&entity::to_json(&bytes, types)?)),
        (Format::Text(charset), None) if containers::is_one(&bytes) => {
            Ok(charset.encode(&containers::to_text(&bytes, types)?))
        }
        (Format::Text(charset), None) => Ok(charset.encode(&java_text::of_entity(&bytes, types)?)),
        _ => Ok(bytes),
    }
}

fn charset_in(media_type: &MediaType) -> Option<&str> {
    let MediaType::Named { name, .. } = media_type else { return None };
    name.as_str().split(';').skip(1).find_map(|param| {
        let (name, value) = param.split_once('=')?;
        name.trim().eq_ignore_ascii_case("charset").then_some(value)
    })
}

impl From<ConversionError> for Refusal {
    fn from(error: ConversionError) -> Self {
        Self::new(error.to_string())
    }
}

impl From<ConversionError> for Answer {
    fn from(error: ConversionError) -> Self {
        Refusal::from(error).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: Format = Format::Text(Charset::Utf8);
    const JSON: Format = Format::Json(Charset::Utf8);

    fn format(name: &str) -> Result<Option<Format>, ConversionError> {
        Format::from_media_type(&MediaType::Named { name: name.into(), params: Vec::new() })
    }

    #[test]
    fn media_types_are_known_with_and_without_parameters() {
        assert_eq!(format("text/plain; charset=ISO-8859-1"), Ok(Some(Format::Text(Charset::Latin1))));
        assert_eq!(format("TEXT/plain"), Ok(Some(TEXT)));
        assert_eq!(format("text/plain;charset=nothing"), Err(ConversionError::Charset("nothing".to_owned())));
        let param = vec![("charset".into(), "utf-16".into())];
        let known = MediaType::Known { id: 2, params: param };
        assert_eq!(Format::from_media_type(&known), Ok(Some(Format::Json(Charset::Utf16))));
        for none in ["application/unknown", "*/*"] {
            assert_eq!(format(none), Ok(None));
        }
        assert_eq!(Format::from_media_type(&MediaType::Unspecified), Ok(None));
        assert_eq!(
            format("application/x-java-object"),
            Ok(Some(Format::Other("application/x-java-object".into())))
        );
        assert_eq!(
            Format::from_media_type(&MediaType::Known { id: 16, params: Vec::new() }),
            Ok(Some(Format::Other("16".into())))
        );
    }

    #[test]
    fn equivalent_values_are_converted() {
        let latin = Format::Text(Charset::Latin1);
        for (from, bytes, to, converted) in [
            (&TEXT, &b"\xc3\xa9"[..], &Format::Octets, &b"\xc3\xa9"[..]),
            (&latin, b"\xe9", &Format::Octets, b"\xc3\xa9"),
            (&Format::Octets, b"\xc3\xa9", &latin, b"\xe9"),
            (&latin, b"\xe9", &TEXT, b"\xc3\xa9"),
            (&TEXT, b"{\"a\": [1]}", &JSON, b"{\"a\": [1]}"),
            (&Format::Octets, b"", &JSON, b""),
            (&JSON, b"[1]", &TEXT, b"[1]"),
            (&JSON, b"[1]", &Format::Octets, b"[1]"),
            (&TEXT, b"key1", &Format::Protostream, b"\x4a\x04key1"),
            (&latin, b"\xe9", &Format::Protostream, b"\x4a\x02\xc3\xa9"),
            (&Format::Octets, b"\x01\x02", &Format::Protostream, b"\x52\x02\x01\x02"),
            (&JSON, b"{\"_type\":\"int32\",\"_value\":42}", &Format::Protostream, b"\x28\x2a"),
            (&Format::Protostream, b"\x4a\x04key1", &TEXT, b"key1"),
            (&Format::Protostream, b"\x4a\x02\xc3\xa9", &latin, b"\xe9"),
            (&Format::Protostream, b"\x28\x2a", &TEXT, b"42"),
            (&Format::Protostream, b"\x28\x2a", &JSON, b"{\"_type\":\"int32\",\"_value\":42}"),
            (&Format::Protostream, b"\x52\x02\x01\x02", &Format::Octets, b"\x01\x02"),
            (&Format::Protostream, b"\x4a\x04key1", &Format::Octets, b"\x4a\x04key1"),
            (&Format::Protostream, b"", &TEXT, b""),
        ] {
            let done = from.convert(Bytes::copy_from_slice(bytes), to, &Types::default());
            assert_eq!(done.as_deref(), Ok(converted), "{from:?} {bytes:?} {to:?}");
        }
    }

    #[test]
    fn arbitrary_bytes_are_converted_or_refused() {
        let formats = Format::ALL;
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        for length in (0..24).cycle().take(20_000) {
            let mut bytes = Vec::new();
            for _ in 0..length {
                // Half of the bytes have a meaning in one of the formats.
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let byte = (state >> 56) as u8;
                let meaning = b"\x4a\x52\x28\x09\x15\x98\x01{}[]\"_type:,\xff\x80";
                bytes.push(if byte & 1 == 0 { meaning[usize::from(byte) % meaning.len()] } else { byte });
            }
            for (from, to) in formats.iter().flat_map(|from| formats.iter().map(move |to| (from, to))) {
                let _ = from.convert(Bytes::from(bytes.clone()), to, &Types::default());
            }
        }
    }

    #[test]
    fn conversion_error_names_both_types() {
        let message = b"\x98\x01\xea\x84\x3d\x8a\x01\x02\x08\x01";
        let image = Format::Other("image/png".into());
        for (from, bytes, to) in [
            (&TEXT, &b"no json"[..], &JSON),
            (&JSON, b"[1]", &Format::Protostream),
            (&Format::Protostream, message, &TEXT),
            (&Format::Protostream, message, &JSON),
            (&Format::Protostream, b"\x52\x02\x01\x02", &TEXT),
            (&Format::Octets, b"", &image),
            (&image, b"", &TEXT),
        ] {
            let error =
                from.convert(Bytes::copy_from_slice(bytes), to, &Types::default()).unwrap_err().to_string();
            assert!(error.contains(from.name()) && error.contains(to.name()), "{error}");
        }
        assert_eq!(
            image.convert(Bytes::from_static(b"x"), &image, &Types::default()).as_deref(),
            Ok(&b"x"[..])
        );
    }
}
