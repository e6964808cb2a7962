//! Scalars as Java's clients wrap them (`application/x-protostream`, facts section 6.1): a message with one field whose
//! number is the type.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use serde_json::{Map, Value, json};

use crate::wire::{put_bytes, put_varint, unzigzag, varint, zigzag};

/// A wrapped scalar.
#[derive(Clone, PartialEq, Debug)]
pub enum Wrapped {
    /// 64 bits.
    Double(f64),
    /// 32 bits.
    Float(f32),
    /// A signed integer of this field, which determines the encoding.
    Integer(u32, i64),
    /// An unsigned integer of this field.
    Unsigned(u32, u64),
    /// A boolean.
    Bool(bool),
    /// A string.
    Text(String),
    /// Bytes.
    Bytes(Bytes),
    /// A character.
    Char(char),
}

/// Field of `double`.
pub const DOUBLE: u32 = 1;
/// Field of `float`.
pub const FLOAT: u32 = 2;
/// Field of `int64`.
pub const INT64: u32 = 3;
/// Field of `uint64`.
pub const UINT64: u32 = 4;
/// Field of `int32`.
pub const INT32: u32 = 5;
/// Field of `fixed64`.
pub const FIXED64: u32 = 6;
/// Field of `fixed32`.
pub const FIXED32: u32 = 7;
/// Field of `bool`.
pub const BOOL: u32 = 8;
/// Field of `text`.
pub const TEXT: u32 = 9;
/// Field of `bytes`.
pub const BYTES: u32 = 10;
/// Field of `uint32`.
pub const UINT32: u32 = 11;
/// Field of `sfixed32`.
pub const SFIXED32: u32 = 12;
/// Field of `sfixed64`.
pub const SFIXED64: u32 = 13;
/// Field of `sint32`.
pub const SINT32: u32 = 14;
/// Field of `sint64`.
pub const SINT64: u32 = 15;
/// Field of `char`.
pub const CHAR: u32 = 20;
/// Field of `short`.
pub const SHORT: u32 = 21;
/// Field of `byte`.
pub const BYTE: u32 = 22;

/// For JSON.
const TYPES: &[(u32, &str)] = &[
    (DOUBLE, "double"),
    (FLOAT, "float"),
    (INT64, "int64"),
    (UINT64, "uint64"),
    (INT32, "int32"),
    (FIXED64, "fixed64"),
    (FIXED32, "fixed32"),
    (BOOL, "bool"),
    (TEXT, "string"),
    (BYTES, "bytes"),
    (UINT32, "uint32"),
    (SFIXED32, "sfixed32"),
    (SFIXED64, "sfixed64"),
    (SINT32, "sint32"),
    (SINT64, "sint64"),
];

#[derive(PartialEq, Eq)]
enum Wire {
    Varint,
    Eight,
    Length,
    Four,
}

const fn wire(field: u32) -> Option<Wire> {
    Some(match field {
        INT64 | UINT64 | INT32 | BOOL | UINT32 | SINT32 | SINT64 | CHAR | SHORT | BYTE => Wire::Varint,
        DOUBLE | FIXED64 | SFIXED64 => Wire::Eight,
        TEXT | BYTES => Wire::Length,
        FLOAT | FIXED32 | SFIXED32 => Wire::Four,
        _ => return None,
    })
}

impl Wrapped {
    /// Decodes a scalar; `None` for anything else, such as a message.
    pub fn read(mut from: Bytes) -> Option<Self> {
        let tag = varint(&mut from)?;
        let field = u32::try_from(tag >> 3).ok()?;
        let wire = wire(field)?;
        let is_written_so = tag & 7
            == match wire {
                Wire::Varint => 0,
                Wire::Eight => 1,
                Wire::Length => 2,
                Wire::Four => 5,
            };
        if !is_written_so {
            return None;
        }
        let read = match wire {
            Wire::Varint => {
                let number = varint(&mut from)?;
                match field {
                    BOOL => Self::Bool(number != 0),
                    UINT64 => Self::Unsigned(field, number),
                    UINT32 => Self::Unsigned(field, u64::from(number as u32)),
                    SINT32 | SINT64 => Self::Integer(field, unzigzag(number)),
                    CHAR => Self::Char(char::from_u32(u32::try_from(number).ok()?)?),
                    INT64 => Self::Integer(field, number.cast_signed()),
                    _ => Self::Integer(field, i64::from(number as i32)),
                }
            }
            Wire::Eight => match (field, from.try_get_u64_le().ok()?) {
                (DOUBLE, bits) => Self::Double(f64::from_bits(bits)),
                (SFIXED64, bits) => Self::Integer(field, bits.cast_signed()),
                (_, bits) => Self::Unsigned(field, bits),
            },
            Wire::Four => match (field, from.try_get_u32_le().ok()?) {
                (FLOAT, bits) => Self::Float(f32::from_bits(bits)),
                (SFIXED32, bits) => Self::Integer(field, i64::from(bits.cast_signed())),
                (_, bits) => Self::Unsigned(field, bits.into()),
            },
            Wire::Length => {
                let length = usize::try_from(varint(&mut from)?).ok()?;
                if from.len() != length {
                    return None;
                }
                let bytes = std::mem::take(&mut from);
                if field == TEXT {
                    Self::Text(String::from_utf8(bytes.into()).ok()?)
                } else {
                    Self::Bytes(bytes)
                }
            }
        };
        from.is_empty().then_some(read)
    }

    const fn field(&self) -> u32 {
        match self {
            Self::Double(_) => DOUBLE,
            Self::Float(_) => FLOAT,
            Self::Integer(field, _) | Self::Unsigned(field, _) => *field,
            Self::Bool(_) => BOOL,
            Self::Text(_) => TEXT,
            Self::Bytes(_) => BYTES,
            Self::Char(_) => CHAR,
        }
    }

    /// Encodes it as clients do.
    pub fn write(&self) -> Bytes {
        let mut out = BytesMut::new();
        let field = self.field();
        let wire = match wire(field) {
            Some(Wire::Eight) => 1,
            Some(Wire::Length) => 2,
            Some(Wire::Four) => 5,
            Some(Wire::Varint) | None => 0,
        };
        put_varint(&mut out, u64::from(field << 3 | wire));
        match self {
            Self::Double(number) => out.put_f64_le(*number),
            Self::Float(number) => out.put_f32_le(*number),
            Self::Integer(SFIXED32, number) => out.put_i32_le(*number as i32),
            Self::Integer(SFIXED64, number) => out.put_i64_le(*number),
            Self::Integer(SINT32 | SINT64, number) => put_varint(&mut out, zigzag(*number)),
            Self::Integer(_, number) => put_varint(&mut out, number.cast_unsigned()),
            Self::Unsigned(FIXED32, number) => out.put_u32_le(*number as u32),
            Self::Unsigned(FIXED64, number) => out.put_u64_le(*number),
            Self::Unsigned(_, number) => put_varint(&mut out, *number),
            Self::Bool(is) => out.put_u8((*is).into()),
            Self::Text(text) => put_bytes(&mut out, text.as_bytes()),
            Self::Bytes(bytes) => put_bytes(&mut out, bytes),
            Self::Char(one) => put_varint(&mut out, u64::from(u32::from(*one))),
        }
        out.freeze()
    }

    /// Formats it like Java; `None` for bytes.
    pub fn to_text(&self) -> Option<String> {
        Some(match self {
            Self::Double(number) => java_double(*number),
            Self::Float(number) => java_float(*number),
            Self::Integer(_, number) => number.to_string(),
            // Java has no unsigned numbers.
            Self::Unsigned(UINT32 | FIXED32, number) => (*number as u32).cast_signed().to_string(),
            Self::Unsigned(_, number) => number.cast_signed().to_string(),
            Self::Bool(is) => is.to_string(),
            Self::Text(text) => text.clone(),
            Self::Char(one) => one.to_string(),
            Self::Bytes(_) => return None,
        })
    }

    /// Returns Infinispan's JSON: `{"_type":"string","_value":"…"}`. `None` for numbers that JSON lacks.
    pub fn to_json(&self) -> Option<String> {
        let (name, value) = self.to_named_json()?;
        Some(format!(r#"{{"_type":"{name}","_value":{value}}}"#))
    }

    /// Returns type and value of Infinispan's JSON. `None` for numbers that JSON lacks.
    pub fn to_named_json(&self) -> Option<(&'static str, String)> {
        // Smaller integers are `int32` there.
        let name = TYPES.iter().find(|(field, _)| *field == self.field()).map_or("int32", |(_, name)| *name);
        let value = match self {
            Self::Double(number) => number.is_finite().then(|| java_double(*number))?,
            Self::Float(number) => number.is_finite().then(|| java_float(*number))?,
            Self::Integer(_, number) => number.to_string(),
            Self::Unsigned(_, number) => number.to_string(),
            Self::Bool(is) => is.to_string(),
            Self::Text(text) => json!(text).to_string(),
            Self::Bytes(bytes) => json!(STANDARD.encode(bytes)).to_string(),
            Self::Char(one) => u32::from(*one).to_string(),
        };
        Some((name, value))
    }

    /// Returns whether a scalar type has this name.
    pub fn is_known(name: &str) -> bool {
        TYPES.iter().any(|(_, known)| *known == name)
    }

    /// Parses JSON of a type.
    pub fn from_json(object: &Map<String, Value>, name: &str) -> Result<Self, String> {
        let known = TYPES.iter().find(|(_, known)| *known == name);
        let (field, _) = *known.ok_or_else(|| format!("'{name}' is no number, no text and no bytes"))?;
        let value = object.get("_value").ok_or("missing _value")?;
        let wrong = || format!("_value {value} is no {name}");
        // Numbers may be given as strings.
        let text = match value {
            Value::String(text) => text.clone(),
            value => value.to_string(),
        };
        let ranged = |low: i64, high: i64| {
            text.parse().ok().filter(|number| (low..=high).contains(number)).ok_or_else(wrong)
        };
        Ok(match field {
            DOUBLE => Self::Double(text.parse().map_err(|_| wrong())?),
            FLOAT => Self::Float(text.parse().map_err(|_| wrong())?),
            BOOL => Self::Bool(text.parse().map_err(|_| wrong())?),
            TEXT => Self::Text(text),
            BYTES => Self::Bytes(STANDARD.decode(&text).map_err(|_| wrong())?.into()),
            UINT32 | FIXED32 => Self::Unsigned(field, ranged(0, u32::MAX.into())?.cast_unsigned()),
            UINT64 | FIXED64 => Self::Unsigned(field, text.parse().map_err(|_| wrong())?),
            INT64 | SFIXED64 | SINT64 => Self::Integer(field, ranged(i64::MIN, i64::MAX)?),
            _ => Self::Integer(field, ranged(i32::MIN.into(), i32::MAX.into())?),
        })
    }
}

/// Formats a number like Java.
pub fn java_double(number: f64) -> String {
    java_number(&format!("{number:e}"))
}

/// Formats a 32-bit number like Java, with fewer digits.
pub fn java_float(number: f32) -> String {
    java_number(&format!("{number:e}"))
}

/// Plain from 0.001 to 10^7, always with a digit after the point.
fn java_number(scientific: &str) -> String {
    let Some((mantissa, exponent)) = scientific.split_once('e') else {
        return match scientific {
            "inf" => "Infinity".to_owned(),
            "-inf" => "-Infinity".to_owned(),
            other => other.to_owned(),
        };
    };
    let (sign, mantissa) = mantissa.strip_prefix('-').map_or(("", mantissa), |rest| ("-", rest));
    let digits: String = mantissa.chars().filter(char::is_ascii_digit).collect();
    let exponent: i32 = exponent.parse().unwrap_or_default();
    let of = |digits: &str| if digits.is_empty() { "0".to_owned() } else { digits.to_owned() };
    match exponent {
        0..7 => {
            let whole = exponent as usize + 1;
            let padded = format!("{digits:0<whole$}");
            let (before, after) = padded.split_at(whole);
            format!("{sign}{before}.{}", of(after))
        }
        -3..0 => format!("{sign}0.{}{digits}", "0".repeat((-exponent - 1) as usize)),
        _ => format!("{sign}{}.{}E{exponent}", &digits[..1], of(&digits[1..])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from_json(text: &str) -> Result<Wrapped, String> {
        let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let name = value.get("_type").and_then(Value::as_str).unwrap_or_default();
        Wrapped::from_json(value.as_object().ok_or("no object")?, name)
    }

    /// The bytes were recorded from Java's clients.
    #[test]
    fn wrapped_values_of_clients_are_read_and_written() {
        for (bytes, wrapped, text, json) in [
            (
                &b"\x4a\x04key1"[..],
                Wrapped::Text("key1".into()),
                "key1",
                r#"{"_type":"string","_value":"key1"}"#,
            ),
            (b"\x28\x2a", Wrapped::Integer(INT32, 42), "42", r#"{"_type":"int32","_value":42}"#),
            (
                b"\x28\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
                Wrapped::Integer(INT32, -1),
                "-1",
                r#"{"_type":"int32","_value":-1}"#,
            ),
            (b"\x18\x2a", Wrapped::Integer(INT64, 42), "42", r#"{"_type":"int64","_value":42}"#),
            (b"\x40\x01", Wrapped::Bool(true), "true", r#"{"_type":"bool","_value":true}"#),
            (b"\x09\0\0\0\0\0\0\xf8\x3f", Wrapped::Double(1.5), "1.5", r#"{"_type":"double","_value":1.5}"#),
            (b"\x15\0\0\xc0\x3f", Wrapped::Float(1.5), "1.5", r#"{"_type":"float","_value":1.5}"#),
            (b"\x78\x03", Wrapped::Integer(SINT64, -2), "-2", r#"{"_type":"sint64","_value":-2}"#),
            (b"\x3d\x01\0\0\0", Wrapped::Unsigned(FIXED32, 1), "1", r#"{"_type":"fixed32","_value":1}"#),
        ] {
            assert_eq!(Wrapped::read(Bytes::from_static(bytes)), Some(wrapped.clone()));
            assert_eq!(&wrapped.write()[..], bytes, "{wrapped:?}");
            assert_eq!(wrapped.to_text().as_deref(), Some(text));
            assert_eq!(wrapped.to_json().as_deref(), Some(json));
            assert_eq!(from_json(json), Ok(wrapped));
        }
        let bytes = Wrapped::read(Bytes::from_static(b"\x52\x02\x01\x02")).unwrap();
        assert_eq!(bytes, Wrapped::Bytes(Bytes::from_static(&[1, 2])));
        assert_eq!(bytes.to_text(), None);
        assert_eq!(bytes.to_json().as_deref(), Some(r#"{"_type":"bytes","_value":"AQI="}"#));
        assert_eq!(Wrapped::read(Bytes::from_static(b"\xa0\x01A")), Some(Wrapped::Char('A')));
    }

    #[test]
    fn invalid_numbers_and_texts_are_refused() {
        // A message with a type id, truncated at every byte, and followed by other bytes.
        let message = Bytes::from_static(b"\x98\x01\xea\x84\x3d\x8a\x01\x02\x08\x01");
        for length in 0..=message.len() {
            assert_eq!(Wrapped::read(message.slice(..length)), None, "{length}");
        }
        for bytes in [
            &b"\x4a\x05key1"[..],
            b"\x4a\x03key1",
            b"\x4a\x01\xff",
            b"\x4a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
            b"\x2a\x01",
            b"\x28",
            b"\x28\x2a\x28\x2a",
        ] {
            assert_eq!(Wrapped::read(Bytes::from_static(bytes)), None, "{bytes:?}");
        }
    }

    #[test]
    fn numbers_are_written_as_java_writes_them() {
        for (number, text) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (-120.25, "-120.25"),
            (1e6, "1000000.0"),
            (1e7, "1.0E7"),
            (1.25e10, "1.25E10"),
            (0.001, "0.001"),
            (0.00099, "9.9E-4"),
            (f64::NAN, "NaN"),
            (f64::NEG_INFINITY, "-Infinity"),
        ] {
            assert_eq!(Wrapped::Double(number).to_text().as_deref(), Some(text));
        }
        assert_eq!(Wrapped::Double(f64::NAN).to_json(), None);
    }

    #[test]
    fn numbers_are_what_they_were_after_they_were_json() {
        for bits in [0x1000_0000_0000_0000_u64, 0x3ff1_2345_6789_abcd, 1, 0x7fef_ffff_ffff_ffff] {
            let number = Wrapped::Double(f64::from_bits(bits));
            assert_eq!(from_json(&number.to_json().unwrap()), Ok(number));
        }
        let float = Wrapped::Float(f32::from_bits(0x0012_3456));
        assert_eq!(from_json(&float.to_json().unwrap()), Ok(float));
    }

    #[test]
    fn json_that_says_nothing_known_is_refused() {
        for text in [
            "",
            "7",
            "{}",
            r#"{"_type":"string"}"#,
            r#"{"_type":"shop.Book","title":"x"}"#,
            r#"{"_type":"int32","_value":2147483648}"#,
            r#"{"_type":"bool","_value":7}"#,
            r#"{"_type":"bytes","_value":"?"}"#,
        ] {
            assert!(from_json(text).is_err(), "{text}");
        }
    }
}
