//! What the keys and values of a cache are, and what its clients take them for.
//!
//! A cache whose definition says nothing keeps bytes as they come. Where it names media types, requests are converted before
//! anything is done with them and answers before they are written, unless the client's types are the cache's: that is a
//! comparison, and nothing is copied. Entities that clients wrap become JSON and back by the schemas that are registered
//! ([`Types`]).

mod charset;
mod conversion;
mod entity;
mod format;
mod types;

pub(crate) use conversion::Conversion;
pub(crate) use format::{ConversionError, Format};
pub(crate) use types::Types;

use consort_hotrod::{MediaType, ProtocolVersion, RequestHeader};

/// What keys or values are kept as.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Kept {
    media_type: MediaType,
    format: Format,
}

/// What a cache's keys and values are kept as, where it is said.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Encoding {
    key: Option<Kept>,
    value: Option<Kept>,
    /// What requests without types have, before they could have any.
    old_clients: Option<Format>,
}

fn kept(media_type: &MediaType) -> Result<Option<Kept>, ConversionError> {
    let plain = media_type.name().map(MediaType::named).unwrap_or_default();
    let media_type = match plain.name() {
        // What Java keeps as objects is here what clients send of them.
        Some("application/x-java-object") => MediaType::PROTOSTREAM,
        // Parameters that change nothing would make clients without them look different.
        Some(_) if Format::of(&plain)? == Format::of(media_type)? => plain,
        _ => media_type.clone(),
    };
    let format = Format::of(&media_type)?;
    Ok(format.map(|format| Kept { media_type, format }))
}

/// Whether it has to be looked at closer what a client takes them for.
fn may_differ(kept: Option<&Kept>, asked: &MediaType) -> bool {
    kept.is_some_and(|kept| kept.media_type != *asked)
}

impl Encoding {
    /// Keys are of this type. `application/unknown` leaves them as they come.
    ///
    /// # Errors
    ///
    /// [`ConversionError`] for a charset that nobody knows.
    pub(crate) fn keep_keys(&mut self, media_type: &MediaType) -> Result<(), ConversionError> {
        self.key = kept(media_type)?;
        Ok(())
    }

    /// Values are, in the same way.
    pub(crate) fn keep_values(&mut self, media_type: &MediaType) -> Result<(), ConversionError> {
        self.value = kept(media_type)?;
        Ok(())
    }

    /// Texts, which clients that say nothing wrap.
    pub(crate) fn texts() -> Self {
        let text = Kept { media_type: MediaType::TEXT, format: Format::Text(charset::Charset::Utf8) };
        Self { key: Some(text.clone()), value: Some(text), old_clients: Some(Format::Protostream) }
    }

    /// Whether values are what queries look into, or may be.
    pub(crate) fn is_queried(&self) -> bool {
        self.value.as_ref().is_none_or(|kept| kept.format == Format::Protostream)
    }

    /// What clients are told that keys and values are.
    pub(crate) fn told(&self) -> (MediaType, MediaType) {
        let told = |kept: &Option<Kept>| match kept {
            None => MediaType::Unspecified,
            // Clients of such a cache wrap texts, and are not to hash them otherwise.
            Some(_) if self.old_clients.is_some() => MediaType::PROTOSTREAM,
            Some(kept) => kept.media_type.clone(),
        };
        (told(&self.key), told(&self.value))
    }

    /// The same, where something is said.
    pub(crate) fn media_types(&self) -> [Option<&MediaType>; 2] {
        [&self.key, &self.value].map(|kept| kept.as_ref().map(|kept| &kept.media_type))
    }

    /// How a client's requests are converted; nothing if they are not.
    ///
    /// # Errors
    ///
    /// [`ConversionError`] if there is no way from its types to the cache's.
    pub(crate) fn conversion(
        &self,
        header: &RequestHeader,
    ) -> Result<Option<Box<Conversion>>, ConversionError> {
        let may_differ = may_differ(self.key.as_ref(), &header.key_type)
            || may_differ(self.value.as_ref(), &header.value_type);
        if !may_differ {
            return Ok(None);
        }
        let way = |kept: &Option<Kept>, asked: &MediaType| {
            let Some(kept) = kept else { return Ok(None) };
            let asked = match Format::of(asked)? {
                None if header.version < ProtocolVersion::V2_8 => self.old_clients.clone(),
                asked => asked,
            };
            let Some(asked) = asked.filter(|asked| *asked != kept.format) else { return Ok(None) };
            asked.check(&kept.format)?;
            Ok(Some((asked, kept.format.clone())))
        };
        let (key, value) = (way(&self.key, &header.key_type)?, way(&self.value, &header.value_type)?);
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
    fn what_is_kept_as_it_comes_or_is_of_the_same_type_is_not_converted() {
        let (mut wrapped, mut unknown) = (Encoding::default(), Encoding::default());
        wrapped.keep_keys(&MediaType::PROTOSTREAM).unwrap();
        wrapped.keep_values(&MediaType::PROTOSTREAM).unwrap();
        unknown.keep_values(&MediaType::named("application/unknown")).unwrap();
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
    fn objects_are_kept_as_clients_wrap_them_and_parameters_that_say_nothing_are_left_out() {
        let mut kept = Encoding::default();
        kept.keep_values(&MediaType::named("application/x-java-object")).unwrap();
        assert_eq!(kept.told(), (MediaType::Unspecified, MediaType::PROTOSTREAM));
        kept.keep_values(&MediaType::named("text/plain; charset=UTF-8")).unwrap();
        assert_eq!(kept.told().1, MediaType::TEXT);
        let latin = MediaType::named("text/plain; charset=ISO-8859-1");
        kept.keep_values(&latin).unwrap();
        assert_eq!(kept.told().1, latin);
        assert!(kept.keep_values(&MediaType::named("text/plain; charset=klingon")).is_err());
    }

    #[test]
    fn old_clients_of_texts_wrap_them() {
        let texts = Encoding::texts();
        let old = header(ProtocolVersion::V2_5, MediaType::Unspecified, MediaType::Unspecified);
        let conversion = texts.conversion(&old).unwrap().unwrap();
        assert_eq!(conversion.key_in(b"\x4a\x01a"[..].into()).as_deref(), Ok(&b"a"[..]));
        assert_eq!(conversion.value_out(b"a"[..].into()).as_deref(), Ok(&b"\x4a\x01a"[..]));
        let new = header(ProtocolVersion::V2_8, MediaType::Unspecified, MediaType::Unspecified);
        assert_eq!(texts.conversion(&new), Ok(None));
    }
}
