//! Values, with Java's comparison and the clients' wrapping.

use std::borrow::Cow;
use std::cmp::Ordering;

use bytes::{BufMut, Bytes};

use consort_protostream::wire::{EIGHT, FOUR, LENGTH, VARINT, put_bytes, put_tag, put_varint};
use consort_protostream::wrapped::{BOOL, BYTES, DOUBLE, FLOAT, INT32, INT64, TEXT, UINT32, Wrapped};

/// A value. As in Java, unsigned numbers are signed ones of the same bits, and enum values are numbers.
#[derive(Clone, PartialEq, Debug)]
pub enum Value<'a> {
    /// 32 bits.
    Int(i32),
    /// 64 bits.
    Long(i64),
    /// 32 bits.
    Float(f32),
    /// 64 bits.
    Double(f64),
    /// A boolean.
    Bool(bool),
    /// A string.
    Text(Cow<'a, str>),
    /// Bytes.
    Bytes(Cow<'a, [u8]>),
}

/// A field's type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scalar {
    /// 32-bit integers and enums.
    Int,
    /// 64-bit integers.
    Long,
    /// 32-bit floating point.
    Float,
    /// 64-bit floating point.
    Double,
    /// Booleans.
    Bool,
    /// Strings.
    Text,
    /// Bytes.
    Bytes,
}

impl Scalar {
    pub(crate) const fn is_number(self) -> bool {
        matches!(self, Self::Int | Self::Long | Self::Float | Self::Double)
    }

    /// For error messages.
    pub(crate) const fn describe(self) -> &'static str {
        match self {
            Self::Int | Self::Long | Self::Float | Self::Double => "number",
            Self::Bool => "boolean",
            Self::Text => "string",
            Self::Bytes => "bytes",
        }
    }
}

impl Value<'_> {
    /// Copies borrowed data.
    pub fn into_owned(self) -> Value<'static> {
        match self {
            Self::Int(number) => Value::Int(number),
            Self::Long(number) => Value::Long(number),
            Self::Float(number) => Value::Float(number),
            Self::Double(number) => Value::Double(number),
            Self::Bool(is) => Value::Bool(is),
            Self::Text(text) => Value::Text(Cow::Owned(text.into_owned())),
            Self::Bytes(bytes) => Value::Bytes(Cow::Owned(bytes.into_owned())),
        }
    }

    /// As Java's `compareTo`. Values of different types are ordered by type.
    pub(crate) fn order(&self, other: &Value<'_>) -> Ordering {
        match (self, other) {
            (Self::Int(one), Value::Int(other)) => one.cmp(other),
            (Self::Long(one), Value::Long(other)) => one.cmp(other),
            (Self::Float(one), Value::Float(other)) => {
                canonical_float(*one).total_cmp(&canonical_float(*other))
            }
            (Self::Double(one), Value::Double(other)) => canonical(*one).total_cmp(&canonical(*other)),
            (Self::Bool(one), Value::Bool(other)) => one.cmp(other),
            (Self::Text(one), Value::Text(other)) => utf16_order(one, other),
            (Self::Bytes(one), Value::Bytes(other)) => one.cmp(other),
            (one, other) => one.kind().cmp(&other.kind()),
        }
    }

    /// The most bytes that a comparison reads.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Bytes(bytes) => bytes.len(),
            _ => 0,
        }
    }

    pub(crate) const fn scalar(&self) -> Scalar {
        match self {
            Self::Int(_) => Scalar::Int,
            Self::Long(_) => Scalar::Long,
            Self::Float(_) => Scalar::Float,
            Self::Double(_) => Scalar::Double,
            Self::Bool(_) => Scalar::Bool,
            Self::Text(_) => Scalar::Text,
            Self::Bytes(_) => Scalar::Bytes,
        }
    }

    const fn kind(&self) -> u8 {
        match self {
            Self::Int(_) => 0,
            Self::Long(_) => 1,
            Self::Float(_) => 2,
            Self::Double(_) => 3,
            Self::Bool(_) => 4,
            Self::Text(_) => 5,
            Self::Bytes(_) => 6,
        }
    }

    /// In wrapped form.
    pub(crate) fn write(&self, out: &mut impl BufMut) {
        match self {
            Self::Int(number) => {
                put_tag(out, INT32, VARINT);
                put_varint(out, i64::from(*number).cast_unsigned());
            }
            Self::Long(number) => {
                put_tag(out, INT64, VARINT);
                put_varint(out, number.cast_unsigned());
            }
            Self::Float(number) => {
                put_tag(out, FLOAT, FOUR);
                out.put_f32_le(canonical_float(*number));
            }
            Self::Double(number) => {
                put_tag(out, DOUBLE, EIGHT);
                out.put_f64_le(canonical(*number));
            }
            Self::Bool(is) => {
                put_tag(out, BOOL, VARINT);
                out.put_u8((*is).into());
            }
            Self::Text(text) => {
                put_tag(out, TEXT, LENGTH);
                put_bytes(out, text.as_bytes());
            }
            Self::Bytes(bytes) => {
                put_tag(out, BYTES, LENGTH);
                put_bytes(out, bytes);
            }
        }
    }
}

impl Value<'static> {
    /// Decodes a wrapped value.
    pub fn read(bytes: Bytes) -> Option<Self> {
        Wrapped::read(bytes).map(Self::from)
    }
}

impl From<Wrapped> for Value<'static> {
    fn from(wrapped: Wrapped) -> Self {
        use consort_protostream::wrapped::{FIXED32, SFIXED64, SINT64};
        match wrapped {
            Wrapped::Double(number) => Self::Double(number),
            Wrapped::Float(number) => Self::Float(number),
            Wrapped::Integer(INT64 | SINT64 | SFIXED64, number) => Self::Long(number),
            Wrapped::Integer(_, number) => Self::Int(number as i32),
            Wrapped::Unsigned(UINT32 | FIXED32, number) => Self::Int(number as i32),
            Wrapped::Unsigned(_, number) => Self::Long(number.cast_signed()),
            Wrapped::Bool(is) => Self::Bool(is),
            Wrapped::Text(text) => Self::Text(Cow::Owned(text)),
            Wrapped::Bytes(bytes) => Self::Bytes(Cow::Owned(bytes.into())),
            Wrapped::Char(one) => Self::Text(Cow::Owned(one.to_string())),
        }
    }
}

/// All NaNs are equal and larger than all numbers.
pub(crate) const fn canonical(number: f64) -> f64 {
    if number.is_nan() { f64::NAN } else { number }
}

pub(crate) const fn canonical_float(number: f32) -> f32 {
    if number.is_nan() { f32::NAN } else { number }
}

/// UTF-16 order differs from byte order only for surrogate pairs.
fn utf16_order(one: &str, other: &str) -> Ordering {
    let differ = one.bytes().zip(other.bytes()).find(|(one, other)| one != other);
    match differ {
        Some((0xf0.., 0xee..=0xef)) => Ordering::Less,
        Some((0xee..=0xef, 0xf0..)) => Ordering::Greater,
        Some((one, other)) => one.cmp(&other),
        None => one.len().cmp(&other.len()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn value() -> impl Strategy<Value = Value<'static>> {
        prop_oneof![
            any::<i32>().prop_map(Value::Int),
            any::<i64>().prop_map(Value::Long),
            any::<f32>().prop_map(|number| Value::Float(canonical_float(number))),
            any::<f64>().prop_map(|number| Value::Double(canonical(number))),
            any::<bool>().prop_map(Value::Bool),
            any::<String>().prop_map(|text| Value::Text(text.into())),
            any::<Vec<u8>>().prop_map(|bytes| Value::Bytes(bytes.into())),
        ]
    }

    proptest! {
        #[test]
        fn values_are_read_back_as_written(value in value()) {
            let mut bytes = Vec::new();
            value.write(&mut bytes);
            let read = Value::read(bytes.into()).unwrap();
            prop_assert_eq!(read.order(&value), Ordering::Equal);
        }

        #[test]
        fn texts_lie_as_in_java(one: String, other: String) {
            prop_assert_eq!(utf16_order(&one, &other), one.encode_utf16().cmp(other.encode_utf16()));
        }

        #[test]
        fn all_values_have_an_order(mut values in prop::collection::vec(value(), 0..20)) {
            values.sort_by(Value::order);
            prop_assert!(values.windows(2).all(|pair| pair[0].order(&pair[1]) != Ordering::Greater));
        }
    }

    #[test]
    fn numbers_that_are_none_are_the_largest_and_zeros_are_two() {
        let double = Value::Double;
        assert_eq!(double(f64::NAN).order(&double(f64::INFINITY)), Ordering::Greater);
        assert_eq!(double(-f64::NAN).order(&double(f64::NAN)), Ordering::Equal);
        assert_eq!(double(-0.0).order(&double(0.0)), Ordering::Less);
        assert_eq!(utf16_order("\u{1f600}", "\u{ffee}"), Ordering::Less);
    }
}
