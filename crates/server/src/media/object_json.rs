//! Stored values as members of a JSON object that the server makes, as in Infinispan: a text is a string, also if it is a JSON
//! document, a wrapped scalar is its value, and bytes are `["[B", BASE64]`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use consort_protostream::Wrapped;
use serde_json::{Value, json};

use super::format::Format;
use super::types::Types;
use super::{containers, entity};

/// Jackson's name of byte arrays.
const BYTES: &str = "[B";

/// `stored` is `None` for a cache without media type: then the form of Java's clients, or a text, is recognised.
pub(crate) fn to_object_json(bytes: &Bytes, stored: Option<&Format>, types: &Types) -> Value {
    let opaque = || json!([BYTES, STANDARD.encode(bytes)]);
    let text = || std::str::from_utf8(bytes).map_or_else(|_| opaque(), Value::from);
    match stored {
        Some(Format::Text(charset)) => Value::from(charset.decode(bytes)),
        Some(Format::Json(charset)) => {
            let text = charset.decode(bytes);
            serde_json::from_str(&text).unwrap_or_else(|_| Value::from(text))
        }
        Some(Format::Protostream) => wrapped(bytes, types).unwrap_or_else(opaque),
        Some(Format::Octets | Format::Other(_)) => opaque(),
        None => wrapped(bytes, types).unwrap_or_else(text),
    }
}

fn wrapped(bytes: &Bytes, types: &Types) -> Option<Value> {
    if bytes.is_empty() {
        return Some(Value::Null);
    }
    let Some(wrapped) = Wrapped::read(bytes.clone()) else {
        let entity = if containers::is_one(bytes) {
            containers::to_json(bytes, types).ok()?
        } else {
            entity::to_json(bytes, types).ok()?
        };
        return serde_json::from_str(&entity).ok();
    };
    Some(match &wrapped {
        Wrapped::Bytes(bytes) => json!([BYTES, STANDARD.encode(bytes)]),
        Wrapped::Text(text) => json!(text),
        Wrapped::Bool(is) => json!(is),
        Wrapped::Char(one) => json!(one.to_string()),
        // JSON has no other numbers: NaN and infinities are texts.
        number => {
            let text = number.to_text()?;
            serde_json::from_str(&text).unwrap_or_else(|_| json!(text))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::super::charset::Charset;
    use super::*;

    /// As from Infinispan 16.0.7.
    #[test]
    fn values_of_a_made_object_are_those_of_jackson() {
        const TEXT: Option<&Format> = Some(&Format::TEXT);
        const WRAPPED: Option<&Format> = Some(&Format::Protostream);
        let utf16 = Format::Text(Charset::Utf16Be);
        for (stored, bytes, expected) in [
            (TEXT, &b"{\"a\":1}"[..], r#""{\"a\":1}""#),
            (TEXT, b"7", r#""7""#),
            (Some(&utf16), b"\0a", r#""a""#),
            (Some(&Format::JSON), b"{\"a\":1}", r#"{"a":1}"#),
            (Some(&Format::JSON), b"no json", r#""no json""#),
            (WRAPPED, b"J\x07{\"a\":1}", r#""{\"a\":1}""#),
            (WRAPPED, b"\x28\x07", "7"),
            (WRAPPED, b"\x40\x01", "true"),
            (WRAPPED, b"\x09\0\0\0\0\0\0\xf8\x3f", "1.5"),
            (WRAPPED, b"\x09\0\0\0\0\0\0\xf8\x7f", r#""NaN""#),
            (WRAPPED, b"R\x02ab", r#"["[B","YWI="]"#),
            (WRAPPED, b"", "null"),
            (WRAPPED, b"ab", r#"["[B","YWI="]"#),
            (Some(&Format::Octets), b"5", r#"["[B","NQ=="]"#),
            (None, b"\x28\x07", "7"),
            (None, b"k", r#""k""#),
            (None, b"\xff", r#"["[B","/w=="]"#),
        ] {
            let made = to_object_json(&Bytes::from_static(bytes), stored, &Types::default());
            assert_eq!(made.to_string(), expected, "{stored:?} {bytes:?}");
        }
    }
}
