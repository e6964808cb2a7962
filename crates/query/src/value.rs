//! Values of fields, as Java compares them, and as clients wrap them.

use std::borrow::Cow;
use std::cmp::Ordering;

use bytes::{BufMut, Bytes};

use consort_protostream::wire::{EIGHT, FOUR, LENGTH, VARINT, put_bytes, put_tag, put_varint};
use consort_protostream::wrapped::{BOOL, BYTES, DOUBLE, FLOAT, INT32, INT64, TEXT, UINT32, Wrapped};

/// What a field has. Numbers without a sign are those with one that are written the same, and enums' values are numbers: that
/// is how Java has them.
#[derive(Clone, PartialEq, Debug)]
pub enum Value<'a> {
    /// Of 32 bits.
    Int(i32),
    /// Of 64 bits.
    Long(i64),
    /// Of 32 bits.
    Float(f32),
    /// Of 64 bits.
    Double(f64),
    /// True or false.
    Bool(bool),
    /// A text.
    Text(Cow<'a, str>),
    /// Bytes.
    Bytes(Cow<'a, [u8]>),
}

/// What kind of values a field has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scalar {
    /// Numbers of 32 bits, and values of enums.
    Int,
    /// Numbers of 64 bits.
    Long,
    /// Numbers with a point, of 32 bits.
    Float,
    /// Numbers with a point, of 64 bits.
    Double,
    /// True or false.
    Bool,
    /// Texts.
    Text,
    /// Bytes.
    Bytes,
}

impl Scalar {
    pub(crate) const fn is_number(self) -> bool {
        matches!(self, Self::Int | Self::Long | Self::Float | Self::Double)
    }

    /// As people are told of it.
    pub(crate) const fn describe(self) -> &'static str {
        match self {
            Self::Int | Self::Long | Self::Float | Self::Double => "numbers",
            Self::Bool => "true or false",
            Self::Text => "texts",
            Self::Bytes => "bytes",
        }
    }
}

impl Value<'_> {
    /// The same for as long as anybody wants it.
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

    /// How two of a kind lie to each other, as Java's `compareTo` says it. Those of different kinds lie as their kinds.
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

    /// The bytes that comparing it looks at, at most.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Bytes(bytes) => bytes.len(),
            _ => 0,
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

    /// Writes it as clients wrap it.
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
    /// What is wrapped in these bytes; nothing if that is no value.
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

/// What is no number is one thing, and larger than all that are.
const fn canonical(number: f64) -> f64 {
    if number.is_nan() { f64::NAN } else { number }
}

const fn canonical_float(number: f32) -> f32 {
    if number.is_nan() { f32::NAN } else { number }
}

/// Texts in the order of their units of sixteen bits, which is that of their bytes but for letters that have two.
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
