//! Seven bits per byte, the lowest first; the top bit announces another byte. Lengths mostly take one byte,
//! versions six or seven. Numbers of up to eight bytes are written and read as one word: byte by byte an
//! iteration over small entries takes 3 % more time.

use bytes::{BufMut, BytesMut};

use super::error::FrameError;

const MORE: u64 = 0x8080_8080_8080_8080;

const WORD_MAX: u64 = (1 << (7 * size_of::<u64>())) - 1;

const LENGTH_MAX: usize = 10;

#[inline]
pub(super) fn put_number(out: &mut BytesMut, number: u64) {
    if number < 0x80 {
        out.put_u8(number as u8);
    } else if number <= WORD_MAX {
        let length = (u64::BITS - number.leading_zeros()).div_ceil(7);
        // Set in all bytes but the last one.
        let more = MORE & ((1 << (8 * length - 1)) - 1);
        let begin = out.len();
        out.put_u64_le(spread(number) | more);
        out.truncate(begin + length as usize);
    } else {
        let mut rest = number;
        while rest >= 0x80 {
            out.put_u8(rest as u8 | 0x80);
            rest >>= 7;
        }
        out.put_u8(rest as u8);
    }
}

#[inline]
pub(crate) fn read_number(from: &[u8]) -> Result<(u64, usize), FrameError> {
    if let Some(&byte) = from.first()
        && byte < 0x80
    {
        return Ok((byte.into(), 1));
    }
    if let Some(word) = from.first_chunk() {
        let word = u64::from_le_bytes(*word);
        let ends = !word & MORE;
        if ends != 0 {
            let last = ends.trailing_zeros();
            let number = word & (u64::MAX >> (u64::BITS - 1 - last));
            return Ok((gathered(number), last as usize / 8 + 1));
        }
    }
    read_long(from)
}

/// For numbers longer than a word, or at the end of the bytes.
#[cold]
fn read_long(from: &[u8]) -> Result<(u64, usize), FrameError> {
    let mut number = 0;
    for (nth, &byte) in from.iter().take(LENGTH_MAX).enumerate() {
        number |= u64::from(byte & 0x7f) << (7 * nth);
        if byte & 0x80 == 0 {
            return Ok((number, nth + 1));
        }
    }
    Err(FrameError::Short { what: "number", wanted: from.len() + 1, left: from.len() })
}

/// Spreads a number to seven bits in each byte: by halves, quarters and eighths.
#[inline]
const fn spread(number: u64) -> u64 {
    let halves = number & 0x0fff_ffff | (number & 0x0fff_ffff << 28) << 4;
    let quarters = halves & 0x0000_3fff_0000_3fff | (halves & 0x0fff_c000_0fff_c000) << 2;
    quarters & 0x007f_007f_007f_007f | (quarters & 0x3f80_3f80_3f80_3f80) << 1
}

/// The top bits are ignored.
#[inline]
const fn gathered(word: u64) -> u64 {
    let quarters = word & 0x007f_007f_007f_007f | (word & 0x7f00_7f00_7f00_7f00) >> 1;
    let halves = quarters & 0x0000_3fff_0000_3fff | (quarters & 0x3fff_0000_3fff_0000) >> 2;
    halves & 0x0fff_ffff | (halves & 0x0fff_ffff_0000_0000) >> 4
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bytes_of(mut number: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        while number >= 0x80 {
            bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        bytes.push(number as u8);
        bytes
    }

    fn check(number: u64) {
        let bytes = bytes_of(number);
        let mut out = BytesMut::from(&b"before"[..]);
        put_number(&mut out, number);
        assert_eq!(out[6..], bytes, "{number:#x}");
        for behind in 0..10 {
            for byte in [0, 0x7f, 0x80, 0xff] {
                let more = [&bytes[..], &vec![byte; behind]].concat();
                assert_eq!(
                    read_number(&more),
                    Ok((number, bytes.len())),
                    "{number:#x} before {behind} of {byte:#x}"
                );
            }
        }
        for short in 0..bytes.len() {
            assert!(read_number(&bytes[..short]).is_err(), "{short} of {number:#x}");
        }
    }

    #[test]
    fn numbers_at_each_end_of_each_length_come_back() {
        for bits in 0..=u64::BITS {
            let least = 1_u64.checked_shl(bits).unwrap_or(0);
            [least, least.wrapping_sub(1), least.wrapping_add(1)].into_iter().for_each(check);
        }
    }

    #[test]
    fn one_without_an_end_is_an_error() {
        for length in 0..20 {
            assert!(read_number(&vec![0x80; length]).is_err(), "{length}");
        }
    }

    proptest! {
        #[test]
        fn numbers_are_decoded_whatever_bytes_follow(number: u64, bits in 0..u64::BITS) {
            check(number >> bits);
        }
    }
}
