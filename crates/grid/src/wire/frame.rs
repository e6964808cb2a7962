//! Frames: many commands to one member in one message.

use std::collections::VecDeque;

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::commands::BODY_TAGS;
use crate::codec::{FrameError, Result, Wire, need};
use crate::command::{Body, Command};
use crate::config::CacheId;

const PREFIX: [u8; 2] = [MAGIC, VERSION];
const MAGIC: u8 = 0xc9;

/// Members with different versions cannot share a cache.
pub(crate) const VERSION: u8 = 3;

/// The versions of future releases, whose members are reported.
const VERSIONS: std::ops::RangeInclusive<u8> = 1..=31;

/// Whether a payload begins as a frame of any version.
pub fn is_frame(payload: &[u8]) -> bool {
    matches!(payload, [MAGIC, version, ..] if VERSIONS.contains(version))
}

/// The prefix and the number below which the sender's operations are finished.
const HEAD: usize = 2 + 8;

/// A packet of the transport, so that many commands share a message and no small one waits behind megabytes.
/// A larger command has its own frame.
const FRAME_BYTES: usize = 60_000;

/// Enough for a cycle's commands to one member with some load. The next frame uses the rest of the buffer.
const FRAME_ROOM: usize = 16 * 1024;

/// A frame and its free room of more bytes do not share the allocation with the next frame, because that room
/// would keep it until there are further commands to the member.
const FRAME_ROOM_KEPT_MAX: usize = 4 * FRAME_BYTES;

#[derive(Default)]
pub(crate) struct FrameWriter {
    open: BytesMut,
    closed: VecDeque<Bytes>,
    closed_bytes: usize,
}

impl FrameWriter {
    pub(crate) fn push(&mut self, cache: CacheId, topology: u32, body: &Body) {
        self.push_with(cache, topology, body.bulk_len(), |out| body.put(out));
    }

    /// `put` writes the body: entries of `bulk` bytes, and little else.
    pub(crate) fn push_with(
        &mut self,
        cache: CacheId,
        topology: u32,
        bulk: usize,
        put: impl FnOnce(&mut BytesMut),
    ) {
        if !self.open.is_empty() && self.open.len() + bulk > FRAME_BYTES {
            // A command that fits into a packet of its own should not be split because of the commands before it.
            self.close();
        }
        if self.open.is_empty() {
            self.open.reserve(FRAME_ROOM.max(bulk + bulk / 8));
            put_head(&mut self.open);
        }
        let start = begin(&mut self.open, cache, topology);
        put(&mut self.open);
        end(&mut self.open, start);
        if self.open.len() >= FRAME_BYTES {
            self.close();
        }
    }

    pub(crate) fn push_long(&mut self, mut command: LongCommand) {
        if !self.open.is_empty() {
            self.close();
        }
        end(&mut command.frame, HEAD);
        self.closed_bytes += command.frame.len();
        self.closed.push_back(command.frame.freeze());
    }

    fn close(&mut self) {
        let frame = self.take_open();
        self.closed_bytes += frame.len();
        self.closed.push_back(frame);
    }

    fn take_open(&mut self) -> Bytes {
        let frame = self.open.split().freeze();
        if frame.len() + self.open.capacity() > FRAME_ROOM_KEPT_MAX {
            self.open = BytesMut::new();
        }
        frame
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty() && self.closed.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.closed_bytes + self.open.len()
    }

    /// The last frame has the number `finished`, because it follows the others at once.
    pub(crate) fn next(&mut self, finished: u64) -> Option<Bytes> {
        if let Some(closed) = self.closed.pop_front() {
            self.closed_bytes -= closed.len();
            return Some(closed);
        }
        if self.open.is_empty() {
            return None;
        }
        self.open[2..HEAD].copy_from_slice(&finished.to_be_bytes());
        Some(self.take_open())
    }
}

fn put_head(frame: &mut BytesMut) {
    frame.put_slice(&PREFIX);
    frame.put_u64(0);
}

fn begin(frame: &mut BytesMut, cache: CacheId, topology: u32) -> usize {
    let start = frame.len();
    frame.put_u32(0);
    frame.put_u32(cache.0);
    topology.put(frame);
    start
}

fn end(frame: &mut BytesMut, start: usize) {
    let length = (frame.len() - start - 4) as u32;
    frame[start..start + 4].copy_from_slice(&length.to_be_bytes());
}

pub(crate) struct LongCommand {
    frame: BytesMut,
}

impl LongCommand {
    pub(crate) fn begin(cache: CacheId, topology: u32, room: usize) -> Self {
        let mut frame = BytesMut::with_capacity(HEAD + 16 + room);
        put_head(&mut frame);
        begin(&mut frame, cache, topology);
        Self { frame }
    }

    pub(crate) fn out(&mut self) -> &mut BytesMut {
        &mut self.frame
    }
}

pub(crate) struct FrameReader {
    bytes: Bytes,
    /// All operations of the sender below are finished.
    pub(crate) finished: u64,
    pub(crate) unknown: u64,
}

impl FrameReader {
    pub(crate) fn new(mut bytes: Bytes) -> Result<Self> {
        need(&bytes, "frame", 2)?;
        let found = [bytes[0], bytes[1]];
        if found != PREFIX {
            return Err(match is_frame(&bytes) {
                true => FrameError::OtherVersion { theirs: bytes[1], ours: VERSION },
                false => FrameError::Foreign { found, expected: PREFIX },
            });
        }
        need(&bytes, "frame", HEAD)?;
        bytes.advance(2);
        let finished = bytes.get_u64();
        Ok(Self { bytes, finished, unknown: 0 })
    }

    /// `None` at the end. After an error the rest of the frame is invalid.
    pub(crate) fn next(&mut self) -> Result<Option<Command>> {
        while !self.bytes.is_empty() {
            need(&self.bytes, "command", 4)?;
            let length = self.bytes.get_u32() as usize;
            need(&self.bytes, "command", length)?;
            let mut command = self.bytes.split_to(length);
            need(&command, "cache", 4)?;
            let cache = CacheId(command.get_u32());
            let topology = u32::read(&mut command)?;
            if command.first().is_none_or(|&tag| tag >= BODY_TAGS) {
                self.unknown += 1;
                continue;
            }
            let body = Body::read(&mut command)?;
            return Ok(Some(Command { cache, topology, body }));
        }
        Ok(None)
    }

    /// Reads up to `count_max` further commands, and returns whether there may be more. After an error the
    /// commands before it are valid.
    pub(crate) fn next_into(&mut self, commands: &mut Vec<Command>, count_max: usize) -> Result<bool> {
        while commands.len() < count_max {
            let Some(command) = self.next()? else { return Ok(false) };
            commands.push(command);
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use consort_group::{Address, Uuid};

    use super::*;
    use crate::command::{Call, Pull};
    use crate::history::{Lineage, SegmentHistory};
    use crate::operation::{Action, ReadFrom};
    use crate::{Flags, Segment, Version};

    const CACHE: CacheId = CacheId(7);

    fn read(key: &'static [u8]) -> Body {
        Body::Call(Call {
            number: 9,
            is_repeated: false,
            flags: Flags::NONE,
            key: Bytes::from_static(key),
            action: Action::Read(ReadFrom::Nearest),
            response_bytes_max: 300,
        })
    }

    #[test]
    fn commands_come_back_in_order() {
        let pull = Body::Pull(Pull {
            rebalance: 3,
            side: None,
            segment: Segment(255),
            cursor: Some((1, 2)),
            bytes_max: 9,
        });
        let mut history = SegmentHistory { older: Version::new(1, 3), ..SegmentHistory::default() };
        history.begin([Lineage { id: 40, by: Address::Uuid(Uuid { most: 1, least: 2 }) }].iter());
        history.note_removal(b"k", Version::new(41, 2));
        let known = Body::HistoryUpdate { segment: Segment(3), history };
        let mut writer = FrameWriter::default();
        writer.push(CACHE, 5, &read(b"k"));
        writer.push(CACHE, 6, &pull);
        writer.push(CACHE, 6, &known);
        let frame = writer.next(42).unwrap();
        assert_eq!(writer.next(42), None);
        let mut reader = FrameReader::new(frame).unwrap();
        assert_eq!(reader.finished, 42);
        assert_eq!(reader.next(), Ok(Some(Command { cache: CACHE, topology: 5, body: read(b"k") })));
        assert_eq!(reader.next(), Ok(Some(Command { cache: CACHE, topology: 6, body: pull })));
        assert_eq!(reader.next(), Ok(Some(Command { cache: CACHE, topology: 6, body: known })));
        assert_eq!(reader.next(), Ok(None));
    }

    #[test]
    fn unknown_commands_and_unknown_fields_are_skipped() {
        let mut writer = FrameWriter::default();
        writer.push(CACHE, 5, &read(b"k"));
        let mut frame = BytesMut::from(&writer.next(0).unwrap()[..]);
        let known = frame.len();
        // An unknown body, and a known one with an additional field.
        frame.put_u32(7);
        frame.put_slice(&[0, 0, 0, 7, 5, BODY_TAGS, 1]);
        frame.extend_from_within(HEAD..known);
        let length = (known - HEAD - 4 + 1) as u32;
        let again = frame.len() - (known - HEAD);
        frame[again..again + 4].copy_from_slice(&length.to_be_bytes());
        frame.put_u8(99);
        let mut reader = FrameReader::new(frame.freeze()).unwrap();
        assert_eq!(reader.next().unwrap().unwrap().body, read(b"k"));
        assert_eq!(reader.next().unwrap().unwrap().body, read(b"k"));
        assert_eq!((reader.next(), reader.unknown), (Ok(None), 1));
    }

    #[test]
    fn call_of_an_older_member_has_no_limit_of_its_response() {
        let with = |response_bytes_max| match read(b"k") {
            Body::Call(call) => Body::Call(Call { response_bytes_max, ..call }),
            other => other,
        };
        let frame = |limit| {
            let mut writer = FrameWriter::default();
            writer.push(CACHE, 5, &with(limit));
            writer.next(0).unwrap()
        };
        for (limit, bytes) in [(Call::ANY_BYTES, 0), (100, 1), (70_000, 3)] {
            let frames = [limit, Call::ANY_BYTES].map(frame);
            assert_eq!(frames[0].len() - frames[1].len(), bytes);
            for (frame, limit) in frames.into_iter().zip([limit, Call::ANY_BYTES]) {
                let mut reader = FrameReader::new(frame).unwrap();
                assert_eq!(reader.next().unwrap().unwrap().body, with(limit));
            }
        }
    }

    #[test]
    fn other_bytes_are_foreign_and_cut_ones_short() {
        let foreign = FrameReader::new(Bytes::from_static(b"GET / HTTP/1.1")).err();
        assert!(matches!(foreign, Some(FrameError::Foreign { found: [b'G', b'E'], .. })));
        for version in [0, 1, 2, 4, 31, 32] {
            let error = FrameReader::new(Bytes::from(vec![MAGIC, version])).err().unwrap();
            let is_version =
                matches!(error, FrameError::OtherVersion { theirs, ours: 3 } if theirs == version);
            assert_eq!(is_version, VERSIONS.contains(&version), "{error}");
        }
        let mut writer = FrameWriter::default();
        writer.push(CACHE, 5, &read(b"key"));
        let whole = writer.next(0).unwrap();
        for length in HEAD + 1..whole.len() {
            let mut reader = FrameReader::new(whole.slice(..length)).unwrap();
            assert!(matches!(reader.next(), Err(FrameError::Short { .. })), "{length}");
        }
    }

    #[test]
    fn long_frame_is_closed_and_the_last_frame_has_the_finished_count() {
        let mut writer = FrameWriter::default();
        let key = Bytes::from(vec![1; 25_000]);
        for _ in 0..4 {
            let call = Call {
                number: 1,
                is_repeated: false,
                flags: Flags::NONE,
                key: key.clone(),
                action: Action::Read(ReadFrom::Nearest),
                response_bytes_max: Call::ANY_BYTES,
            };
            writer.push(CACHE, 5, &Body::Call(call));
        }
        let frames = std::iter::from_fn(|| writer.next(3));
        let finished: Vec<u64> = frames.map(|frame| FrameReader::new(frame).unwrap().finished).collect();
        assert_eq!(finished, [0, 3]);
    }

    #[test]
    fn a_large_frame_leaves_no_memory_behind_in_its_writer() {
        let read = |key: Bytes| {
            Body::Call(Call {
                number: 1,
                is_repeated: false,
                flags: Flags::NONE,
                key,
                action: Action::Read(ReadFrom::Nearest),
                response_bytes_max: Call::ANY_BYTES,
            })
        };
        let mut writer = FrameWriter::default();
        let kept = allocation_counter::measure(|| {
            writer.push(CACHE, 5, &read(Bytes::from_static(b"small")));
            // This frame is closed by its size, and the next one by its sender.
            writer.push(CACHE, 5, &read(Bytes::from(vec![1; 10_000_000])));
            writer.push(CACHE, 5, &read(Bytes::from_static(b"small")));
            while writer.next(3).is_some() {}
        });
        assert!(kept.bytes_current < 2 * FRAME_ROOM_KEPT_MAX as i64, "{} bytes", kept.bytes_current);
        assert!(writer.is_empty());
    }
}
