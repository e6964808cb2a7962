//! Frames: a length word and its bytes.
//!
//! A read takes all that the socket has, and splits frames off without copying. A write gathers queued frames into
//! one system call.

use std::io::{self, IoSlice};
use std::task::{Context, Poll, Waker};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use consort_group::Time;
use consort_memory::Reservation;

use super::queue::{FRAMES_PER_WRITE, SLICES_PER_WRITE, SendQueue};
use super::stream::Stream;

/// The size of the stock files' largest bundle.
const READ_LEN_MIN: usize = 64 * 1024;

/// The capacity doubles from the minimum while reads fill it. With more, data leaves the CPU's cache before the stack reads it;
/// with less, frames are split more often, and their first parts copied.
pub(crate) const READ_LEN_MAX: usize = 128 * 1024;

/// A frame of at least this size keeps the buffer, and following bytes are copied into a new one. Otherwise the buffer would stay
/// as large, without a reservation.
const FRAME_ALONE_MIN: usize = READ_LEN_MAX;

/// Announces a graceful close.
pub const CLOSE_WORD: [u8; 4] = (-5i32).to_be_bytes();

/// An item of a byte stream.
#[derive(PartialEq, Eq, Debug)]
pub enum Frame {
    /// A payload.
    Payload(Bytes),
    /// The peer will close.
    Close,
}

/// An invalid length word.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("frame of {length} bytes, at most {max} are read{}", hint(*.length))]
pub struct BadLength {
    /// The word.
    pub length: i32,
    /// The longest frame in bytes.
    pub max: usize,
}

/// A TLS member begins with a handshake, and answers a member without TLS with an alert.
const fn hint(length: i32) -> &'static str {
    match length >> 16 {
        0x1503 => " (an alert of TLS: TLS is enabled at the peer, not here)",
        0x1603 => " (a handshake of TLS: TLS is enabled at the peer, not here)",
        _ => "",
    }
}

/// Takes the next complete frame; fails if the length word is invalid.
pub fn next_frame(input: &mut BytesMut, max: usize) -> Result<Option<Frame>, BadLength> {
    let Some(length) = frame_length(input) else { return Ok(None) };
    if length.to_be_bytes() == CLOSE_WORD {
        input.advance(4);
        return Ok(Some(Frame::Close));
    }
    let len = usize::try_from(length)
        .ok()
        .filter(|len| (1..=max).contains(len))
        .ok_or(BadLength { length, max })?;
    if input.len() < 4 + len {
        return Ok(None);
    }
    input.advance(4);
    let frame = input.split_to(len).freeze();
    if len >= FRAME_ALONE_MIN {
        *input = BytesMut::from(&input[..]);
    }
    Ok(Some(Frame::Payload(frame)))
}

/// Appends a frame, for writes of several.
pub fn put_frame(out: &mut BytesMut, frame: &[u8]) {
    out.put_i32(frame.len() as i32);
    out.put_slice(frame);
}

/// Returns the next read's capacity. It grows with received bytes, never with an announced length; a long frame gets at most its
/// rest.
pub fn read_capacity(input: &[u8], read_len: usize) -> usize {
    let promised = frame_length(input).and_then(|len| usize::try_from(len).ok()).unwrap_or(0);
    let missing = (4 + promised).saturating_sub(input.len());
    let room = read_len.max(missing.min(2 * input.len()));
    if promised >= FRAME_ALONE_MIN && missing > 0 { room.min(missing) } else { room }
}

/// Returns the capacity from [`reserve_room`]; `None` if the buffer has enough.
pub fn capacity_wanted(input: &BytesMut, read_len: usize) -> Option<usize> {
    let wanted = read_capacity(input, read_len);
    let free = input.capacity() - input.len();
    (free < wanted.div_ceil(2)).then(|| input.len() + wanted)
}

/// Makes room for the next read, [`capacity_wanted`] and no byte more: [`BytesMut::reserve`] would double a growing buffer,
/// beyond its reservation.
pub fn reserve_room(input: &mut BytesMut, read_len: usize) {
    let Some(capacity) = capacity_wanted(input, read_len) else { return };
    if !input.try_reclaim(capacity - input.len()) {
        let mut grown = BytesMut::with_capacity(capacity);
        grown.extend_from_slice(input);
        *input = grown;
    }
}

fn frame_length(input: &[u8]) -> Option<i32> {
    input.first_chunk().copied().map(i32::from_be_bytes)
}

/// The state of this member's side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ending {
    Open,
    /// The written bytes of the close word, which follows the queue.
    Word(usize),
    Shutdown,
    Done,
}

pub(crate) struct Framed {
    stream: Stream,
    pub(crate) input: BytesMut,
    read_len: usize,
    pub(crate) queue: SendQueue,
    /// The socket is full until its waker is woken.
    is_blocked: bool,
    /// A TLS stream may hold bytes back.
    is_unflushed: bool,
    ending: Ending,
    /// The close word has come.
    pub(crate) is_peer_closing: bool,
    /// This member opened it, to a known address.
    pub(crate) is_ours: bool,
    pub(crate) unfinished_since: Option<Time>,
    /// The reservation exceeds an ordinary read.
    pub(crate) held: Option<Reservation>,
}

impl Framed {
    pub(crate) fn new(stream: Stream, queue: SendQueue) -> Self {
        Self {
            stream,
            input: BytesMut::new(),
            read_len: READ_LEN_MIN,
            queue,
            is_blocked: false,
            is_unflushed: false,
            ending: Ending::Open,
            is_peer_closing: false,
            is_ours: false,
            unfinished_since: None,
            held: None,
        }
    }

    pub(crate) fn finish_frame(&mut self) {
        (self.unfinished_since, self.held) = (None, None);
    }

    /// 0 if the length is not known yet.
    pub(crate) fn unfinished_len(&self) -> usize {
        frame_length(&self.input).and_then(|len| usize::try_from(len).ok()).unwrap_or(0)
    }

    pub(crate) fn capacity_needed(&self) -> Option<usize> {
        capacity_wanted(&self.input, self.read_len)
    }

    /// Ready with zero at the stream's end. The buffer comes from `spare`, and [`Framed::return_buffer`] returns it,
    /// so that an idle connection holds none.
    pub(crate) fn poll_fill(&mut self, waker: &Waker, spare: &mut BytesMut) -> Poll<io::Result<usize>> {
        if self.input.capacity() == 0 {
            self.input = std::mem::take(spare);
        }
        reserve_room(&mut self.input, self.read_len);
        let room = self.input.capacity() - self.input.len();
        let polled = self.stream.poll_read(&mut Context::from_waker(waker), &mut self.input);
        if let Poll::Ready(Ok(count)) = polled
            && count >= room.min(self.read_len)
        {
            self.read_len = (self.read_len * 2).min(READ_LEN_MAX);
        }
        polled
    }

    pub(crate) fn return_buffer(&mut self, spare: &mut BytesMut) {
        if self.input.is_empty() {
            let own = std::mem::take(&mut self.input);
            if own.capacity() > spare.capacity() {
                *spare = own;
            }
        }
    }

    pub(crate) fn peer(&self) -> String {
        self.stream.peer()
    }

    pub(crate) fn has_output(&self) -> bool {
        !self.queue.is_empty() || self.is_unflushed
    }

    pub(crate) fn is_blocked(&self) -> bool {
        self.is_blocked
    }

    /// The close word follows the queue, because within a frame it would be read as a part.
    pub(crate) fn end(&mut self, is_graceful: bool) {
        if self.ending == Ending::Open {
            let is_graceful = is_graceful && !self.queue.is_mid_frame();
            self.ending = if is_graceful { Ending::Word(0) } else { Ending::Shutdown };
        }
    }

    /// The queue is for the connection that replaces this one.
    pub(crate) fn end_without_queue(&mut self) -> SendQueue {
        self.end(true);
        let mut queue = std::mem::take(&mut self.queue);
        queue.begin(Bytes::new());
        queue
    }

    /// Returns bytes and writes; the rest waits for the waker.
    pub(crate) fn write(&mut self, waker: &Waker) -> io::Result<(u64, u64)> {
        let mut cx = Context::from_waker(waker);
        let (mut bytes, mut calls) = (0, 0);
        self.is_blocked = false;
        while !self.queue.is_empty() {
            let mut lengths = [[0; 4]; FRAMES_PER_WRITE];
            let mut slices = [IoSlice::new(&[]); SLICES_PER_WRITE];
            let used = self.queue.gather(&mut lengths, &mut slices);
            match self.stream.poll_write(&mut cx, &slices[..used]) {
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(count)) => {
                    calls += 1;
                    self.queue.consume(count);
                    self.is_unflushed = true;
                    bytes += count as u64;
                }
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => {
                    self.is_blocked = true;
                    return Ok((bytes, calls));
                }
            }
        }
        self.is_blocked = self.finish(&mut cx)?.is_pending();
        Ok((bytes, calls))
    }

    fn finish(&mut self, cx: &mut Context<'_>) -> io::Result<Poll<()>> {
        loop {
            match self.ending {
                Ending::Open | Ending::Done => break,
                Ending::Word(written) if written < CLOSE_WORD.len() => {
                    match self.stream.poll_write(cx, &[IoSlice::new(&CLOSE_WORD[written..])]) {
                        Poll::Ready(count) => self.ending = Ending::Word(written + count?.max(1)),
                        Poll::Pending => return Ok(Poll::Pending),
                    }
                    self.is_unflushed = true;
                }
                Ending::Word(_) => self.ending = Ending::Shutdown,
                Ending::Shutdown => match self.stream.poll_shutdown(cx) {
                    Poll::Ready(result) => {
                        self.ending = Ending::Done;
                        result?;
                    }
                    Poll::Pending => return Ok(Poll::Pending),
                },
            }
        }
        if self.is_unflushed {
            match self.stream.poll_flush(cx) {
                Poll::Ready(result) => result?,
                Poll::Pending => return Ok(Poll::Pending),
            }
            self.is_unflushed = false;
        }
        Ok(Poll::Ready(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(bytes: &[u8]) -> (Vec<Frame>, Option<BadLength>) {
        let mut input = BytesMut::from(bytes);
        let mut out = Vec::new();
        loop {
            match next_frame(&mut input, 100) {
                Ok(Some(frame)) => out.push(frame),
                Ok(None) => return (out, None),
                Err(error) => return (out, Some(error)),
            }
        }
    }

    #[test]
    fn frames_are_split_at_their_lengths() {
        let (seen, error) = frames(b"\0\0\0\x02ab\0\0\0\x01c\xff\xff\xff\xfb\0\0\0\x09part");
        let payload = |bytes: &'static [u8]| Frame::Payload(Bytes::from_static(bytes));
        assert_eq!(seen, [payload(b"ab"), payload(b"c"), Frame::Close]);
        assert_eq!(error, None);
    }

    #[test]
    fn a_large_frame_keeps_the_buffer_and_leaves_the_bytes_behind_it() {
        let large = vec![7; FRAME_ALONE_MIN];
        let mut input = BytesMut::new();
        put_frame(&mut input, &large);
        put_frame(&mut input, b"next");
        input.reserve(10 * FRAME_ALONE_MIN);
        let frame = next_frame(&mut input, 2 * FRAME_ALONE_MIN);
        assert_eq!(frame, Ok(Some(Frame::Payload(large.into()))));
        assert!(input.capacity() < READ_LEN_MAX, "{}", input.capacity());
        assert_eq!(next_frame(&mut input, 100), Ok(Some(Frame::Payload(Bytes::from_static(b"next")))));
    }

    #[test]
    fn buffer_of_a_long_frame_has_the_capacity_that_is_wanted_and_no_more_than_the_frame() {
        const LEN: usize = 5_000_000;
        let (mut input, mut grown) = (BytesMut::new(), 0);
        input.put_i32(LEN as i32);
        while input.len() < 4 + LEN {
            let before = input.capacity();
            let wanted = capacity_wanted(&input, READ_LEN_MAX);
            reserve_room(&mut input, READ_LEN_MAX);
            match wanted {
                Some(capacity) => {
                    assert_eq!(input.capacity(), capacity);
                    grown += 1;
                }
                None => assert_eq!(input.capacity(), before),
            }
            assert!(input.capacity() <= 4 + LEN);
            // As much as a read gives.
            let count = (input.capacity() - input.len()).min(READ_LEN_MAX);
            input.put_bytes(7, count);
        }
        // Each time by a half at least: what has come is not copied again and again.
        assert!(grown < 12, "{grown} times");
        assert!(matches!(next_frame(&mut input, LEN), Ok(Some(Frame::Payload(_)))));
    }

    #[test]
    fn buffer_whose_frames_are_done_with_is_used_again() {
        let mut input = BytesMut::new();
        reserve_room(&mut input, READ_LEN_MAX);
        let memory = input.as_ptr();
        for _ in 0..100 {
            while input.capacity() - input.len() >= READ_LEN_MAX / 2 {
                put_frame(&mut input, &[7; 60_000]);
            }
            input.put_i32(60_000);
            while let Ok(Some(frame)) = next_frame(&mut input, READ_LEN_MAX) {
                assert!(matches!(frame, Frame::Payload(_)));
            }
            reserve_room(&mut input, READ_LEN_MAX - 4);
            assert_eq!(input.as_ptr(), memory);
            input.clear();
        }
    }

    #[test]
    fn an_invalid_length_is_an_error_before_its_bytes_arrive() {
        for length in [0i32, -1, -4, i32::MIN, 101, i32::MAX] {
            let (seen, error) = frames(&length.to_be_bytes());
            assert_eq!((seen.len(), error), (0, Some(BadLength { length, max: 100 })));
        }
    }

    #[test]
    fn an_alert_and_a_handshake_of_tls_are_recognised() {
        for bytes in [b"\x15\x03\x03\x00\x02\x02\x46", b"\x16\x03\x01\x02\x00\x01\x00"] {
            let (_, error) = frames(bytes);
            assert!(error.unwrap().to_string().contains("TLS is enabled at the peer, not here"));
        }
    }
}
