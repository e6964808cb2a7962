//! Reads records in sequence, and finds intact ones after damage.

use std::sync::Arc;

use super::record::{Flaw, HEAD, Record};
use crate::disk::DiskFile;
use crate::error::StoreError;

/// Large enough for fast reading, small compared to the index.
const PIECE: usize = 256 * 1024;

#[derive(Debug)]
pub(crate) struct Scan {
    file: Arc<dyn DiskFile>,
    name: String,
    number: u32,
    at: u32,
    end: u32,
    piece: Vec<u8>,
    piece_at: u32,
}

#[derive(Debug)]
pub(crate) enum Step<'a> {
    Record(u32, Record<'a>),
    /// Not a record. The scan stays there.
    Flaw(u32, Flaw),
    End,
}

impl Scan {
    pub(crate) fn new(file: Arc<dyn DiskFile>, name: String, number: u32, at: u32, end: u32) -> Self {
        Self { file, name, number, at, end, piece: Vec::new(), piece_at: at }
    }

    pub(crate) fn at(&self) -> u32 {
        self.at
    }

    pub(crate) fn seek(&mut self, at: u32) {
        self.at = at;
        if at < self.piece_at {
            self.piece.clear();
            self.piece_at = at;
        }
    }

    pub(crate) fn next(&mut self) -> Result<Step<'_>, StoreError> {
        if self.at >= self.end {
            return Ok(Step::End);
        }
        let at = self.at;
        self.fill(HEAD)?;
        if let Err(Flaw::Short(len)) = Record::decode(self.rest(), self.number, at) {
            self.fill(len as usize)?;
        }
        // Decoded twice at a piece's end, because the borrowed record cannot be kept while the piece grows.
        let from = (at - self.piece_at) as usize;
        match Record::decode(&self.piece[from..], self.number, at) {
            Ok(record) => {
                self.at += record.bytes.len() as u32;
                Ok(Step::Record(at, record))
            }
            Err(flaw) => Ok(Step::Flaw(at, flaw)),
        }
    }

    pub(crate) fn skip_flaw(&mut self) -> Result<bool, StoreError> {
        while self.at < self.end {
            self.at += 1;
            self.fill(HEAD)?;
            let mut found = Record::decode(self.rest(), self.number, self.at).map(drop);
            if let Err(Flaw::Short(len)) = found
                && len <= self.end - self.at
            {
                self.fill(len as usize)?;
                found = Record::decode(self.rest(), self.number, self.at).map(drop);
            }
            if found.is_ok() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn rest(&self) -> &[u8] {
        self.piece.get((self.at - self.piece_at) as usize..).unwrap_or_default()
    }

    /// Fewer bytes only at the end of the file.
    fn fill(&mut self, len: usize) -> Result<(), StoreError> {
        let there = (self.end - self.at) as usize;
        if self.rest().len() >= len.min(there) {
            return Ok(());
        }
        self.piece.clear();
        self.piece_at = self.at;
        self.piece.resize(len.max(PIECE).min(there), 0);
        let count = self
            .file
            .read_at(&mut self.piece, u64::from(self.at))
            .map_err(|error| StoreError::io("read", &self.name, error))?;
        self.piece.truncate(count);
        Ok(())
    }
}
