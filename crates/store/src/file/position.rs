use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::disk::DiskFile;

/// Later files compare greater.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position {
    pub(crate) file: u32,
    pub(crate) offset: u32,
}

#[derive(Debug, Default)]
pub(crate) struct Tail {
    pub(crate) written: Position,
    file: Option<Arc<dyn DiskFile>>,
}

impl Tail {
    pub(crate) fn new(written: Position, file: Arc<dyn DiskFile>) -> Self {
        Self { written, file: Some(file) }
    }

    pub(crate) fn file(&self) -> Option<&Arc<dyn DiskFile>> {
        self.file.as_ref()
    }
}

#[derive(Debug, Default)]
pub(crate) struct Safe(AtomicU64);

impl Safe {
    pub(crate) fn position(&self) -> Position {
        let both = self.0.load(Ordering::Acquire);
        Position { file: (both >> 32) as u32, offset: both as u32 }
    }

    /// A slow sync must not lower the position of a later one.
    pub(crate) fn raise(&self, position: Position) {
        self.0.fetch_max(u64::from(position.file) << 32 | u64::from(position.offset), Ordering::AcqRel);
    }

    pub(crate) fn offset_in(&self, file: u32) -> u32 {
        let position = self.position();
        if position.file == file { position.offset } else { 0 }
    }
}
