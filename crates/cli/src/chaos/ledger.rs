//! The attempted and acknowledged writes by key, in files that outlive the members.
//!
//! A key has one writer, and its n-th value is n. A read is valid if it returns no less than the value
//! acknowledged before it began and no more than the value attempted when it ends.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Two counts, each with its complement, which detects a count that is being written.
const PLACE: u64 = 32;

/// Writing a count takes less than a microsecond.
const READS_MAX: u32 = 10_000;

/// A restarted member continues its place's ledger.
pub(crate) struct Ledger {
    files: Vec<File>,
    keys_each: u32,
}

impl Ledger {
    pub(crate) fn open(directory: &Path, places: usize, keys_each: u32) -> io::Result<Self> {
        let open = |nth: usize| {
            let path = directory.join(format!("ledger-{nth}"));
            let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
            Ok(file)
        };
        Ok(Self { files: (0..places).map(open).collect::<io::Result<_>>()?, keys_each })
    }

    pub(crate) fn keys(&self) -> u32 {
        self.keys_each * self.files.len() as u32
    }

    pub(crate) fn keys_of(&self, place: usize) -> std::ops::Range<u32> {
        let first = place as u32 * self.keys_each;
        first..first + self.keys_each
    }

    fn at(&self, key: u32) -> (&File, u64) {
        (&self.files[(key / self.keys_each) as usize], u64::from(key % self.keys_each) * PLACE)
    }

    fn read(&self, key: u32, part: u64) -> io::Result<u64> {
        let (file, at) = self.at(key);
        for _ in 0..READS_MAX {
            let mut bytes = [0; 16];
            match file.read_exact_at(&mut bytes, at + part) {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                other => other?,
            }
            let both = u128::from_le_bytes(bytes);
            let (count, complement) = (both as u64, (both >> 64) as u64);
            match (count, complement) {
                // A place without a write.
                (0, 0) => return Ok(0),
                _ if count == !complement => return Ok(count),
                _ => std::hint::spin_loop(),
            }
        }
        Err(io::Error::other(format!("the ledger of key {key} is inconsistent")))
    }

    fn write(&self, key: u32, part: u64, count: u64) -> io::Result<()> {
        let (file, at) = self.at(key);
        let both = u128::from(count) | u128::from(!count) << 64;
        file.write_all_at(&both.to_le_bytes(), at + part)
    }

    pub(crate) fn tried(&self, key: u32) -> io::Result<u64> {
        self.read(key, 0)
    }

    pub(crate) fn acknowledged(&self, key: u32) -> io::Result<u64> {
        self.read(key, 16)
    }

    pub(crate) fn note_tried(&self, key: u32, count: u64) -> io::Result<()> {
        self.write(key, 0, count)
    }

    pub(crate) fn note_acknowledged(&self, key: u32, count: u64) -> io::Result<()> {
        self.write(key, 16, count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_noted_by_one_process_are_read_by_others() {
        let directory = std::env::temp_dir().join(format!("consort-ledger-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let one = Ledger::open(&directory, 2, 10).unwrap();
        let other = Ledger::open(&directory, 2, 10).unwrap();
        one.note_tried(13, 7).unwrap();
        one.note_acknowledged(13, 6).unwrap();
        assert_eq!((other.tried(13).unwrap(), other.acknowledged(13).unwrap()), (7, 6));
        assert_eq!((other.tried(3).unwrap(), other.acknowledged(19).unwrap()), (0, 0));
        assert_eq!((other.keys(), other.keys_of(1)), (20, 10..20));
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
