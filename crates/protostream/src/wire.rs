//! The protobuf wire format.

use bytes::{Buf, BufMut};

/// Field of a type's name.
pub const TYPE_NAME: u32 = 16;
/// Field of the message.
pub const MESSAGE: u32 = 17;
/// Field of an enum's number.
pub const ENUM: u32 = 18;
/// Field of a type's id.
pub const TYPE_ID: u32 = 19;

/// One to ten bytes.
pub const VARINT: u32 = 0;
/// Eight bytes.
pub const EIGHT: u32 = 1;
/// Length-delimited.
pub const LENGTH: u32 = 2;
/// Four bytes.
pub const FOUR: u32 = 5;

/// Decodes a varint; `None` if incomplete or too long.
pub fn varint(from: &mut impl Buf) -> Option<u64> {
    let mut number = 0_u64;
    for shift in (0..70).step_by(7) {
        let byte = from.try_get_u8().ok()?;
        number |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

/// Encodes a varint.
pub fn put_varint(out: &mut impl BufMut, mut number: u64) {
    while number >= 0x80 {
        out.put_u8(number as u8 | 0x80);
        number >>= 7;
    }
    out.put_u8(number as u8);
}

/// Zigzag-encodes; small negative numbers are short.
pub const fn zigzag(number: i64) -> u64 {
    ((number << 1) ^ (number >> 63)).cast_unsigned()
}

/// Decodes zigzag.
pub const fn unzigzag(number: u64) -> i64 {
    (number >> 1).cast_signed() ^ -((number & 1).cast_signed())
}

/// Encodes length-delimited bytes.
pub fn put_bytes(out: &mut impl BufMut, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.put_slice(bytes);
}

/// Decodes length-delimited bytes; `None` if incomplete.
pub fn bytes<'a>(from: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = usize::try_from(varint(from)?).ok()?;
    let (bytes, rest) = from.split_at_checked(length)?;
    *from = rest;
    Some(bytes)
}

/// Encodes a tag: number and wire type.
pub fn put_tag(out: &mut impl BufMut, number: u32, wire: u32) {
    put_varint(out, u64::from(number) << 3 | u64::from(wire));
}

/// A field's undecoded value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Raw<'a> {
    /// A varint.
    Varint(u64),
    /// Eight bytes.
    Eight(u64),
    /// A string, bytes, message, or packed numbers.
    Length(&'a [u8]),
    /// Four bytes.
    Four(u32),
}

/// Decodes the next field; `None` for groups and invalid messages.
pub fn field<'a>(from: &mut &'a [u8]) -> Option<(u32, Raw<'a>)> {
    let tag = varint(from)?;
    let number = u32::try_from(tag >> 3).ok().filter(|number| *number > 0)?;
    let raw = match (tag & 7) as u32 {
        VARINT => Raw::Varint(varint(from)?),
        EIGHT => Raw::Eight(from.try_get_u64_le().ok()?),
        LENGTH => Raw::Length(bytes(from)?),
        FOUR => Raw::Four(from.try_get_u32_le().ok()?),
        _ => return None,
    };
    Some((number, raw))
}

/// Decodes the next packed number.
pub fn packed<'a>(from: &mut &'a [u8], wire: u32) -> Option<Raw<'a>> {
    Some(match wire {
        EIGHT => Raw::Eight(from.try_get_u64_le().ok()?),
        FOUR => Raw::Four(from.try_get_u32_le().ok()?),
        _ => Raw::Varint(varint(from)?),
    })
}
