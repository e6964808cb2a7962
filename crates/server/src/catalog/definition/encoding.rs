use consort_hotrod::MediaType;

use super::tree::Element;
use super::{DefinitionError, Result};
use crate::media::{ConversionError, Encoding};

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
