use consort_hotrod::MediaType;

use super::tree::Element;
use super::{DefinitionError, Result};
use crate::media::{ConversionError, Encoding, Format};

fn media_type(element: &Element, text: &str) -> Result<MediaType> {
    let invalid = || element.invalid("media-type", text);
    let name = text.split(';').next().unwrap_or_default().trim();
    let (kind, subtype) = name.split_once('/').ok_or_else(invalid)?;
    let is_token = |part: &str| {
        let is_of_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$&^_.+-*".contains(&byte);
        !part.is_empty() && part.bytes().all(is_of_token)
    };
    if !is_token(kind) || !is_token(subtype) {
        return Err(invalid());
    }
    Ok(MediaType::named(text.trim()))
}

/// Types of keys and values that Infinispan stores although nothing is converted to them here, and that of Consort's clients.
const OPAQUE: [&str; 5] = [
    "application/x-java-serialized-object",
    "application/x-jboss-marshalling",
    "application/x-postcard",
    "application/x-www-form-urlencoded",
    "application/xml",
];

/// Infinispan refuses a cache of a type to which nothing is converted.
fn check_stored(media_type: &MediaType) -> Result<()> {
    let plain = media_type.name().map(str::to_ascii_lowercase).unwrap_or_default();
    let is_opaque = plain == "application/x-java-object" || OPAQUE.contains(&&*plain);
    match Format::from_media_type(media_type) {
        Ok(Some(Format::Other(_))) if !is_opaque => Err(DefinitionError::MediaType(plain)),
        // An unknown charset is reported later.
        _ => Ok(()),
    }
}

/// A media type for both keys and values takes precedence over one for either.
pub(super) fn read(element: &Element) -> Result<Encoding> {
    element.check_children(&["key", "value"])?;
    let mut encoding = Encoding::default();
    for part in element.children.iter().chain([element]) {
        if part != element {
            part.check_children(&[])?;
        }
        for (attribute, value) in &part.attributes {
            if attribute != "media-type" {
                return Err(part.unknown(attribute));
            }
            let media_type = media_type(part, value)?;
            check_stored(&media_type)?;
            let unknown = |error: ConversionError| DefinitionError::Unsupported(error.to_string());
            if part.name != "value" {
                encoding.set_key_type(&media_type).map_err(unknown)?;
            }
            if part.name != "key" {
                encoding.set_value_type(&media_type).map_err(unknown)?;
            }
        }
    }
    Ok(encoding)
}

#[cfg(test)]
mod tests {
    use super::super::from_text;
    use super::*;

    #[test]
    fn media_types_are_read_in_each_form() {
        let (text, json) = (Some(&MediaType::TEXT), Some(&MediaType::named("application/json")).cloned());
        for definition in [
            r#"{"distributed-cache": {"encoding": {"key": {"media-type": "text/plain"},
                "value": {"media-type": "application/json"}}}}"#,
            "distributedCache:\n  mode: SYNC\n  encoding:\n    key:\n      mediaType: text/plain\n    value:\n      \
             mediaType: application/json\n",
            r#"<distributed-cache><encoding><key media-type="text/plain; charset=UTF-8"/>
               <value media-type="application/json"/></encoding></distributed-cache>"#,
        ] {
            let read = from_text("c", definition).unwrap();
            assert_eq!(read.encoding.media_types(), [text, json.as_ref()], "{definition}");
        }
        let both = from_text("c", r#"{"local-cache": {"encoding": {"media-type": "text/plain"}}}"#).unwrap();
        assert_eq!(both.encoding.media_types(), [text, text]);
    }

    #[test]
    fn media_type_that_nothing_converts_to_is_refused_as_by_infinispan() {
        let of = |media_type: &str| {
            from_text("c", &format!(r#"{{"local-cache": {{"encoding": {{"media-type": "{media_type}"}}}}}}"#))
        };
        for accepted in OPAQUE.into_iter().chain([
            "application/x-java-object",
            "application/octet-stream",
            "application/unknown",
            "text/plain; charset=ISO-8859-1",
            "Application/XML",
        ]) {
            assert!(of(accepted).is_ok(), "{accepted}");
        }
        for refused in ["image/png", "text/html", "application/yaml", "foo/bar"] {
            assert_eq!(of(refused), Err(DefinitionError::MediaType(refused.to_owned())));
        }
    }

    #[test]
    fn invalid_media_type_is_refused() {
        for refused in [
            r#"{"distributed-cache": {"encoding": {"media-type": "protostream"}}}"#,
            r#"{"distributed-cache": {"encoding": {"media-type": ";/x"}}}"#,
            r#"{"distributed-cache": {"encoding": {"media-type": "a b/c"}}}"#,
            r#"{"distributed-cache": {"encoding": {"media-type": "text/plain; charset=klingon"}}}"#,
            r#"{"distributed-cache": {"encoding": {"mine": "text/plain"}}}"#,
            r#"{"distributed-cache": {"encoding": {"key": {"key": {}}}}}"#,
        ] {
            assert!(from_text("c", refused).is_err(), "{refused}");
        }
    }
}
