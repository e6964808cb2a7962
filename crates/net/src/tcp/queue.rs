//! The queue to one peer: control first, then data, both bounded in bytes.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::Bytes;
use consort_group::PacketPriority;

/// Three times as many slices, with length words and tails, are well under any limit (1,024). Usual bundles are more bytes than a
/// socket takes at once.
pub(crate) const FRAMES_PER_WRITE: usize = 64;

/// There are the set-up bytes; and length, bytes and tail of each frame.
pub(crate) const SLICES_PER_WRITE: usize = 1 + 3 * FRAMES_PER_WRITE;

/// A frame counts these bytes beside its own, so that tiny frames are bounded too.
const FRAME_OVERHEAD: usize = 64;

/// The limits are in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueLimits {
    pub(crate) data: usize,
    pub(crate) control: usize,
}

/// The frame has no length word yet.
#[derive(Clone, Debug)]
pub(crate) struct OutFrame {
    pub(crate) bytes: Bytes,
    /// The tail follows `bytes` and is often empty.
    pub(crate) tail: Bytes,
}

impl OutFrame {
    fn len(&self) -> usize {
        self.bytes.len() + self.tail.len()
    }

    fn rest<'a>(&'a self, length: &'a [u8; 4], written: usize) -> [&'a [u8]; 3] {
        let mut skip = written;
        [&length[..], &self.bytes, &self.tail].map(|part| {
            let (_, rest) = part.split_at(skip.min(part.len()));
            skip -= part.len() - rest.len();
            rest
        })
    }
}

impl From<Bytes> for OutFrame {
    fn from(bytes: Bytes) -> Self {
        Self { bytes, tail: Bytes::new() }
    }
}

#[derive(Default)]
pub(crate) struct SendQueue {
    /// The set-up bytes.
    head: Bytes,
    /// The number is of written bytes, with the length word.
    current: Option<(OutFrame, usize)>,
    control: VecDeque<OutFrame>,
    data: VecDeque<OutFrame>,
    control_len: usize,
    data_len: usize,
}

impl SendQueue {
    pub(crate) fn push(
        &mut self,
        priority: PacketPriority,
        frame: impl Into<OutFrame>,
        limits: QueueLimits,
    ) -> bool {
        let frame = frame.into();
        let cost = frame.len() + FRAME_OVERHEAD;
        let (frames, length, limit) = match priority {
            PacketPriority::Control => (&mut self.control, &mut self.control_len, limits.control),
            PacketPriority::Data => (&mut self.data, &mut self.data_len, limits.data),
        };
        // An empty queue takes any frame: a limit below the frame size must not block the peer.
        if *length + cost > limit && !frames.is_empty() {
            return false;
        }
        *length += cost;
        frames.push_back(frame);
        true
    }

    /// A frame that was partly written elsewhere begins again.
    pub(crate) fn begin(&mut self, head: Bytes) {
        self.head = head;
        if let Some((_, written)) = &mut self.current {
            *written = 0;
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.head.is_empty() && self.current.is_none() && self.control.is_empty() && self.data.is_empty()
    }

    /// The rest of that frame must be written next.
    pub(crate) fn is_mid_frame(&self) -> bool {
        self.current.as_ref().is_some_and(|(_, written)| *written > 0)
    }

    pub(crate) fn queued_bytes(&self, priority: PacketPriority) -> usize {
        match priority {
            PacketPriority::Control => self.control_len,
            PacketPriority::Data => self.data_len,
        }
    }

    pub(crate) fn data_len(&self) -> usize {
        self.data_len
    }

    pub(crate) fn len(&self) -> usize {
        usize::from(self.current.is_some()) + self.control.len() + self.data.len()
    }

    /// `lengths` holds the frames' length words; returns the slices used.
    pub(crate) fn gather<'a>(
        &'a self,
        lengths: &'a mut [[u8; 4]; FRAMES_PER_WRITE],
        slices: &mut [IoSlice<'a>; SLICES_PER_WRITE],
    ) -> usize {
        let whole = self.control.iter().chain(&self.data).map(|frame| (frame, 0));
        let frames = self.current.iter().map(|(frame, written)| (frame, *written)).chain(whole);
        let mut used = 0;
        let mut put = |bytes: &'a [u8]| {
            if !bytes.is_empty() {
                slices[used] = IoSlice::new(bytes);
                used += 1;
            }
        };
        put(&self.head);
        for ((frame, written), length) in frames.zip(lengths.iter_mut()) {
            *length = u32::try_from(frame.len()).unwrap_or(u32::MAX).to_be_bytes();
            frame.rest(length, written).into_iter().for_each(&mut put);
        }
        used
    }

    pub(crate) fn consume(&mut self, mut count: usize) {
        let from_head = count.min(self.head.len());
        let _ = self.head.split_to(from_head);
        count -= from_head;
        while count > 0 {
            let Some((frame, written)) =
                self.current.take().or_else(|| self.next_frame().map(|frame| (frame, 0)))
            else {
                debug_assert!(false, "more written than was laid out");
                return;
            };
            let rest = frame.len() + 4 - written;
            if count < rest {
                self.current = Some((frame, written + count));
                return;
            }
            count -= rest;
        }
    }

    fn next_frame(&mut self) -> Option<OutFrame> {
        if let Some(frame) = self.control.pop_front() {
            self.control_len -= frame.len() + FRAME_OVERHEAD;
            return Some(frame);
        }
        let frame = self.data.pop_front()?;
        self.data_len -= frame.len() + FRAME_OVERHEAD;
        Some(frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: QueueLimits = QueueLimits { data: 1000, control: 500 };

    fn layout(queue: &SendQueue) -> Vec<u8> {
        let mut lengths = [[0; 4]; FRAMES_PER_WRITE];
        let mut slices = [IoSlice::new(&[]); SLICES_PER_WRITE];
        let used = queue.gather(&mut lengths, &mut slices);
        slices[..used].iter().flat_map(|slice| slice.to_vec()).collect()
    }

    #[test]
    fn control_goes_before_data() {
        let mut queue = SendQueue::default();
        assert!(queue.push(PacketPriority::Data, Bytes::from_static(b"data"), LIMITS));
        assert!(queue.push(PacketPriority::Control, Bytes::from_static(b"ctl"), LIMITS));
        assert_eq!(layout(&queue), b"\0\0\0\x03ctl\0\0\0\x04data");
    }

    #[test]
    fn a_partial_write_is_continued_at_every_byte() {
        let all = b"bela\0\0\0\x03ctl\0\0\0\x04data";
        for first in 0..=all.len() {
            let mut queue = SendQueue::default();
            queue.begin(Bytes::from_static(b"bela"));
            queue.push(PacketPriority::Data, Bytes::from_static(b"data"), LIMITS);
            queue.push(PacketPriority::Control, Bytes::from_static(b"ctl"), LIMITS);
            queue.consume(first);
            // A partly written frame is finished first, even if more urgent frames have arrived since.
            assert_eq!(layout(&queue), &all[first..]);
            queue.consume(all.len() - first);
            assert!(queue.is_empty());
        }
    }

    #[test]
    fn a_frame_and_its_tail_are_one_also_when_written_in_parts() {
        let all = b"\0\0\0\x06headta\0\0\0\x02on";
        for first in 0..=all.len() {
            for second in first..=all.len() {
                let mut queue = SendQueue::default();
                let frame = OutFrame { bytes: Bytes::from_static(b"head"), tail: Bytes::from_static(b"ta") };
                assert!(queue.push(PacketPriority::Data, frame, LIMITS));
                assert_eq!(queue.data_len(), 6 + FRAME_OVERHEAD);
                queue.push(PacketPriority::Data, Bytes::from_static(b"on"), LIMITS);
                queue.consume(first);
                assert_eq!(layout(&queue), &all[first..]);
                queue.consume(second - first);
                assert_eq!(layout(&queue), &all[second..]);
            }
        }
    }

    #[test]
    fn a_begun_data_frame_is_finished_before_control() {
        let mut queue = SendQueue::default();
        queue.push(PacketPriority::Data, Bytes::from_static(b"data"), LIMITS);
        queue.consume(6);
        assert!(queue.is_mid_frame());
        queue.push(PacketPriority::Control, Bytes::from_static(b"ctl"), LIMITS);
        assert_eq!(layout(&queue), b"ta\0\0\0\x03ctl");
    }

    #[test]
    fn a_full_data_lane_does_not_stop_control() {
        let mut queue = SendQueue::default();
        while queue.push(PacketPriority::Data, Bytes::from(vec![0; 100]), LIMITS) {}
        assert_eq!(queue.len(), 6);
        assert!(queue.push(PacketPriority::Control, Bytes::from(vec![0; 100]), LIMITS));
    }

    #[test]
    fn the_control_lane_is_bounded_too() {
        let mut queue = SendQueue::default();
        let taken = (0..100)
            .filter(|_| queue.push(PacketPriority::Control, Bytes::from_static(b"x"), LIMITS))
            .count();
        assert_eq!(taken, 500 / (FRAME_OVERHEAD + 1));
    }

    #[test]
    fn a_new_connection_begins_the_cut_frame_anew() {
        let mut queue = SendQueue::default();
        queue.push(PacketPriority::Data, Bytes::from_static(b"data"), LIMITS);
        queue.consume(6);
        queue.begin(Bytes::from_static(b"bela"));
        assert_eq!(layout(&queue), b"bela\0\0\0\x04data");
    }

    #[test]
    fn one_write_takes_a_bounded_number_of_frames() {
        let mut queue = SendQueue::default();
        let limits = QueueLimits { data: usize::MAX, control: 0 };
        for _ in 0..200 {
            queue.push(PacketPriority::Data, Bytes::from_static(b"12345678"), limits);
        }
        assert_eq!(layout(&queue).len(), FRAMES_PER_WRITE * 12);
    }
}
