//! Records of a log file. Any change of this format is a new [`FORMAT`](super::header::FORMAT).
//!
//! All numbers are little-endian.
//!
//! | at | bytes | |
//! | --- | --- | --- |
//! | 0 | 4 | crc32c of the file's number, the record's offset (4 bytes each) and everything after this field |
//! | 4 | 4 | length of the record |
//! | 8 | 1 | kind |
//! | 9 | 1 | 0 |
//! | 10 | 2 | segment |
//! | 12 | 4 | bytes of this file that were safe when the record was written |
//! | 16 | 8 | number of the change, store-wide |
//! | 24 | 4 | length of the key |
//! | 28 | 40 | of a put: version, created, used, lifespan, max_idle (all ones: none) |
//! | | | key, value |
//!
//! The checksum covers the record's location, because a value may hold a copy of a log file, whose records must
//! not be found after damage.
//!
//! *Safe bytes* distinguish torn writes from damage: a record before that offset was complete and durable.

use bytes::Bytes;

use crate::entry::{Entry, Segment, Times};

/// Bytes before the key of all records but puts.
pub(crate) const HEAD: usize = 28;

pub(crate) const PUT_HEAD: usize = HEAD + 40;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Put = 1,
    /// The key has no value.
    Remove = 2,
    /// The segment has no entries.
    RemoveSegment = 3,
    /// The file numbered `change` is dropped.
    Dropped = 4,
    /// The end of the file; everything before it was durable.
    Seal = 5,
    /// The first record of a file: the header was durable.
    Begin = 6,
}

impl Kind {
    fn of(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Put,
            2 => Self::Remove,
            3 => Self::RemoveSegment,
            4 => Self::Dropped,
            5 => Self::Seal,
            6 => Self::Begin,
            _ => return None,
        })
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Record<'a> {
    pub(crate) kind: Kind,
    pub(crate) segment: Segment,
    pub(crate) safe: u32,
    pub(crate) change: u64,
    pub(crate) version: u64,
    pub(crate) times: Times,
    pub(crate) key: &'a [u8],
    pub(crate) value: &'a [u8],
    pub(crate) bytes: &'a [u8],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Location {
    pub(crate) file: u32,
    pub(crate) offset: u32,
    pub(crate) len: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// Incomplete; the number is the length needed, if they are a record.
    Short(u32),
    Bad(&'static str),
}

impl Flaw {
    pub(crate) fn describe(self) -> &'static str {
        match self {
            Self::Short(_) => "the file ends within a record",
            Self::Bad(what) => what,
        }
    }
}

impl<'a> Record<'a> {
    pub(crate) fn decode(bytes: &'a [u8], file: u32, offset: u32) -> Result<Self, Flaw> {
        let head: &[u8; HEAD] = bytes.first_chunk().ok_or(Flaw::Short(HEAD as u32))?;
        let len = u32_at(head, 4);
        let kind = Kind::of(head[8]).ok_or(Flaw::Bad("unknown kind of record"))?;
        let before_key = if kind == Kind::Put { PUT_HEAD } else { HEAD };
        let key_len = u32_at(head, 24) as usize;
        let safe = u32_at(head, 12);
        let fits = head[9] == 0
            && (before_key + key_len <= len as usize)
            && (kind == Kind::Put || before_key + key_len == len as usize)
            && offset.checked_add(len).is_some()
            && safe <= offset;
        if !fits {
            return Err(Flaw::Bad("inconsistent lengths in a record"));
        }
        let bytes = bytes.get(..len as usize).ok_or(Flaw::Short(len))?;
        if u32_at(head, 0) != checksum(file, offset, &bytes[4..]) {
            return Err(Flaw::Bad("wrong checksum of a record"));
        }
        let (key, value) = bytes[before_key..].split_at(key_len);
        let (version, times) = if kind == Kind::Put { decode_put(bytes) } else { Default::default() };
        let segment = u16::from_le_bytes([head[10], head[11]]);
        Ok(Self { kind, segment, safe, change: u64_at(head, 16), version, times, key, value, bytes })
    }

    pub(crate) fn entry(&self, owner: &Bytes) -> Entry {
        Entry {
            segment: self.segment,
            key: owner.slice_ref(self.key),
            value: owner.slice_ref(self.value),
            version: self.version,
            times: self.times,
        }
    }
}

pub(crate) fn decode_put(head: &[u8]) -> (u64, Times) {
    let life = |at| Some(u64_at(head, at)).filter(|&life| life != u64::MAX);
    let times =
        Times { created: u64_at(head, 36), used: u64_at(head, 44), lifespan: life(52), max_idle: life(60) };
    (u64_at(head, 28), times)
}

pub(crate) fn put_len(entry: &Entry) -> u64 {
    (PUT_HEAD + entry.key.len() + entry.value.len()) as u64
}

pub(crate) fn remove_len(key: &[u8]) -> u64 {
    (HEAD + key.len()) as u64
}

#[derive(Debug)]
pub(crate) struct Encoder<'a> {
    bytes: &'a mut Vec<u8>,
    file: u32,
    start: u32,
    safe: u32,
}

impl<'a> Encoder<'a> {
    pub(crate) fn new(bytes: &'a mut Vec<u8>, file: u32, start: u32, safe: u32) -> Self {
        bytes.clear();
        Self { bytes, file, start, safe }
    }

    pub(crate) fn put(&mut self, change: u64, entry: &Entry) -> Location {
        let at = self.head(Kind::Put, entry.segment, change, entry.key.len());
        let life = |life: Option<u64>| life.map_or(u64::MAX, |life| life.min(u64::MAX - 1));
        let times = &entry.times;
        for number in [entry.version, times.created, times.used, life(times.lifespan), life(times.max_idle)] {
            self.bytes.extend_from_slice(&number.to_le_bytes());
        }
        self.bytes.extend_from_slice(&entry.key);
        self.bytes.extend_from_slice(&entry.value);
        self.finish(at)
    }

    pub(crate) fn remove(&mut self, change: u64, segment: Segment, key: &[u8]) -> Location {
        let at = self.head(Kind::Remove, segment, change, key.len());
        self.bytes.extend_from_slice(key);
        self.finish(at)
    }

    pub(crate) fn mark(&mut self, kind: Kind, change: u64, segment: Segment) -> Location {
        let at = self.head(kind, segment, change, 0);
        self.finish(at)
    }

    pub(crate) fn copy(&mut self, record: &[u8]) -> Location {
        let at = self.bytes.len();
        self.bytes.extend_from_slice(record);
        self.bytes[at + 12..at + 16].copy_from_slice(&self.safe.to_le_bytes());
        self.finish(at)
    }

    fn head(&mut self, kind: Kind, segment: Segment, change: u64, key_len: usize) -> usize {
        let at = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 8]);
        self.bytes.extend_from_slice(&[kind as u8, 0]);
        self.bytes.extend_from_slice(&segment.to_le_bytes());
        self.bytes.extend_from_slice(&self.safe.to_le_bytes());
        self.bytes.extend_from_slice(&change.to_le_bytes());
        self.bytes.extend_from_slice(&(key_len as u32).to_le_bytes());
        at
    }

    fn finish(&mut self, at: usize) -> Location {
        let len = (self.bytes.len() - at) as u32;
        let offset = self.start + at as u32;
        let record = &mut self.bytes[at..];
        record[4..8].copy_from_slice(&len.to_le_bytes());
        let sum = checksum(self.file, offset, &record[4..]);
        record[..4].copy_from_slice(&sum.to_le_bytes());
        Location { file: self.file, offset, len }
    }
}

fn checksum(file: u32, offset: u32, bytes: &[u8]) -> u32 {
    let mut place = [0; 8];
    place[..4].copy_from_slice(&file.to_le_bytes());
    place[4..].copy_from_slice(&offset.to_le_bytes());
    crc32c::crc32c_append(crc32c::crc32c(&place), bytes)
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Entry {
        let times = Times { created: 1, used: 2, lifespan: Some(3), max_idle: None };
        Entry { version: 9, times, ..Entry::immortal(258, &b"key"[..], &b"value"[..]) }
    }

    #[test]
    fn a_put_is_encoded_as_the_format_defines() {
        let mut bytes = Vec::new();
        let at = Encoder::new(&mut bytes, 7, 100, 64).put(5, &sample());
        assert_eq!(at, Location { file: 7, offset: 100, len: 76 });
        let hex: String = bytes[4..].iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            hex,
            "4c000000010002014000000005000000000000000300000009000000000000000100000000000000\
             02000000000000000300000000000000ffffffffffffffff6b657976616c7565"
        );
        let record = Record::decode(&bytes, 7, 100).unwrap();
        assert_eq!((record.kind, record.change, record.safe), (Kind::Put, 5, 64));
        let owner = Bytes::copy_from_slice(&bytes);
        assert_eq!(Record::decode(&owner, 7, 100).unwrap().entry(&owner), sample());
    }

    #[test]
    fn a_record_elsewhere_than_it_was_written_is_none() {
        let mut bytes = Vec::new();
        Encoder::new(&mut bytes, 7, 100, 64).put(5, &sample());
        assert!(Record::decode(&bytes, 8, 100).is_err());
        assert!(Record::decode(&bytes, 7, 101).is_err());
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let mut bytes = Vec::new();
        Encoder::new(&mut bytes, 1, 200, 100).put(5, &sample());
        for at in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[at / 8] ^= 1 << (at % 8);
            assert!(Record::decode(&damaged, 1, 200).is_err(), "bit {at}");
        }
        for len in 0..bytes.len() {
            assert!(matches!(Record::decode(&bytes[..len], 1, 200), Err(Flaw::Short(_))));
        }
    }
}
