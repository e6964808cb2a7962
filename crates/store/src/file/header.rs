//! The header of a log file, and the file META.
//!
//! A header lists the live older files and the removed segments when the file was begun. So the newest file is
//! the table of contents: an unlisted older file is obsolete, a listed one that is missing is damage. Creating
//! a file thereby commits a `clear`.
//!
//! Both are written once; numbers are little-endian.
//!
//! | log file | bytes | | META | bytes |
//! | --- | --- | --- | --- | --- |
//! | crc32c of the rest | 4 | | crc32c of the rest | 4 |
//! | `CONSLOG` and a zero | 8 | | `CONSMTA` and a zero | 8 |
//! | length of the header | 4 | | format | 4 |
//! | number of the file | 4 | | segments | 2 |
//! | run of the machine, 0: unknown | 16 | | | |
//! | next change | 8 | | | |
//! | count of files, their numbers | 4 + 4 each | | | |
//! | count of segments removed, (segment, change) | 4 + 10 each | | | |

use std::io;

use super::record::{u32_at, u64_at};
use crate::disk::Disk;
use crate::error::{Settings, StoreError};

pub(crate) const FORMAT: u32 = 1;

pub(crate) const META: &str = "META";

const META_DRAFT: &str = "META.new";

const LOG_MAGIC: [u8; 8] = *b"CONSLOG\0";
const META_MAGIC: [u8; 8] = *b"CONSMTA\0";

const LISTS: usize = 44;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) number: u32,
    /// 0 if unknown.
    pub(crate) boot: u128,
    /// Lower bound of the changes of this and later files, except copies.
    pub(crate) next_change: u64,
    pub(crate) files: Vec<u32>,
    /// Changes of a segment below its number are dead.
    pub(crate) floors: Vec<(u16, u64)>,
}

impl Header {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; 4];
        bytes.extend_from_slice(&LOG_MAGIC);
        let len = LISTS + 4 + 4 * self.files.len() + 4 + 10 * self.floors.len();
        bytes.extend_from_slice(&(len as u32).to_le_bytes());
        bytes.extend_from_slice(&self.number.to_le_bytes());
        bytes.extend_from_slice(&self.boot.to_le_bytes());
        bytes.extend_from_slice(&self.next_change.to_le_bytes());
        bytes.extend_from_slice(&(self.files.len() as u32).to_le_bytes());
        for file in &self.files {
            bytes.extend_from_slice(&file.to_le_bytes());
        }
        bytes.extend_from_slice(&(self.floors.len() as u32).to_le_bytes());
        for (segment, change) in &self.floors {
            bytes.extend_from_slice(&segment.to_le_bytes());
            bytes.extend_from_slice(&change.to_le_bytes());
        }
        seal(bytes)
    }

    pub(crate) fn decode(bytes: &[u8], number: u32) -> Option<(Self, u32)> {
        let len = Self::encoded_len(bytes)?;
        let bytes = bytes.get(..len as usize)?;
        if bytes.len() < LISTS || !is_sealed(bytes) || u32_at(bytes, 16) != number {
            return None;
        }
        let boot = bytes[20..].first_chunk().map(|boot| u128::from_le_bytes(*boot))?;
        let next_change = u64_at(bytes, 36);
        let mut rest = &bytes[LISTS..];
        let files = list(&mut rest, 4, |item| u32_at(item, 0))?;
        let floors = list(&mut rest, 10, |item| (u16::from_le_bytes([item[0], item[1]]), u64_at(item, 2)))?;
        let ascends =
            files.windows(2).all(|pair| pair[0] < pair[1]) && files.last().is_none_or(|&last| last < number);
        (rest.is_empty() && ascends).then_some((Self { number, boot, next_change, files, floors }, len))
    }

    pub(crate) fn encoded_len(bytes: &[u8]) -> Option<u32> {
        (bytes.len() >= 16 && bytes[4..12] == LOG_MAGIC).then(|| u32_at(bytes, 12))
    }
}

fn list<T>(bytes: &mut &[u8], size: usize, item: impl Fn(&[u8]) -> T) -> Option<Vec<T>> {
    let (count, rest) = bytes.split_first_chunk::<4>()?;
    let len = (u32::from_le_bytes(*count) as usize).checked_mul(size)?;
    let (items, rest) = rest.split_at_checked(len)?;
    *bytes = rest;
    Some(items.chunks_exact(size).map(item).collect())
}

pub(super) fn seal(mut bytes: Vec<u8>) -> Vec<u8> {
    let sum = crc32c::crc32c(&bytes[4..]);
    bytes[..4].copy_from_slice(&sum.to_le_bytes());
    bytes
}

pub(super) fn is_sealed(bytes: &[u8]) -> bool {
    u32_at(bytes, 0) == crc32c::crc32c(&bytes[4..])
}

pub(crate) fn log_name(number: u32) -> String {
    format!("{number:010}.log")
}

pub(crate) fn log_number(name: &str) -> Option<u32> {
    let number = name.strip_suffix(".log")?.parse().ok()?;
    (log_name(number) == name).then_some(number)
}

pub(crate) fn check_meta(disk: &dyn Disk, ours: Settings) -> Result<(), StoreError> {
    let file = match disk.open(META) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return make_meta(disk, ours),
        Err(error) => return Err(StoreError::io("open", META, error)),
    };
    let mut bytes = [0; 64];
    let len = file.read_at(&mut bytes, 0).map_err(|error| StoreError::io("read", META, error))?;
    let bytes = &bytes[..len];
    let corrupt = |what| StoreError::Corrupt { file: META.to_owned(), offset: 0, what };
    if bytes.len() < 16 || bytes[4..12] != META_MAGIC || !is_sealed(bytes) {
        return Err(corrupt("invalid META file"));
    }
    let found = u32_at(bytes, 12);
    if found != FORMAT {
        return Err(StoreError::WrongFormat { found, expected: FORMAT });
    }
    let &[low, high] = &bytes[16..] else { return Err(corrupt("invalid META file")) };
    let theirs = Settings { segments: u16::from_le_bytes([low, high]) };
    if ours == theirs { Ok(()) } else { Err(StoreError::WrongSettings { ours, theirs }) }
}

fn make_meta(disk: &dyn Disk, settings: Settings) -> Result<(), StoreError> {
    let names = disk.list().map_err(|error| StoreError::io("list", &disk.name(), error))?;
    if names.iter().any(|name| log_number(name).is_some()) {
        let what = "META is missing, but log files exist";
        return Err(StoreError::Corrupt { file: META.to_owned(), offset: 0, what });
    }
    let bytes = encode_meta(FORMAT, settings);
    let write = || {
        let file = disk.create(META_DRAFT)?;
        file.write_at(&bytes, 0)?;
        file.sync()?;
        disk.rename(META_DRAFT, META)?;
        disk.sync_names()
    };
    write().map_err(|error| StoreError::io("write", META, error))
}

pub(crate) fn encode_meta(format: u32, settings: Settings) -> Vec<u8> {
    let mut bytes = vec![0; 4];
    bytes.extend_from_slice(&META_MAGIC);
    bytes.extend_from_slice(&format.to_le_bytes());
    bytes.extend_from_slice(&settings.segments.to_le_bytes());
    seal(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::SimDisk;

    #[test]
    fn a_header_is_read_as_written_and_damage_is_detected() {
        let header = Header {
            number: 9,
            boot: 77,
            next_change: 1000,
            files: vec![1, 4, 8],
            floors: vec![(3, 500), (9, 2)],
        };
        let bytes = header.encode();
        assert_eq!(Header::decode(&bytes, 9), Some((header, bytes.len() as u32)));
        assert_eq!(Header::decode(&bytes, 8), None);
        for at in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[at / 8] ^= 1 << (at % 8);
            assert_eq!(Header::decode(&damaged, 9), None, "bit {at}");
        }
        for len in 0..bytes.len() {
            assert_eq!(Header::decode(&bytes[..len], 9), None);
        }
    }

    #[test]
    fn another_format_and_other_settings_are_refused_and_named() {
        let disk = SimDisk::new(1);
        check_meta(&disk, Settings { segments: 4 }).unwrap();
        check_meta(&disk, Settings { segments: 4 }).unwrap();
        let error = check_meta(&disk, Settings { segments: 5 }).unwrap_err();
        assert_eq!(error.to_string(), "configured for 5 segments, but the store was created with 4");
        disk.place(META, &encode_meta(FORMAT + 1, Settings { segments: 4 }));
        let error = check_meta(&disk, Settings { segments: 4 }).unwrap_err();
        assert_eq!(error.to_string(), "the store has format 2; this program supports 1");
        disk.place(META, b"something else");
        let error = check_meta(&disk, Settings { segments: 4 }).unwrap_err();
        assert!(matches!(error, StoreError::Corrupt { .. }), "{error}");
    }
}
