//! Values as bytes in the order of [`Value::order`]. Null precedes all values.

use crate::limits::INDEXED_BYTES_MAX;
use crate::value::{Value, canonical, canonical_float};

/// Null.
pub(super) const NULL: [u8; 1] = [0];

/// The beginning of each value.
pub(super) const VALUE: [u8; 1] = [1];

/// Encodes a value of one field. Of a longer one the first [`INDEXED_BYTES_MAX`] bytes are encoded, so that the order is the same,
/// except that long values can be equal.
pub(super) fn encode(value: Option<&Value<'_>>, out: &mut Vec<u8>) {
    out.clear();
    let Some(value) = value else { return out.extend(NULL) };
    out.extend(VALUE);
    match value {
        Value::Int(number) => out.extend((number.cast_unsigned() ^ 1 << 31).to_be_bytes()),
        Value::Long(number) => out.extend((number.cast_unsigned() ^ 1 << 63).to_be_bytes()),
        Value::Float(number) => {
            let bits = canonical_float(*number).to_bits();
            out.extend((if bits >> 31 == 0 { bits | 1 << 31 } else { !bits }).to_be_bytes());
        }
        Value::Double(number) => {
            let bits = canonical(*number).to_bits();
            out.extend((if bits >> 63 == 0 { bits | 1 << 63 } else { !bits }).to_be_bytes());
        }
        Value::Bool(is) => out.push((*is).into()),
        Value::Text(text) => out.extend(text.bytes().take(INDEXED_BYTES_MAX).map(in_utf16_order)),
        Value::Bytes(bytes) => out.extend(bytes.iter().take(INDEXED_BYTES_MAX)),
    }
}

/// Characters behind the surrogates of UTF-16 follow those that need surrogates. Only they begin with these bytes, and no byte of
/// a text is greater than `0xf4`.
const fn in_utf16_order(byte: u8) -> u8 {
    match byte {
        0xee | 0xef => byte + 0x10,
        other => other,
    }
}

pub(super) fn encoded(value: Option<&Value<'_>>) -> Vec<u8> {
    let mut out = Vec::new();
    encode(value, &mut out);
    out
}
