//! Values that protostream wraps without a schema besides scalars: dates, instants, collections and arrays (facts section 6.1).
//!
//! A container is the name of its type, the number of its elements, an empty message, and the elements behind one another: scalars
//! and dates as fields of their own, others as messages. Their JSON is that of protostream 6.0, but for an empty container, of which
//! protostream makes invalid JSON.

use std::fmt::Write;

use bytes::{Bytes, BytesMut};
use consort_protostream::Wrapped;
use consort_protostream::wire::{LENGTH, MESSAGE, Raw, VARINT, field, put_bytes, put_tag, put_varint};
use serde_json::{Map, Value};

use super::types::Types;
use super::{entity, java_text};
use crate::limits::{ENTITY_BYTES_MAX, ENTITY_JSON_MAX, ENTITY_NESTING_MAX};

const DATE: u32 = 23;
const INSTANT_SECONDS: u32 = 24;
const INSTANT_NANOS: u32 = 25;
const EMPTY: u32 = 26;
const SIZE: u32 = 27;
const NAME: u32 = 28;
const CONTAINER_MESSAGE: u32 = 30;

const DATE_TYPE: &str = "org.infinispan.protostream.commons.Date";
const INSTANT_TYPE: &str = "org.infinispan.protostream.commons.Instant";
const WRAPPED_TYPE: &str = "org.infinispan.protostream.WrappedMessage";

const DATE_FIELD: &str = "wrappedDateMillis";
const SECONDS_FIELD: &str = "wrappedInstantSeconds";
const NANOS_FIELD: &str = "wrappedInstantNanos";
const SIZE_FIELD: &str = "wrappedContainerSize";
const NESTED_CONTAINER_FIELD: &str = "wrappedContainerTypeName";
const NESTED_MESSAGE_FIELD: &str = "wrappedMessage";

const MALFORMED: &str = "it is not a container of protostream";

/// One element of a container, or a value without a schema.
enum Item<'a> {
    Scalar(Wrapped),
    Date(i64),
    Instant(i64, i32),
    Null,
    /// A wrapped message or container.
    Nested(&'a [u8]),
    Container(&'a str, &'a [u8]),
}

/// The first value of the bytes.
fn item<'a>(from: &mut &'a [u8]) -> Option<Item<'a>> {
    let whole = *from;
    Some(match field(from)? {
        (DATE, Raw::Varint(millis)) => Item::Date(millis.cast_signed()),
        (INSTANT_SECONDS, Raw::Varint(seconds)) => {
            let mut after = *from;
            let nanos = match field(&mut after) {
                Some((INSTANT_NANOS, Raw::Varint(nanos))) => {
                    *from = after;
                    nanos as i32
                }
                _ => 0,
            };
            Item::Instant(seconds.cast_signed(), nanos)
        }
        (EMPTY, Raw::Varint(_)) => Item::Null,
        (MESSAGE, Raw::Length(nested)) => Item::Nested(nested),
        (NAME, Raw::Length(name)) => {
            let name = std::str::from_utf8(name).ok()?;
            // The number of elements and the message of the container itself, which is empty.
            while let Some((SIZE | CONTAINER_MESSAGE, _)) = field(&mut { *from }) {
                field(from)?;
            }
            Item::Container(name, std::mem::take(from))
        }
        _ => {
            let scalar = &whole[..whole.len() - from.len()];
            Item::Scalar(Wrapped::read(Bytes::copy_from_slice(scalar))?)
        }
    })
}

/// Whether the bytes are such a value; a scalar or an entity is none.
pub(crate) fn is_one(wrapped: &[u8]) -> bool {
    let first = field(&mut { wrapped });
    matches!(first, Some((DATE | INSTANT_SECONDS | EMPTY | NAME, _)))
}

/// Elements take more memory than their bytes until the text is written.
fn check_length(wrapped: &[u8]) -> Result<(), String> {
    if wrapped.len() > ENTITY_BYTES_MAX {
        return Err(format!("a value of more than {ENTITY_BYTES_MAX} bytes cannot be converted"));
    }
    Ok(())
}

pub(crate) fn to_json(wrapped: &[u8], types: &Types) -> Result<String, String> {
    check_length(wrapped)?;
    let mut out = String::new();
    write_json(item(&mut { wrapped }).ok_or(MALFORMED)?, types, ENTITY_NESTING_MAX, &mut out)?;
    Ok(out)
}

fn deeper(depth: usize) -> Result<usize, String> {
    depth.checked_sub(1).ok_or_else(|| format!("it is nested deeper than {ENTITY_NESTING_MAX}"))
}

fn write_json(item: Item<'_>, types: &Types, depth: usize, out: &mut String) -> Result<(), String> {
    if out.len() > ENTITY_JSON_MAX {
        return Err(format!("it would be more than {ENTITY_JSON_MAX} bytes of JSON"));
    }
    let _ = match item {
        Item::Scalar(wrapped) => {
            let (name, value) = wrapped.to_named_json().ok_or("JSON cannot represent this number")?;
            write!(out, r#"{{"{name}":{value}}}"#)
        }
        Item::Date(millis) => write!(out, r#"{{"_type":"{DATE_TYPE}","{DATE_FIELD}":{millis}}}"#),
        Item::Instant(seconds, nanos) => {
            write!(out, r#"{{"_type":"{INSTANT_TYPE}","{SECONDS_FIELD}":{seconds},"{NANOS_FIELD}":{nanos}}}"#)
        }
        Item::Null => write!(out, "null"),
        Item::Nested(nested) => {
            let is_container = is_one(nested);
            let name = if is_container { NESTED_CONTAINER_FIELD } else { NESTED_MESSAGE_FIELD };
            let _ = write!(out, r#"{{"_type":"{WRAPPED_TYPE}","{name}":"#);
            if is_container {
                write_json(item_of(nested)?, types, deeper(depth)?, out)?;
            } else {
                out.push_str(&entity::to_json(nested, types)?);
            }
            write!(out, "}}")
        }
        Item::Container(name, elements) => {
            let elements = all(elements)?;
            let (count, name) = (elements.len(), Value::from(name));
            let message = CONTAINER_MESSAGE_FIELD;
            let _ = write!(out, r#"{{"_type":{name},"{SIZE_FIELD}":{count},"{message}":"","_value":["#);
            for (nth, element) in elements.into_iter().enumerate() {
                out.push_str(if nth == 0 { "" } else { "," });
                write_json(element, types, deeper(depth)?, out)?;
            }
            write!(out, "]}}")
        }
    };
    Ok(())
}

const CONTAINER_MESSAGE_FIELD: &str = "wrappedContainerMessage";

fn item_of(wrapped: &[u8]) -> Result<Item<'_>, String> {
    item(&mut { wrapped }).ok_or_else(|| MALFORMED.to_owned())
}

fn all(mut elements: &[u8]) -> Result<Vec<Item<'_>>, String> {
    let mut all = Vec::new();
    while !elements.is_empty() {
        all.push(item(&mut elements).ok_or(MALFORMED)?);
    }
    Ok(all)
}

/// Java's text of the value. Arrays, which have none, are like lists.
pub(crate) fn to_text(wrapped: &[u8], types: &Types) -> Result<String, String> {
    check_length(wrapped)?;
    let mut out = String::new();
    write_text(item_of(wrapped)?, types, ENTITY_NESTING_MAX, &mut out)?;
    Ok(out)
}

fn write_text(item: Item<'_>, types: &Types, depth: usize, out: &mut String) -> Result<(), String> {
    if out.len() > ENTITY_JSON_MAX {
        return Err(format!("it would be more than {ENTITY_JSON_MAX} bytes of text"));
    }
    match item {
        Item::Scalar(wrapped) => {
            out.push_str(&wrapped.to_text().ok_or("bytes cannot be converted to text")?);
        }
        Item::Date(millis) => out.push_str(&java_text::date(millis)),
        Item::Instant(seconds, nanos) => out.push_str(&java_text::instant(seconds, nanos)),
        Item::Null => out.push_str("null"),
        Item::Nested(nested) if is_one(nested) => {
            write_text(item_of(nested)?, types, deeper(depth)?, out)?;
        }
        Item::Nested(nested) => out.push_str(&java_text::of_entity(nested, types)?),
        Item::Container(_, elements) => {
            out.push('[');
            for (nth, element) in all(elements)?.into_iter().enumerate() {
                out.push_str(if nth == 0 { "" } else { ", " });
                write_text(element, types, deeper(depth)?, out)?;
            }
            out.push(']');
        }
    }
    Ok(())
}

/// An object with a type as protostream wraps it.
pub(super) fn wrap_value(value: &Value, types: &Types) -> Result<Bytes, String> {
    let object = value.as_object().ok_or("it is not an object with a _type")?;
    let name = object.get("_type").and_then(Value::as_str).ok_or("it has no _type")?;
    if Wrapped::is_known(name) {
        Wrapped::from_json(object, name).map(|wrapped| wrapped.write())
    } else if is_json_of_one(object, name) {
        from_json(object, name, types)
    } else {
        entity::from_json(object, name, types)
    }
}

/// Whether an object of JSON is such a value.
fn is_json_of_one(object: &Map<String, Value>, name: &str) -> bool {
    name == DATE_TYPE || name == INSTANT_TYPE || object.contains_key(SIZE_FIELD)
}

fn from_json(object: &Map<String, Value>, name: &str, types: &Types) -> Result<Bytes, String> {
    let mut out = BytesMut::new();
    put_value(object, name, types, &mut out)?;
    Ok(out.freeze())
}

fn number(object: &Map<String, Value>, name: &str) -> Result<i64, String> {
    let value = object.get(name).unwrap_or(&Value::Null);
    value.as_i64().ok_or_else(|| format!("{name} {value} is no number"))
}

fn put_number(out: &mut BytesMut, field: u32, number: i64) {
    put_tag(out, field, VARINT);
    put_varint(out, number.cast_unsigned());
}

/// The nesting of JSON is limited by its parser.
fn put_value(
    object: &Map<String, Value>,
    name: &str,
    types: &Types,
    out: &mut BytesMut,
) -> Result<(), String> {
    match name {
        DATE_TYPE => put_number(out, DATE, number(object, DATE_FIELD)?),
        INSTANT_TYPE => {
            put_number(out, INSTANT_SECONDS, number(object, SECONDS_FIELD)?);
            let nanos = i32::try_from(number(object, NANOS_FIELD)?)
                .ok()
                .filter(|nanos| (0..=999_999_999).contains(nanos));
            put_number(out, INSTANT_NANOS, nanos.ok_or("an instant has 0 to 999999999 nanoseconds")?.into());
        }
        name => {
            let none = Vec::new();
            let elements = match object.get("_value") {
                None => &none,
                Some(value) => value.as_array().ok_or("the _value of a container is an array")?,
            };
            put_tag(out, NAME, LENGTH);
            put_bytes(out, name.as_bytes());
            put_number(out, SIZE, elements.len() as i64);
            put_tag(out, CONTAINER_MESSAGE, LENGTH);
            put_bytes(out, &[]);
            elements.iter().try_for_each(|element| put_element(element, types, out))?;
        }
    }
    Ok(())
}

fn put_element(element: &Value, types: &Types, out: &mut BytesMut) -> Result<(), String> {
    let object = match element {
        Value::Null => {
            put_number(out, EMPTY, 1);
            return Ok(());
        }
        Value::Object(object) => object,
        other => return Err(format!("an element of a container is an object, not {other}")),
    };
    let Some(name) = object.get("_type").and_then(Value::as_str) else {
        let scalar = object.iter().next().filter(|_| object.len() == 1);
        let (name, value) =
            scalar.ok_or("an element of a container has a _type, or one scalar by its type")?;
        let value = Map::from_iter([("_value".to_owned(), value.clone())]);
        out.extend_from_slice(&Wrapped::from_json(&value, name)?.write());
        return Ok(());
    };
    if name == DATE_TYPE || name == INSTANT_TYPE {
        return put_value(object, name, types, out);
    }
    let nested = match name {
        WRAPPED_TYPE => {
            let nested = object.get(NESTED_CONTAINER_FIELD).or_else(|| object.get(NESTED_MESSAGE_FIELD));
            nested.ok_or("a wrapped element has a container or a message")?
        }
        _ => element,
    };
    let nested = wrap_value(nested, types)?;
    put_tag(out, MESSAGE, LENGTH);
    put_bytes(out, &nested);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::media::Format;

    fn types() -> Types {
        crate::catalog::schemas::types_of(Bytes::new())
    }

    fn list(of: &str, count: u8, elements: &[u8]) -> Bytes {
        let name = format!("org.infinispan.protostream.commons.{of}");
        let begin = [&[0xe2, 1, name.len() as u8], name.as_bytes(), &[0xd8, 1, count, 0xf2, 1, 0]].concat();
        [&begin[..], elements].concat().into()
    }

    fn uuid() -> Vec<u8> {
        let bits =
            [&[0x19][..], &0x0123_4567_89ab_cdef_u64.to_le_bytes(), &[0x21], &5_u64.to_le_bytes()].concat();
        [&[0x98, 1, 0xed, 7, 0x8a, 1, 18][..], &bits].concat()
    }

    fn nested(wrapped: &[u8]) -> Vec<u8> {
        [&[0x8a, 1, wrapped.len() as u8], wrapped].concat()
    }

    /// Bytes, JSON and text of Infinispan 16.0.7, the text of the array and the JSON of the empty list excepted.
    #[test]
    fn dates_and_containers_are_converted_as_by_protostream() {
        let json = |of: &str, count: u8, elements: &str| {
            format!(
                r#"{{"_type":"org.infinispan.protostream.commons.{of}","wrappedContainerSize":{count},"wrappedContainerMessage":"","_value":[{elements}]}}"#
            )
        };
        let wrapped = r#""_type":"org.infinispan.protostream.WrappedMessage""#;
        let ones = list("ArrayList", 1, b"\x18\x01");
        let uuid_json = r#"{"_type":"org.infinispan.protostream.commons.UUID","mostSigBitsFixed":81985529216486895,"leastSigBitsFixed":5}"#;
        let date = r#"{"_type":"org.infinispan.protostream.commons.Date","wrappedDateMillis":5}"#;
        let within = format!(
            r#"{{{wrapped},"wrappedContainerTypeName":{}}},{date},{{{wrapped},"wrappedMessage":{uuid_json}}}"#,
            json("ArrayList", 1, r#"{"int64":1}"#)
        );
        let within_bytes = [nested(&ones), b"\xb8\x01\x05".to_vec(), nested(&uuid())].concat();
        for (bytes, json, text) in [
            (
                Bytes::from_static(b"\xb8\x01\xfb\xd0\x95\xff\xbc1"),
                r#"{"_type":"org.infinispan.protostream.commons.Date","wrappedDateMillis":1700000000123}"#.to_owned(),
                "Tue Nov 14 22:13:20 UTC 2023",
            ),
            (
                Bytes::from_static(b"\xc0\x01\x80\xe2\xcf\xaa\x06\xc8\x01\x95\x9a\xef:"),
                r#"{"_type":"org.infinispan.protostream.commons.Instant","wrappedInstantSeconds":1700000000,"wrappedInstantNanos":123456789}"#.to_owned(),
                "2023-11-14T22:13:20.123456789Z",
            ),
            (
                list("ArrayList", 3, b"J\x01a(\x01@\x01"),
                json("ArrayList", 3, r#"{"string":"a"},{"int32":1},{"bool":true}"#),
                "[a, 1, true]",
            ),
            (list("HashSet", 0, b""), json("HashSet", 0, ""), "[]"),
            (list("DoubleArray", 1, b"\x09\0\0\0\0\0\0\xf8\x3f"), json("DoubleArray", 1, r#"{"double":1.5}"#), "[1.5]"),
            (list("LinkedList", 1, b"\xd0\x01\x01"), json("LinkedList", 1, "null"), "[null]"),
            (
                list("ArrayList", 3, &within_bytes),
                json("ArrayList", 3, &within),
                "[[1], Thu Jan 01 00:00:00 UTC 1970, 01234567-89ab-cdef-0000-000000000005]",
            ),
        ] {
            let types = types();
            assert!(is_one(&bytes));
            let made = Format::Protostream.convert(bytes.clone(), &Format::JSON, &types).unwrap();
            assert_eq!(made, json.as_bytes());
            assert_eq!(Format::JSON.convert(made, &Format::Protostream, &types), Ok(bytes.clone()), "{json}");
            assert_eq!(Format::Protostream.convert(bytes, &Format::TEXT, &types).as_deref(), Ok(text.as_bytes()));
        }
    }

    #[test]
    fn invalid_containers_are_refused() {
        let of = |value: &str| {
            let list = "org.infinispan.protostream.commons.ArrayList";
            let json = format!(r#"{{"_type":"{list}","wrappedContainerSize":1,"_value":{value}}}"#);
            Format::JSON.convert(json.into(), &Format::Protostream, &types())
        };
        assert_eq!(of(r#"[{"int32":1}]"#), Ok(list("ArrayList", 1, b"(\x01")));
        for wrong in [
            "1",
            "[1]",
            r#"[{"int32":1,"int64":1}]"#,
            r#"[{"int32":"x"}]"#,
            r#"[{"number":1}]"#,
            r#"[{"_type":"org.infinispan.protostream.WrappedMessage"}]"#,
            r#"[{"_type":"shop.Missing"}]"#,
            r#"[{"_type":"org.infinispan.protostream.commons.Date"}]"#,
            r#"[{"_type":"org.infinispan.protostream.commons.Instant","wrappedInstantSeconds":1,"wrappedInstantNanos":-1}]"#,
        ] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
        let mut deep = list("ArrayList", 0, b"");
        for _ in 0..=ENTITY_NESTING_MAX {
            let mut outer = BytesMut::from(&list("ArrayList", 1, b"")[..]);
            put_tag(&mut outer, MESSAGE, LENGTH);
            put_bytes(&mut outer, &deep);
            deep = outer.freeze();
        }
        let long = list("ArrayList", 0, &vec![0xd0; ENTITY_BYTES_MAX]);
        for to in [Format::JSON, Format::TEXT] {
            assert!(Format::Protostream.convert(deep.clone(), &to, &types()).is_err());
            let error = Format::Protostream.convert(long.clone(), &to, &types()).unwrap_err().to_string();
            assert!(error.contains("more than 4194304 bytes"), "{error}");
        }
    }
}
