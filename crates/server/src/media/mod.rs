//! Media types of caches' keys and values, and conversion from and to those of clients.
//!
//! A cache without media types in its definition stores bytes unconverted. With equal types the server only compares the types,
//! and copies nothing. Entities are converted to and from JSON by the registered schemas ([`Types`]).

mod charset;
mod containers;
mod conversion;
mod entity;
mod format;
mod java_text;
mod object_json;
mod types;

pub(crate) use conversion::Conversion;
/// The schema of protostream's own types, as far as they are entities.
pub(crate) const JAVA_TYPES: &str = include_str!("java_types.proto");

pub(crate) use format::{ConversionError, Format};
pub(crate) use object_json::to_object_json;
pub(crate) use types::Types;

use consort_hotrod::{MediaType, ProtocolVersion, RequestHeader};

#[derive(Clone, PartialEq, Eq, Debug)]
struct StoredType {
    media_type: MediaType,
    format: Format,
}

#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Encoding {
    key: Option<StoredType>,
    value: Option<StoredType>,
    /// For requests before 2.8, which cannot send types.
    old_clients: Option<Format>,
}

fn stored_type(media_type: &MediaType) -> Result<Option<StoredType>, ConversionError> {
    let plain = media_type.name().map(MediaType::named).unwrap_or_default();
    let media_type = match plain.name() {
        // Objects of Java are stored in the form in which clients send them.
        Some("application/x-java-object") => MediaType::PROTOSTREAM,
        // Parameters without effect are dropped, because otherwise clients without them would seem to use another type.
        Some(_) if Format::from_media_type(&plain)? == Format::from_media_type(media_type)? => plain,
        _ => media_type.clone(),
    };
    let format = Format::from_media_type(&media_type)?;
    Ok(format.map(|format| StoredType { media_type, format }))
}

fn may_differ(stored: Option<&StoredType>, client: &MediaType) -> bool {
    stored.is_some_and(|stored| stored.media_type != *client)
}

impl Encoding {
    /// `application/unknown` leaves keys unconverted. Fails for an unknown charset.
    pub(crate) fn set_key_type(&mut self, media_type: &MediaType) -> Result<(), ConversionError> {
        self.key = stored_type(media_type)?;
        Ok(())
    }

    pub(crate) fn set_value_type(&mut self, media_type: &MediaType) -> Result<(), ConversionError> {
        self.value = stored_type(media_type)?;
        Ok(())
    }

    /// The encoding of texts, which clients without types wrap.
    pub(crate) fn texts() -> Self {
        let text = StoredType { media_type: MediaType::TEXT, format: Format::Text(charset::Charset::Utf8) };
        Self { key: Some(text.clone()), value: Some(text), old_clients: Some(Format::Protostream) }
    }

    pub(crate) fn is_queried(&self) -> bool {
        self.value.as_ref().is_none_or(|stored| stored.format == Format::Protostream)
    }

    pub(crate) fn client_media_types(&self) -> (MediaType, MediaType) {
        let media_type = |stored: &Option<StoredType>| match stored {
            None => MediaType::Unspecified,
            // Clients of such a cache wrap texts, and have to hash the wrapped keys.
            Some(_) if self.old_clients.is_some() => MediaType::PROTOSTREAM,
            Some(stored) => stored.media_type.clone(),
        };
        (media_type(&self.key), media_type(&self.value))
    }

    pub(crate) fn media_types(&self) -> [Option<&MediaType>; 2] {
        [&self.key, &self.value].map(|stored| stored.as_ref().map(|stored| &stored.media_type))
    }

    /// Of keys and values; `None` where nothing is known.
    pub(crate) fn formats(&self) -> [Option<&Format>; 2] {
        [&self.key, &self.value].map(|stored| stored.as_ref().map(|stored| &stored.format))
    }

    /// `None` if nothing is converted. Fails if the client's types cannot be converted to the cache's.
    pub(crate) fn conversion(
        &self,
        header: &RequestHeader,
    ) -> Result<Option<Box<Conversion>>, ConversionError> {
        let may_differ = may_differ(self.key.as_ref(), &header.key_type)
            || may_differ(self.value.as_ref(), &header.value_type);
        if !may_differ {
            return Ok(None);
        }
        let formats = |stored: &Option<StoredType>, client: &MediaType| {
            let Some(stored) = stored else { return Ok(None) };
            let client = match Format::from_media_type(client)? {
                None if header.version < ProtocolVersion::V2_8 => self.old_clients.clone(),
                client => client,
            };
            let Some(client) = client.filter(|client| *client != stored.format) else { return Ok(None) };
            client.check(&stored.format)?;
            Ok(Some((client, stored.format.clone())))
        };
        let (key, value) = (formats(&self.key, &header.key_type)?, formats(&self.value, &header.value_type)?);
        Ok((key.is_some() || value.is_some()).then(|| Box::new(Conversion::new(key, value))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(version: ProtocolVersion, key: MediaType, value: MediaType) -> RequestHeader {
        RequestHeader { key_type: key, value_type: value, ..RequestHeader::new(1, version) }
    }

    #[test]
    fn unspecified_or_equal_types_are_not_converted() {
        let (mut wrapped, mut unknown) = (Encoding::default(), Encoding::default());
        wrapped.set_key_type(&MediaType::PROTOSTREAM).unwrap();
        wrapped.set_value_type(&MediaType::PROTOSTREAM).unwrap();
        unknown.set_value_type(&MediaType::named("application/unknown")).unwrap();
        assert_eq!(unknown, Encoding::default());
        let new = |key, value| header(ProtocolVersion::V4_1, key, value);
        let unspecified = || MediaType::Unspecified;
        for (encoding, header) in [
            (&wrapped, new(MediaType::PROTOSTREAM, MediaType::PROTOSTREAM)),
            (&wrapped, new(unspecified(), unspecified())),
            (&wrapped, new(MediaType::named("*/*"), MediaType::named("application/unknown"))),
            (&wrapped, header(ProtocolVersion::V2_0, unspecified(), unspecified())),
            (&unknown, new(MediaType::TEXT, MediaType::named("image/png"))),
        ] {
            assert_eq!(encoding.conversion(&header), Ok(None), "{header:?}");
        }
        assert!(wrapped.conversion(&new(MediaType::TEXT, unspecified())).unwrap().is_some());
        assert!(wrapped.conversion(&new(MediaType::named("image/png"), unspecified())).is_err());
    }

    #[test]
    fn java_objects_are_stored_wrapped_and_parameters_without_effect_are_dropped() {
        let mut encoding = Encoding::default();
        encoding.set_value_type(&MediaType::named("application/x-java-object")).unwrap();
        assert_eq!(encoding.client_media_types(), (MediaType::Unspecified, MediaType::PROTOSTREAM));
        encoding.set_value_type(&MediaType::named("text/plain; charset=UTF-8")).unwrap();
        assert_eq!(encoding.client_media_types().1, MediaType::TEXT);
        let latin = MediaType::named("text/plain; charset=ISO-8859-1");
        encoding.set_value_type(&latin).unwrap();
        assert_eq!(encoding.client_media_types().1, latin);
        assert!(encoding.set_value_type(&MediaType::named("text/plain; charset=klingon")).is_err());
    }

    #[test]
    fn texts_of_old_clients_are_wrapped() {
        let texts = Encoding::texts();
        let old = header(ProtocolVersion::V2_5, MediaType::Unspecified, MediaType::Unspecified);
        let conversion = texts.conversion(&old).unwrap().unwrap();
        assert_eq!(conversion.key_in(b"\x4a\x01a"[..].into()).as_deref(), Ok(&b"a"[..]));
        assert_eq!(conversion.value_out(b"a"[..].into()).as_deref(), Ok(&b"\x4a\x01a"[..]));
        let new = header(ProtocolVersion::V2_8, MediaType::Unspecified, MediaType::Unspecified);
        assert_eq!(texts.conversion(&new), Ok(None));
    }
}
