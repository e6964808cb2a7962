//! Numbers and bytes as protobuf writes them.

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// A number of at most ten bytes; nothing if it does not end.
pub(super) fn varint(from: &mut Bytes) -> Option<u64> {
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

/// Writes such a number.
pub(super) fn put_varint(out: &mut BytesMut, mut number: u64) {
    while number >= 0x80 {
        out.put_u8(number as u8 | 0x80);
        number >>= 7;
    }
    out.put_u8(number as u8);
}

/// A number with its sign at the end, so that small ones are short.
pub(super) const fn zigzag(number: i64) -> u64 {
    ((number << 1) ^ (number >> 63)).cast_unsigned()
}

/// And back.
pub(super) const fn unzigzag(number: u64) -> i64 {
    (number >> 1).cast_signed() ^ -((number & 1).cast_signed())
}

/// Bytes after their length.
pub(super) fn put_bytes(out: &mut BytesMut, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.put_slice(bytes);
}
