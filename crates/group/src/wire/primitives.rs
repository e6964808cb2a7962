use std::sync::Arc;

use bytes::{BufMut, Bytes};

/// The reason why bytes could not be decoded; the whole packet is dropped.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The bytes end too early.
    #[error("{what} needs {wanted} bytes, {left} left")]
    Truncated {
        /// The field being read.
        what: &'static str,
        /// The number of bytes it needs.
        wanted: usize,
        /// The number of bytes left.
        left: usize,
    },
    /// A value outside the allowed range.
    #[error("{what} has the invalid value {value}")]
    BadValue {
        /// The field being read.
        what: &'static str,
        /// The value.
        value: i64,
    },
    /// An unknown header class: headers carry no length, so the rest is unreadable.
    #[error("unknown header {magic} of protocol {protocol}")]
    UnknownHeader {
        /// The protocol's id.
        protocol: i16,
        /// The magic id.
        magic: i16,
    },
    /// Messages nest too deeply.
    #[error("messages are nested more than {NESTING_MAX} deep")]
    TooDeep,
    /// Bytes after the end.
    #[error("{0} bytes are left over")]
    Trailing(usize),
}

/// The nesting of composite and batch messages; real ones nest once or twice.
pub const NESTING_MAX: u8 = 4;

/// A reader of shared bytes; payloads are slices of them.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    bytes: &'a Bytes,
    /// Never beyond the end.
    at: usize,
    pub(super) depth: u8,
}

pub(super) type Result<T> = std::result::Result<T, WireError>;

pub(super) fn bad(what: &'static str, value: u8) -> WireError {
    WireError::BadValue { what, value: value.into() }
}

impl<'a> Reader<'a> {
    /// Creates a reader.
    pub const fn new(bytes: &'a Bytes) -> Self {
        Self { bytes, at: 0, depth: 0 }
    }

    /// Returns the number of bytes left.
    #[inline]
    pub fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// Returns the bytes left.
    pub fn rest(self) -> Bytes {
        self.bytes.slice(self.at..)
    }

    /// Fails if bytes are left.
    pub fn end(&self) -> Result<()> {
        if self.left() == 0 { Ok(()) } else { Err(WireError::Trailing(self.left())) }
    }

    #[inline]
    pub(super) fn peek(&self) -> &[u8] {
        &self.bytes[self.at..]
    }

    #[inline]
    pub(super) fn skip(&mut self, count: usize) {
        self.at += count.min(self.left());
    }

    #[cold]
    fn truncated(&self, what: &'static str, wanted: usize) -> WireError {
        WireError::Truncated { what, wanted, left: self.left() }
    }

    #[inline]
    pub(super) fn need(&self, what: &'static str, wanted: usize) -> Result<()> {
        if self.left() < wanted { Err(self.truncated(what, wanted)) } else { Ok(()) }
    }

    #[inline]
    fn take<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N]> {
        match self.peek().first_chunk() {
            Some(&chunk) => {
                self.at += N;
                Ok(chunk)
            }
            None => Err(self.truncated(what, N)),
        }
    }

    #[inline]
    pub(super) fn u8(&mut self, what: &'static str) -> Result<u8> {
        Ok(u8::from_be_bytes(self.take(what)?))
    }

    #[inline]
    pub(super) fn bool(&mut self, what: &'static str) -> Result<bool> {
        Ok(self.u8(what)? != 0)
    }

    #[inline]
    pub(super) fn i16(&mut self, what: &'static str) -> Result<i16> {
        Ok(i16::from_be_bytes(self.take(what)?))
    }

    #[inline]
    pub(super) fn u16(&mut self, what: &'static str) -> Result<u16> {
        Ok(u16::from_be_bytes(self.take(what)?))
    }

    #[inline]
    pub(super) fn i32(&mut self, what: &'static str) -> Result<i32> {
        Ok(i32::from_be_bytes(self.take(what)?))
    }

    pub(super) fn u64(&mut self, what: &'static str) -> Result<u64> {
        Ok(u64::from_be_bytes(self.take(what)?))
    }

    #[inline]
    pub(super) fn bytes(&mut self, what: &'static str, count: usize) -> Result<Bytes> {
        self.need(what, count)?;
        let taken = self.bytes.slice(self.at..self.at + count);
        self.at += count;
        Ok(taken)
    }

    pub(super) fn length(&mut self, what: &'static str) -> Result<Option<usize>> {
        match self.i32(what)? {
            -1 => Ok(None),
            value => usize::try_from(value)
                .map(Some)
                .map_err(|_| WireError::BadValue { what, value: value.into() }),
        }
    }

    /// Fails if items of `each` bytes exceed the bytes left.
    pub(super) fn count(&mut self, what: &'static str, each: usize) -> Result<usize> {
        let count = self.length(what)?.unwrap_or(0);
        self.need(what, count.saturating_mul(each))?;
        Ok(count)
    }

    #[inline]
    fn little_endian(&mut self, what: &'static str, most: u8) -> Result<u64> {
        let count = self.u8(what)?;
        if count > most {
            return Err(WireError::BadValue { what, value: count.into() });
        }
        self.partial(what, count)
    }

    #[inline]
    fn partial(&mut self, what: &'static str, count: u8) -> Result<u64> {
        let count = usize::from(count);
        if let Some(&word) = self.peek().first_chunk() {
            // Reads eight bytes and masks the unused ones, because a copy of variable length costs a call.
            self.at += count;
            let unused = 64 - 8 * count as u32;
            return Ok(u64::from_le_bytes(word).checked_shl(unused).map_or(0, |word| word >> unused));
        }
        self.need(what, count)?;
        let mut word = [0; 8];
        word[..count].copy_from_slice(&self.peek()[..count]);
        self.at += count;
        Ok(u64::from_le_bytes(word))
    }

    pub(super) fn compressed_int(&mut self, what: &'static str) -> Result<i32> {
        Ok(self.little_endian(what, 4)? as u32 as i32)
    }

    #[inline]
    pub(super) fn compressed_long(&mut self, what: &'static str) -> Result<i64> {
        Ok(self.little_endian(what, 8)? as i64)
    }

    #[inline]
    pub(super) fn seqno(&mut self, what: &'static str) -> Result<u64> {
        let value = self.compressed_long(what)?;
        u64::try_from(value).map_err(|_| WireError::BadValue { what, value })
    }

    pub(super) fn long_sequence(&mut self, what: &'static str) -> Result<(u64, u64)> {
        let counts = self.u8(what)?;
        if counts == 0 {
            return Ok((0, 0));
        }
        let (first, second) = (counts >> 4, counts & 0x0f);
        if first > 8 || second > 8 {
            return Err(WireError::BadValue { what, value: counts.into() });
        }
        let low = self.partial(what, first)?;
        let delta = self.partial(what, second)?;
        let high = low.checked_add(delta).filter(|&high| i64::try_from(high).is_ok());
        high.map(|high| (low, high)).ok_or(WireError::BadValue { what, value: delta as i64 })
    }

    /// The string has no presence byte and is in Java's modified UTF-8.
    pub(super) fn utf(&mut self, what: &'static str) -> Result<String> {
        let count = self.u16(what)?;
        let bytes = self.bytes(what, usize::from(count))?;
        decode_modified_utf8(&bytes).ok_or(WireError::BadValue { what, value: count.into() })
    }

    pub(super) fn string(&mut self, what: &'static str) -> Result<Option<String>> {
        if self.bool(what)? { self.utf(what).map(Some) } else { Ok(None) }
    }

    pub(super) fn tagged_string(&mut self, what: &'static str) -> Result<String> {
        if !self.bool(what)? {
            return self.utf(what);
        }
        let count = self.length(what)?.unwrap_or(0);
        Ok(self.bytes(what, count)?.iter().map(|&b| char::from(b)).collect())
    }

    pub(super) fn ascii(&mut self, what: &'static str) -> Result<Option<Bytes>> {
        match self.i16(what)? {
            -1 => Ok(None),
            count => {
                let count =
                    usize::try_from(count).map_err(|_| WireError::BadValue { what, value: count.into() })?;
                self.bytes(what, count).map(Some)
            }
        }
    }

    pub(super) fn byte_buffer(&mut self, what: &'static str) -> Result<Option<Bytes>> {
        if !self.bool(what)? {
            return Ok(None);
        }
        let count = self.length(what)?.unwrap_or(0);
        self.bytes(what, count).map(Some)
    }
}

fn decode_modified_utf8(bytes: &[u8]) -> Option<String> {
    if bytes.is_ascii() {
        return String::from_utf8(bytes.to_vec()).ok();
    }
    let mut units = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let continued = |offset: usize| {
            bytes.get(at + offset).filter(|&&b| b & 0xc0 == 0x80).map(|&b| u16::from(b & 0x3f))
        };
        let first = u16::from(bytes[at]);
        let (unit, length) = match bytes[at] {
            0..=0x7f => (first, 1),
            0xc0..=0xdf => ((first & 0x1f) << 6 | continued(1)?, 2),
            0xe0..=0xef => ((first & 0x0f) << 12 | continued(1)? << 6 | continued(2)?, 3),
            _ => return None,
        };
        units.push(unit);
        at += length;
    }
    Some(String::from_utf16_lossy(&units))
}

fn width(value: u64) -> u8 {
    (8 - (value.leading_zeros() / 8).min(7)) as u8
}

pub(super) fn put_bool(out: &mut impl BufMut, value: bool) {
    out.put_u8(u8::from(value));
}

#[inline]
fn put_little_endian(out: &mut impl BufMut, value: u64) {
    if value == 0 {
        return out.put_u8(0);
    }
    let count = width(value);
    out.put_u8(count);
    put_low_bytes(out, value, count);
}

/// The pieces have a fixed size, because copying a slice costs a call.
#[inline]
fn put_low_bytes(out: &mut impl BufMut, mut value: u64, count: u8) {
    if count == 8 {
        return out.put_u64_le(value);
    }
    if count & 4 != 0 {
        out.put_u32_le(value as u32);
        value >>= 32;
    }
    if count & 2 != 0 {
        out.put_u16_le(value as u16);
        value >>= 16;
    }
    if count & 1 != 0 {
        out.put_u8(value as u8);
    }
}

pub(super) fn put_compressed_int(out: &mut impl BufMut, value: i32) {
    put_little_endian(out, u64::from(value as u32));
}

#[inline]
pub(super) fn put_compressed_long(out: &mut impl BufMut, value: i64) {
    put_little_endian(out, value as u64);
}

/// Returns a compressed long's bytes.
pub const fn compressed_long_length(value: i64) -> usize {
    1 + (8 - (value.leading_zeros() / 8) as usize)
}

pub(super) fn put_long_sequence(out: &mut impl BufMut, low: u64, high: u64) {
    if low == 0 && high == 0 {
        return out.put_u8(0);
    }
    let delta = high.saturating_sub(low);
    let (first, second) = (width(low), width(delta));
    out.put_u8(first << 4 | second);
    put_low_bytes(out, low, first);
    put_low_bytes(out, delta, second);
}

/// A text beyond Java's 65535 bytes is truncated at a character.
pub(super) fn put_utf(out: &mut impl BufMut, text: &str) {
    let length_of = |unit: u16| match unit {
        1..0x80 => 1,
        0 | 0x80..0x800 => 2,
        _ => 3,
    };
    let (mut count, mut units) = (0, 0);
    for unit in text.encode_utf16() {
        if count + length_of(unit) > usize::from(u16::MAX) {
            break;
        }
        count += length_of(unit);
        units += 1;
    }
    out.put_u16(count as u16);
    for unit in text.encode_utf16().take(units) {
        match length_of(unit) {
            1 => out.put_u8(unit as u8),
            2 => out.put_slice(&[0xc0 | (unit >> 6) as u8, 0x80 | (unit & 0x3f) as u8]),
            _ => out.put_slice(&[
                0xe0 | (unit >> 12) as u8,
                0x80 | (unit >> 6 & 0x3f) as u8,
                0x80 | (unit & 0x3f) as u8,
            ]),
        }
    }
}

pub(super) fn put_string(out: &mut impl BufMut, text: Option<&str>) {
    put_bool(out, text.is_some());
    if let Some(text) = text {
        put_utf(out, text);
    }
}

pub(super) fn put_tagged_string(out: &mut impl BufMut, text: &str) {
    put_bool(out, text.is_ascii());
    if text.is_ascii() {
        out.put_i32(text.len() as i32);
        out.put_slice(text.as_bytes());
    } else {
        put_utf(out, text);
    }
}

/// Writes low bytes, because cluster names are ASCII.
pub(super) fn put_ascii(out: &mut impl BufMut, text: Option<&str>) {
    match text {
        None => out.put_i16(-1),
        Some(text) => {
            out.put_i16(text.chars().count() as i16);
            text.chars().for_each(|c| out.put_u8(c as u32 as u8));
        }
    }
}

pub(super) fn ascii_text(bytes: &[u8]) -> Arc<str> {
    bytes.iter().map(|&b| char::from(b)).collect::<String>().into()
}

pub(super) fn put_byte_buffer(out: &mut impl BufMut, bytes: Option<&Bytes>) {
    put_bool(out, bytes.is_some());
    if let Some(bytes) = bytes {
        out.put_i32(bytes.len() as i32);
        out.put_slice(bytes);
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;

    use super::*;

    /// S000-77
    #[test]
    fn numbers_are_read_without_allocation() {
        let mut out = BytesMut::new();
        put_compressed_int(&mut out, 322_649);
        put_compressed_long(&mut out, 1 << 40);
        put_long_sequence(&mut out, 1 << 33, (1 << 33) + 5);
        let bytes = out.freeze();
        let mut reader = Reader::new(&bytes);
        let mut read = None;
        let used = allocation_counter::measure(|| {
            let int = reader.compressed_int("int").ok();
            read = int.zip(reader.compressed_long("long").ok()).zip(reader.long_sequence("sequence").ok());
        });
        assert_eq!(read, Some(((322_649, 1 << 40), (1 << 33, (1 << 33) + 5))));
        assert_eq!(used.count_total, 0);
    }
}
