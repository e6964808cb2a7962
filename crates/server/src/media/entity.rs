//! Conversion between JSON and entities: protobuf messages in the form in which Java's clients wrap them
//! (`application/x-protostream`, facts section 6.1). The JSON is Infinispan's.
//!
//! A wrapped entity is a type, by number or name, and a message or an enum's number. Its JSON is an object with the type in
//! `_type` and the fields by names. Behaviour of protostream 6.0.7, verified with it:
//!
//! * A written field is in the JSON, also with its default value. Here fields are in the order of their numbers.
//! * A nested message has its type in the JSON if the field is repeated or the type has a number.
//! * An entity is written with its type's number if the type has one (`@TypeId` in the comment before it), else with its name.
//! * Repeated numbers are not packed, because not all of its generated readers accept packed numbers.
//!
//! Unlike protostream, this reader also accepts packed numbers and maps of messages.

use std::collections::BTreeMap;
use std::fmt::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{BufMut, Bytes, BytesMut};
use consort_protostream::wire::{
    EIGHT, ENUM, FOUR, LENGTH, MESSAGE, Raw, TYPE_ID, TYPE_NAME, VARINT, field, packed, put_bytes, put_tag,
    put_varint, unzigzag, zigzag,
};
use consort_protostream::wrapped::{java_double, java_float};
use protox::prost_reflect::{EnumDescriptor, FieldDescriptor, Kind, MessageDescriptor};
use serde_json::{Map, Value};

use super::types::Types;
use crate::limits::{ENTITY_BYTES_MAX, ENTITY_JSON_MAX, ENTITY_NESTING_MAX};

const MALFORMED: &str = "it is not a protobuf message";

pub(crate) fn to_json(mut wrapped: &[u8], types: &Types) -> Result<String, String> {
    if wrapped.len() > ENTITY_BYTES_MAX {
        return Err(format!("an entity of more than {ENTITY_BYTES_MAX} bytes cannot be converted to JSON"));
    }
    let (mut name, mut out) = (None, String::new());
    while !wrapped.is_empty() {
        match field(&mut wrapped).ok_or(MALFORMED)? {
            (TYPE_NAME, Raw::Length(text)) => {
                name = Some(std::str::from_utf8(text).map_err(|_| MALFORMED)?.to_owned());
            }
            (TYPE_ID, Raw::Varint(id)) => {
                let known = u32::try_from(id).ok().and_then(|id| types.name_of(id));
                name = Some(known.ok_or_else(|| format!("there is no schema with TypeId {id}"))?.to_owned());
            }
            (MESSAGE, Raw::Length(message)) if out.is_empty() => {
                let name = name.as_ref().ok_or(MALFORMED)?;
                let descriptor = types.message(name).ok_or_else(|| unknown_type(name))?;
                write_message_json(message, &descriptor, true, types, ENTITY_NESTING_MAX, &mut out)?;
            }
            (ENUM, Raw::Varint(number)) if out.is_empty() => {
                let name = name.as_ref().ok_or(MALFORMED)?;
                let descriptor = types.enumeration(name).ok_or_else(|| unknown_type(name))?;
                out = format!("{{\"_type\":{},\"_value\":", json_string(name));
                write_enum_json(number as i32, &descriptor, &mut out);
                out.push('}');
            }
            _ => return Err("it is not a number, a text or an entity".to_owned()),
        }
    }
    if out.is_empty() { Err(MALFORMED.to_owned()) } else { Ok(out) }
}

fn unknown_type(name: &str) -> String {
    format!("there is no schema for _type '{name}'")
}

fn json_string(text: &str) -> String {
    Value::from(text).to_string()
}

fn write_message_json(
    mut message: &[u8],
    descriptor: &MessageDescriptor,
    with_type: bool,
    types: &Types,
    depth: usize,
    out: &mut String,
) -> Result<(), String> {
    let deeper =
        depth.checked_sub(1).ok_or_else(|| format!("it is nested deeper than {ENTITY_NESTING_MAX}"))?;
    // The values of each field.
    let mut fields: BTreeMap<u32, Vec<Raw<'_>>> = BTreeMap::new();
    while !message.is_empty() {
        let (number, raw) = field(&mut message).ok_or(MALFORMED)?;
        // Fields of a newer schema are left out.
        if descriptor.get_field(number).is_some() {
            fields.entry(number).or_default().push(raw);
        }
    }
    out.push('{');
    let mut separator = "";
    if with_type {
        out.push_str("\"_type\":");
        out.push_str(&json_string(descriptor.full_name()));
        separator = ",";
    }
    for (number, all) in fields {
        let Some(descriptor) = descriptor.get_field(number) else { continue };
        let _ = write!(out, "{separator}{}:", json_string(descriptor.name()));
        separator = ",";
        if descriptor.is_map() {
            write_map_json(&all, &descriptor, types, deeper, out)?;
        } else if descriptor.is_list() {
            out.push('[');
            let mut separator = "";
            for raw in unpacked(all, &descriptor.kind())? {
                out.push_str(separator);
                separator = ",";
                write_value_json(raw, &descriptor.kind(), true, types, deeper, out)?;
            }
            out.push(']');
        } else if let Some(last) = all.into_iter().next_back() {
            write_value_json(last, &descriptor.kind(), false, types, deeper, out)?;
        }
    }
    out.push('}');
    Ok(())
}

fn unpacked<'a>(all: Vec<Raw<'a>>, kind: &Kind) -> Result<Vec<Raw<'a>>, String> {
    if matches!(kind, Kind::String | Kind::Bytes | Kind::Message(_)) {
        return Ok(all);
    }
    let mut each = Vec::new();
    for raw in all {
        let Raw::Length(mut bytes) = raw else {
            each.push(raw);
            continue;
        };
        while !bytes.is_empty() {
            let wire = match kind {
                Kind::Double | Kind::Fixed64 | Kind::Sfixed64 => EIGHT,
                Kind::Float | Kind::Fixed32 | Kind::Sfixed32 => FOUR,
                _ => VARINT,
            };
            each.push(packed(&mut bytes, wire).ok_or(MALFORMED)?);
        }
    }
    Ok(each)
}

fn write_map_json(
    all: &[Raw<'_>],
    descriptor: &FieldDescriptor,
    types: &Types,
    depth: usize,
    out: &mut String,
) -> Result<(), String> {
    let Kind::Message(entry) = descriptor.kind() else { return Err(MALFORMED.to_owned()) };
    let (key_kind, value_kind) = (entry.map_entry_key_field().kind(), entry.map_entry_value_field().kind());
    // The last entry with a key counts.
    let mut entries: BTreeMap<String, Raw<'_>> = BTreeMap::new();
    for raw in all {
        let Raw::Length(mut entry) = *raw else { return Err(MALFORMED.to_owned()) };
        let (mut key, mut value) = (default_of(&key_kind), default_of(&value_kind));
        while !entry.is_empty() {
            match field(&mut entry).ok_or(MALFORMED)? {
                (1, raw) => key = raw,
                (2, raw) => value = raw,
                _ => {}
            }
        }
        let mut name = String::new();
        write_value_json(key, &key_kind, false, types, depth, &mut name)?;
        entries.insert(if name.starts_with('"') { name } else { format!("\"{name}\"") }, value);
    }
    out.push('{');
    let mut separator = "";
    for (name, value) in entries {
        let _ = write!(out, "{separator}{name}:");
        separator = ",";
        write_value_json(value, &value_kind, false, types, depth, out)?;
    }
    out.push('}');
    Ok(())
}

fn default_of(kind: &Kind) -> Raw<'static> {
    match kind {
        Kind::Double | Kind::Fixed64 | Kind::Sfixed64 => Raw::Eight(0),
        Kind::Float | Kind::Fixed32 | Kind::Sfixed32 => Raw::Four(0),
        Kind::String | Kind::Bytes | Kind::Message(_) => Raw::Length(&[]),
        _ => Raw::Varint(0),
    }
}

fn write_value_json(
    raw: Raw<'_>,
    kind: &Kind,
    is_repeated: bool,
    types: &Types,
    depth: usize,
    out: &mut String,
) -> Result<(), String> {
    if out.len() > ENTITY_JSON_MAX {
        return Err(format!("it would be more than {ENTITY_JSON_MAX} bytes of JSON"));
    }
    let _ = match (kind, raw) {
        (Kind::Double, Raw::Eight(bits)) => write!(out, "{}", json_number(java_double(f64::from_bits(bits)))),
        (Kind::Float, Raw::Four(bits)) => write!(out, "{}", json_number(java_float(f32::from_bits(bits)))),
        (Kind::Int32, Raw::Varint(number)) => write!(out, "{}", number as i32),
        (Kind::Int64, Raw::Varint(number)) => write!(out, "{}", number.cast_signed()),
        (Kind::Uint32, Raw::Varint(number)) => write!(out, "{}", number as u32),
        (Kind::Uint64, Raw::Varint(number)) => write!(out, "{number}"),
        (Kind::Sint32, Raw::Varint(number)) => write!(out, "{}", unzigzag(number) as i32),
        (Kind::Sint64, Raw::Varint(number)) => write!(out, "{}", unzigzag(number)),
        (Kind::Fixed32, Raw::Four(number)) => write!(out, "{number}"),
        (Kind::Fixed64, Raw::Eight(number)) => write!(out, "{number}"),
        (Kind::Sfixed32, Raw::Four(number)) => write!(out, "{}", number.cast_signed()),
        (Kind::Sfixed64, Raw::Eight(number)) => write!(out, "{}", number.cast_signed()),
        (Kind::Bool, Raw::Varint(number)) => write!(out, "{}", number != 0),
        (Kind::String, Raw::Length(bytes)) => write!(out, "{}", json_string(&String::from_utf8_lossy(bytes))),
        (Kind::Bytes, Raw::Length(bytes)) => write!(out, "\"{}\"", STANDARD.encode(bytes)),
        (Kind::Enum(descriptor), Raw::Varint(number)) => {
            write_enum_json(number as i32, descriptor, out);
            Ok(())
        }
        (Kind::Message(descriptor), Raw::Length(message)) => {
            let with_type = is_repeated || types.id_of(descriptor.full_name()).is_some();
            write_message_json(message, descriptor, with_type, types, depth, out)?;
            Ok(())
        }
        _ => return Err(format!("a value does not have the schema's type {kind:?}")),
    };
    Ok(())
}

/// NaN and infinities become strings, because JSON has no such numbers.
fn json_number(java: String) -> String {
    if java.ends_with(|last: char| last.is_ascii_digit()) { java } else { format!("\"{java}\"") }
}

fn write_enum_json(number: i32, descriptor: &EnumDescriptor, out: &mut String) {
    let _ = match descriptor.get_value(number) {
        Some(value) => write!(out, "{}", json_string(value.name())),
        None => write!(out, "{number}"),
    };
}

pub(crate) fn from_json(object: &Map<String, Value>, name: &str, types: &Types) -> Result<Bytes, String> {
    let mut out = BytesMut::new();
    match types.id_of(name) {
        Some(id) => {
            put_tag(&mut out, TYPE_ID, VARINT);
            put_varint(&mut out, id.into());
        }
        None => {
            put_tag(&mut out, TYPE_NAME, LENGTH);
            put_bytes(&mut out, name.as_bytes());
        }
    }
    if let Some(descriptor) = types.enumeration(name) {
        let value = object.get("_value").ok_or("it has no _value")?;
        put_tag(&mut out, ENUM, VARINT);
        put_varint(&mut out, i64::from(enum_number(value, &descriptor)?).cast_unsigned());
        return Ok(out.freeze());
    }
    let descriptor = types.message(name).ok_or_else(|| unknown_type(name))?;
    let mut body = BytesMut::new();
    put_message(object, &descriptor, &mut body)?;
    put_tag(&mut out, MESSAGE, LENGTH);
    put_bytes(&mut out, &body);
    Ok(out.freeze())
}

fn put_message(
    object: &Map<String, Value>,
    descriptor: &MessageDescriptor,
    out: &mut BytesMut,
) -> Result<(), String> {
    let named = |name: &String| descriptor.get_field_by_name(name);
    if let Some((unknown_type, _)) = object.iter().find(|(name, _)| *name != "_type" && named(name).is_none())
    {
        return Err(format!("{} has no field '{unknown_type}' in its schema", descriptor.full_name()));
    }
    for field in descriptor.fields() {
        match object.get(field.name()).unwrap_or(&Value::Null) {
            Value::Null if field.is_required() => {
                return Err(format!(
                    "{} has no '{}', which its schema requires",
                    descriptor.full_name(),
                    field.name()
                ));
            }
            Value::Null => {}
            Value::Object(entries) if field.is_map() => put_map(entries, &field, out)?,
            Value::Array(all) if field.is_list() => {
                for value in all {
                    put_value(value, &field, out)?;
                }
            }
            value => put_value(value, &field, out)?,
        }
    }
    Ok(())
}

fn put_map(entries: &Map<String, Value>, field: &FieldDescriptor, out: &mut BytesMut) -> Result<(), String> {
    let Kind::Message(descriptor) = field.kind() else { return Err(type_error(&Value::Null, field)) };
    for (name, value) in entries {
        let mut entry = BytesMut::new();
        let key = match descriptor.map_entry_key_field().kind() {
            Kind::Bool => {
                Value::Bool(name.parse().map_err(|_| type_error(&Value::from(name.as_str()), field))?)
            }
            _ => Value::from(name.as_str()),
        };
        put_value(&key, &descriptor.map_entry_key_field(), &mut entry)?;
        put_value(value, &descriptor.map_entry_value_field(), &mut entry)?;
        put_tag(out, field.number(), LENGTH);
        put_bytes(out, &entry);
    }
    Ok(())
}

fn type_error(value: &Value, field: &FieldDescriptor) -> String {
    const SHOWN_MAX: usize = 60;
    let mut shown: String = value.to_string().chars().take(SHOWN_MAX).collect();
    if value.to_string().chars().nth(SHOWN_MAX).is_some() {
        shown.push('…');
    }
    format!("{shown} is not a value of '{}', which is {:?}", field.name(), field.kind())
}

fn put_value(value: &Value, field: &FieldDescriptor, out: &mut BytesMut) -> Result<(), String> {
    let (kind, number) = (field.kind(), field.number());
    let refused = || type_error(value, field);
    // Numbers may be written as strings, and strings as numbers.
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Number(_) | Value::Bool(_) => value.to_string(),
        _ => String::new(),
    };
    let signed = |low: i64, high: i64| {
        text.parse::<i64>().ok().filter(|number| (low..=high).contains(number)).ok_or_else(refused)
    };
    let unsigned = |high: u64| text.parse::<u64>().ok().filter(|number| *number <= high).ok_or_else(refused);
    let (small, large) = ((i32::MIN.into(), i32::MAX.into()), (i64::MIN, i64::MAX));
    let varint = match &kind {
        Kind::Int32 => signed(small.0, small.1)?.cast_unsigned(),
        Kind::Int64 => signed(large.0, large.1)?.cast_unsigned(),
        Kind::Uint32 => unsigned(u32::MAX.into())?,
        Kind::Uint64 => unsigned(u64::MAX)?,
        Kind::Sint32 => zigzag(signed(small.0, small.1)?),
        Kind::Sint64 => zigzag(signed(large.0, large.1)?),
        Kind::Bool => u64::from(value.as_bool().ok_or_else(refused)?),
        Kind::Enum(descriptor) => i64::from(enum_number(value, descriptor)?).cast_unsigned(),
        Kind::Double | Kind::Fixed64 | Kind::Sfixed64 => {
            let bits = match &kind {
                Kind::Double => text.parse::<f64>().map_err(|_| refused())?.to_bits(),
                Kind::Fixed64 => unsigned(u64::MAX)?,
                _ => signed(large.0, large.1)?.cast_unsigned(),
            };
            put_tag(out, number, EIGHT);
            out.put_u64_le(bits);
            return Ok(());
        }
        Kind::Float | Kind::Fixed32 | Kind::Sfixed32 => {
            let bits = match &kind {
                Kind::Float => text.parse::<f32>().map_err(|_| refused())?.to_bits(),
                Kind::Fixed32 => unsigned(u32::MAX.into())? as u32,
                _ => signed(small.0, small.1)? as u32,
            };
            put_tag(out, number, FOUR);
            out.put_u32_le(bits);
            return Ok(());
        }
        Kind::String | Kind::Bytes | Kind::Message(_) => {
            let bytes = match (&kind, value) {
                (Kind::Message(descriptor), Value::Object(object))
                    if !field.is_map() && !field.is_group() =>
                {
                    let mut message = BytesMut::new();
                    put_message(object, descriptor, &mut message)?;
                    message.freeze()
                }
                (Kind::String, Value::String(_) | Value::Number(_) | Value::Bool(_)) => {
                    text.into_bytes().into()
                }
                (Kind::Bytes, Value::String(text)) => STANDARD.decode(text).map_err(|_| refused())?.into(),
                _ => return Err(refused()),
            };
            put_tag(out, number, LENGTH);
            put_bytes(out, &bytes);
            return Ok(());
        }
    };
    put_tag(out, number, VARINT);
    put_varint(out, varint);
    Ok(())
}

fn enum_number(value: &Value, descriptor: &EnumDescriptor) -> Result<i32, String> {
    let known = match value {
        Value::String(name) => descriptor.get_value_by_name(name).map(|known| known.number()),
        Value::Number(number) => number.as_i64().and_then(|number| i32::try_from(number).ok()),
        _ => None,
    };
    known.ok_or_else(|| format!("{value} is not a value of {}", descriptor.full_name()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::schemas;

    const SCHEMA: &str = "syntax = \"proto3\";\npackage shop;\n\
        /**\n * A colour.\n * @TypeId(1000050)\n */\nenum Color { RED = 0; GREEN = 5; }\n\
        /** @TypeId(1000042) */\nmessage Author { string name = 1; int32 born = 2; }\n\
        message P { int32 x = 1; }\n\
        message Book { string title = 1; int32 pages = 2; Author author = 3; repeated Author others = 4;\n\
        repeated int32 years = 5; Color color = 6; bytes cover = 7; int64 isbn = 8; double price = 9; float weight = 10;\n\
        bool sold = 11; uint64 big = 12; sint32 s = 13; fixed64 f = 14; repeated string tags = 15;\n\
        repeated Color colors = 16; string camelCase = 17; string snake_case = 18; map<string, int32> counts = 19;\n\
        map<int32, Author> by = 20; P p = 21; repeated P ps = 22; map<bool, P> yes = 23; Book next = 24;\n\
        sfixed32 sf = 25; repeated double ds = 26; }";

    fn types() -> Types {
        schemas::types_of(Bytes::from_static(SCHEMA.as_bytes()))
    }

    fn bytes(hex: &str) -> Bytes {
        let digit = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        (0..hex.len()).step_by(2).map(digit).collect::<Vec<u8>>().into()
    }

    fn read(json: &str) -> Result<Bytes, String> {
        let value: Value = serde_json::from_str(json).unwrap();
        let name = value["_type"].as_str().unwrap().to_owned();
        from_json(value.as_object().unwrap(), &name, &types())
    }

    /// Bytes and JSON that protostream 6.0.7 converts to each other.
    #[test]
    fn entities_are_converted_as_by_protostream() {
        for (hex, json) in [
            (
                "82010973686f702e426f6f6b8a01090a04456d6d6110da03",
                r#"{"_type":"shop.Book","title":"Emma","pages":474}"#,
            ),
            ("9801ea843d8a01090a044a616e6510ef0d", r#"{"_type":"shop.Author","name":"Jane","born":1775}"#),
            ("82010973686f702e426f6f6b8a0100", r#"{"_type":"shop.Book"}"#),
            ("9801f2843d900105", r#"{"_type":"shop.Color","_value":"GREEN"}"#),
            (
                "82010973686f702e426f6f6b8a01109a01050a016110019a01050a01621002",
                r#"{"_type":"shop.Book","counts":{"a":1,"b":2}}"#,
            ),
            (
                "82010973686f702e426f6f6b8a01081a060a044a616e65",
                r#"{"_type":"shop.Book","author":{"_type":"shop.Author","name":"Jane"}}"#,
            ),
            (
                "82010973686f702e426f6f6b8a013f22030a0161220210022801280228ac0230053a0201024081808080808080\
                 1049000000000000f83f55cdcccc3d580168057107000000000000007a01787a00",
                "{\"_type\":\"shop.Book\",\"others\":[{\"_type\":\"shop.Author\",\"name\":\"a\"},\
                 {\"_type\":\"shop.Author\",\"born\":2}],\"years\":[1,2,300],\"color\":\"GREEN\",\"cover\":\"AQI=\",\
                 \"isbn\":9007199254740993,\"price\":1.5,\"weight\":0.1,\"sold\":true,\"s\":-3,\"f\":7,\"tags\":[\"x\",\"\"]}",
            ),
        ] {
            let wrapped = read(json).unwrap();
            assert_eq!(wrapped, bytes(hex), "{json}");
            assert_eq!(to_json(&wrapped, &types()).as_deref(), Ok(json));
        }
        // Fields with default values that are written are in the JSON.
        let defaults = bytes("82010973686f702e426f6f6b8a01040a001000");
        assert_eq!(to_json(&defaults, &types()).unwrap(), r#"{"_type":"shop.Book","title":"","pages":0}"#);
    }

    #[test]
    fn json_of_an_entity_is_read_back() {
        for json in [
            r#"{"_type":"shop.Book","colors":["RED","GREEN",7],"camelCase":"c","snake_case":"s"}"#,
            r#"{"_type":"shop.Book","by":{"-1":{"_type":"shop.Author","name":"n"}}}"#,
            r#"{"_type":"shop.Book","p":{"x":1},"ps":[{"_type":"shop.P","x":1},{"_type":"shop.P"}]}"#,
            r#"{"_type":"shop.Book","yes":{"false":{"x":1},"true":{}}}"#,
            r#"{"_type":"shop.Book","price":"NaN","sf":-7,"ds":[1.0,-0.0,1.0E300,"-Infinity"]}"#,
            r#"{"_type":"shop.Book","next":{"next":{"title":"a\u0007\"é"}}}"#,
        ] {
            assert_eq!(to_json(&read(json).unwrap(), &types()).as_deref(), Ok(json));
        }
        // Other JSON for the same entities.
        for (json, same) in [
            (r#"{"title":"x","_type":"shop.Book"}"#, r#"{"_type":"shop.Book","title":"x"}"#),
            (
                r#"{"_type":"shop.Book","title":7,"pages":"7","years":7,"p":null,"ps":[]}"#,
                r#"{"_type":"shop.Book","title":"7","pages":7,"years":[7]}"#,
            ),
        ] {
            assert_eq!(to_json(&read(json).unwrap(), &types()).as_deref(), Ok(same));
        }
        // Packed, and a field that the schema does not have.
        let packed = bytes("82010973686f702e426f6f6b8a01082a03010203f83f07");
        assert_eq!(to_json(&packed, &types()).unwrap(), r#"{"_type":"shop.Book","years":[1,2,3]}"#);
    }

    #[test]
    fn json_that_does_not_match_the_schema_is_refused_by_name() {
        for (json, why) in [
            (r#"{"_type":"shop.Nope"}"#, "there is no schema for _type 'shop.Nope'"),
            (r#"{"_type":"shop.Book","nope":1}"#, "shop.Book has no field 'nope' in its schema"),
            (r#"{"_type":"shop.Book","author":{"x":1}}"#, "shop.Author has no field 'x' in its schema"),
            (r#"{"_type":"shop.Book","pages":"x"}"#, "\"x\" is not a value of 'pages', which is int32"),
            (r#"{"_type":"shop.Book","pages":1.5}"#, "1.5 is not a value of 'pages', which is int32"),
            (r#"{"_type":"shop.Book","pages":2147483648}"#, "2147483648 is not a value of 'pages'"),
            (r#"{"_type":"shop.Book","pages":[7]}"#, "[7] is not a value of 'pages'"),
            (r#"{"_type":"shop.Book","author":7}"#, "7 is not a value of 'author', which is shop.Author"),
            (r#"{"_type":"shop.Book","color":"BLUE"}"#, "\"BLUE\" is not a value of shop.Color"),
            (r#"{"_type":"shop.Book","sold":"true"}"#, "\"true\" is not a value of 'sold', which is bool"),
            (r#"{"_type":"shop.Book","cover":"?"}"#, "\"?\" is not a value of 'cover', which is bytes"),
            (r#"{"_type":"shop.Book","counts":7}"#, "7 is not a value of 'counts'"),
            (r#"{"_type":"shop.Color"}"#, "it has no _value"),
        ] {
            let error = read(json).unwrap_err();
            assert!(error.starts_with(why), "{json}: {error}");
        }
    }

    #[test]
    fn invalid_entities_are_refused() {
        let whole = bytes("82010973686f702e426f6f6b8a01090a04456d6d6110da03");
        let type_alone = 12;
        for length in (1..whole.len()).filter(|length| *length != type_alone) {
            assert!(to_json(&whole[..length], &types()).is_err(), "{length}");
        }
        for hex in ["8a0100", "98018a843d8a0100", "d80102980100", "82010973686f702e426f6f6b8a01020b0c", "00"]
        {
            assert!(to_json(&bytes(hex), &types()).is_err(), "{hex}");
        }
        // A deeply nested message.
        let mut nested = BytesMut::new();
        for _ in 0..1_000 {
            let inner = nested.split().freeze();
            put_tag(&mut nested, 24, LENGTH);
            put_bytes(&mut nested, &inner);
        }
        let mut wrapped = BytesMut::from(&bytes("82010973686f702e426f6f6b")[..]);
        put_tag(&mut wrapped, MESSAGE, LENGTH);
        put_bytes(&mut wrapped, &nested);
        let error = to_json(&wrapped, &types()).unwrap_err();
        assert!(error.contains("nested deeper"), "{error}");
    }
}
