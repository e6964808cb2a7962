//! Output: small data are copied, large values shared.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::text::Text;

/// Below this a copy is cheaper than another piece of a vectored write.
const SHARED_FROM: usize = 4 * 1024;

/// Approximate. One growing buffer would need twice the size of a large response.
const PIECE_BYTES: usize = 256 * 1024;

/// Bytes to write, as a [`Buf`] in pieces.
#[derive(Default, Debug)]
pub struct Output {
    pieces: VecDeque<Bytes>,
    open: BytesMut,
    in_pieces: usize,
}

impl Output {
    /// Creates an empty output.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.in_pieces + self.open.len()
    }

    /// Returns whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns all in one buffer.
    pub fn into_bytes(mut self) -> Bytes {
        let length = self.len();
        self.copy_to_bytes(length)
    }

    pub(crate) fn bytes(&mut self, bytes: &Bytes) {
        if bytes.len() < SHARED_FROM {
            if self.open.len() >= PIECE_BYTES {
                self.close();
            }
            self.open.extend_from_slice(bytes);
            return;
        }
        self.close();
        self.push(bytes.clone());
    }

    fn close(&mut self) {
        if !self.open.is_empty() {
            let before = self.open.split().freeze();
            self.push(before);
        }
    }

    pub(crate) fn into_pieces(mut self) -> VecDeque<Bytes> {
        self.close();
        self.pieces
    }

    fn push(&mut self, piece: Bytes) {
        self.in_pieces += piece.len();
        self.pieces.push_back(piece);
    }

    pub(crate) fn u8(&mut self, byte: u8) {
        self.open.put_u8(byte);
    }

    pub(crate) fn bool(&mut self, is: bool) {
        self.u8(is.into());
    }

    pub(crate) fn u16(&mut self, number: u16) {
        self.open.put_u16(number);
    }

    pub(crate) fn i32(&mut self, number: i32) {
        self.open.put_i32(number);
    }

    pub(crate) fn i64(&mut self, number: i64) {
        self.open.put_i64(number);
    }

    pub(crate) fn vint(&mut self, number: u32) {
        self.vlong(number.into());
    }

    pub(crate) fn vlong(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.open.put_u8(number as u8 | 0x80);
            number >>= 7;
        }
        self.open.put_u8(number as u8);
    }

    pub(crate) fn signed_vint(&mut self, number: i32) {
        self.vint((number << 1 ^ number >> 31) as u32);
    }

    pub(crate) fn array(&mut self, bytes: &Bytes) {
        self.count(bytes.len());
        self.bytes(bytes);
    }

    pub(crate) fn optional_array(&mut self, bytes: Option<&Bytes>) {
        match bytes {
            Some(bytes) => {
                self.signed_vint(i32::try_from(bytes.len()).unwrap_or(i32::MAX));
                self.bytes(bytes);
            }
            None => self.signed_vint(-1),
        }
    }

    pub(crate) fn text(&mut self, text: &Text) {
        self.array(text.as_bytes());
    }

    /// More than 2^32 items do not fit into memory.
    pub(crate) fn count(&mut self, count: usize) {
        self.vint(u32::try_from(count).unwrap_or(u32::MAX));
    }

    /// The caller ensures that the count fits.
    pub(crate) fn count_in_byte(&mut self, count: usize) {
        self.u8(u8::try_from(count).unwrap_or(u8::MAX));
    }
}

impl Buf for Output {
    fn remaining(&self) -> usize {
        self.len()
    }

    fn chunk(&self) -> &[u8] {
        self.pieces.front().map_or(&self.open[..], |piece| &piece[..])
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let pieces = self.pieces.iter().map(|piece| &piece[..]);
        let last = (!self.open.is_empty()).then_some(&self.open[..]);
        let mut count = 0;
        for (slice, piece) in slices.iter_mut().zip(pieces.chain(last)) {
            *slice = IoSlice::new(piece);
            count += 1;
        }
        count
    }

    fn advance(&mut self, mut count: usize) {
        while let Some(piece) = self.pieces.front_mut() {
            let step = count.min(piece.len());
            piece.advance(step);
            self.in_pieces -= step;
            count -= step;
            if !piece.is_empty() {
                return;
            }
            self.pieces.pop_front();
        }
        self.open.advance(count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_values_are_not_copied() {
        let (large, small) = (Bytes::from(vec![7; SHARED_FROM]), Bytes::from_static(b"small"));
        let mut out = Output::new();
        out.u8(1);
        out.array(&large);
        out.array(&small);
        assert_eq!(out.pieces.len(), 2);
        assert_eq!(out.pieces[1].as_ptr(), large.as_ptr());
        assert_eq!(out.len(), 1 + 2 + large.len() + 1 + small.len());
    }

    #[test]
    fn pieces_are_given_in_order_from_wherever_writing_stopped() {
        let large = Bytes::from((0..=255).cycle().take(10_000).collect::<Vec<u8>>());
        let write = || {
            let mut out = Output::new();
            for n in 0..4 {
                out.i32(n);
                out.array(&large);
            }
            out
        };
        let whole = write().into_bytes();
        for step in [1, 5, 4_096, 9_999, 30_000] {
            let mut out = write();
            let mut written = Vec::new();
            while out.has_remaining() {
                let mut slices = [IoSlice::new(&[]); 3];
                let count = out.chunks_vectored(&mut slices);
                let bytes: Vec<u8> = slices[..count].iter().flat_map(|slice| slice.iter().copied()).collect();
                let taken = step.min(bytes.len());
                written.extend_from_slice(&bytes[..taken]);
                out.advance(taken);
            }
            assert_eq!(written, whole);
        }
    }

    /// Facts 1.1.
    #[test]
    fn numbers_are_written_as_others_read_them() {
        let mut out = Output::new();
        out.vint(-1_i32 as u32);
        out.vint(-2_i32 as u32);
        [-1, 0, 1, 2].into_iter().for_each(|number| out.signed_vint(number));
        out.vlong(300);
        let expected = b"\xff\xff\xff\xff\x0f\xfe\xff\xff\xff\x0f\x01\x00\x02\x04\xac\x02";
        assert_eq!(&out.into_bytes()[..], expected);
    }
}
