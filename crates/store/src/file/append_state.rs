use std::sync::Arc;

use super::compact_cursor::Cursor;
use super::reserve_account::Reserve;
use crate::disk::DiskFile;

#[derive(Debug)]
pub(crate) struct Append {
    /// `None`: the next write begins a file.
    pub(crate) active: Option<Active>,
    pub(crate) next_file: u32,
    pub(crate) next_change: u64,
    pub(crate) cursor: Option<Cursor>,
    pub(crate) reserve: Reserve,
}

impl Append {
    pub(crate) fn new(next_file: u32, next_change: u64, reserve: Reserve) -> Self {
        Self { active: None, next_file, next_change, cursor: None, reserve }
    }
}

#[derive(Debug)]
pub(crate) struct Active {
    pub(crate) number: u32,
    pub(crate) file: Arc<dyn DiskFile>,
    pub(crate) len: u32,
}
