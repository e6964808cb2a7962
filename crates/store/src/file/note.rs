//! The file NOTE: a note of the store's user, written and synced under a temporary name, so that a complete
//! note always exists.
//!
//! | NOTE | bytes |
//! | --- | --- |
//! | crc32c of the rest | 4 |
//! | `CONSNOT` and a zero | 8 |
//! | the note | the rest |

use std::io;

use bytes::Bytes;

use super::header::{is_sealed, seal};
use crate::disk::Disk;
use crate::error::StoreError;

const NOTE: &str = "NOTE";

const DRAFT: &str = "NOTE.new";

const MAGIC: [u8; 8] = *b"CONSNOT\0";

const HEAD: usize = 12;

/// A note is some lines about a cluster; a larger file is not read.
const NOTE_BYTES_MAX: u64 = 64 << 20;

pub(super) fn keep(disk: &dyn Disk, note: &[u8]) -> Result<(), StoreError> {
    if note.len() as u64 + HEAD as u64 > NOTE_BYTES_MAX {
        return Err(StoreError::TooLarge { len: note.len() as u64, max: NOTE_BYTES_MAX - HEAD as u64 });
    }
    let mut bytes = vec![0; 4];
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(note);
    let bytes = seal(bytes);
    let write = || {
        let file = disk.create(DRAFT)?;
        file.write_at(&bytes, 0)?;
        file.sync()?;
        disk.rename(DRAFT, NOTE)?;
        disk.sync_names()
    };
    write().map_err(|error| {
        // On a full disk the draft would take needed space.
        let _ = disk.remove(DRAFT);
        StoreError::io("write", NOTE, error)
    })
}

pub(super) fn read(disk: &dyn Disk) -> Result<Option<Bytes>, StoreError> {
    let file = match disk.open(NOTE) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(StoreError::io("open", NOTE, error)),
    };
    let failed = |error| StoreError::io("read", NOTE, error);
    let corrupt = |what| StoreError::Corrupt { file: NOTE.to_owned(), offset: 0, what };
    let len = file.len().map_err(failed)?;
    if len > NOTE_BYTES_MAX {
        return Err(corrupt("the note is too long"));
    }
    let mut bytes = vec![0; len as usize];
    let read = file.read_at(&mut bytes, 0).map_err(failed)?;
    if read < bytes.len() || read < HEAD || bytes[4..HEAD] != MAGIC || !is_sealed(&bytes) {
        return Err(corrupt("invalid note"));
    }
    Ok((read > HEAD).then(|| Bytes::from(bytes).slice(HEAD..)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{Crash, SimDisk};

    #[test]
    fn a_crash_leaves_the_old_note_or_the_new_one() {
        for seed in 0..200 {
            let disk = SimDisk::new(seed);
            keep(&disk, b"old").unwrap();
            disk.crash_after(1 + seed % 7);
            let kept = keep(&disk, b"new");
            disk.restart(Crash::PowerLoss);
            let found = read(&disk).unwrap().unwrap();
            assert!(found == "new" || found == "old" && kept.is_err(), "seed {seed}: {found:?}");
        }
    }

    #[test]
    fn a_damaged_note_is_an_error_and_a_missing_one_is_none() {
        let disk = SimDisk::new(1);
        assert_eq!(read(&disk).unwrap(), None);
        keep(&disk, b"a note").unwrap();
        keep(&disk, b"").unwrap();
        assert_eq!(read(&disk).unwrap(), None);
        keep(&disk, b"a note").unwrap();
        for offset in 0..18 {
            assert!(disk.flip(NOTE, offset, 3));
            assert!(matches!(read(&disk), Err(StoreError::Corrupt { .. })), "byte {offset}");
            assert!(disk.flip(NOTE, offset, 3));
        }
        assert_eq!(read(&disk).unwrap().as_deref(), Some(&b"a note"[..]));
    }
}
