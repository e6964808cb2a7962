//! The position of a compaction within its file.

use super::scan::Scan;

/// The progress of a file's compaction.
#[derive(Debug)]
pub(crate) struct Cursor {
    pub(crate) number: u32,
    pub(crate) start: u32,
    pub(crate) scan: Scan,
    pub(crate) pass: Pass,
    /// Skips damage, as configured for opening.
    pub(crate) skips_flaws: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pass {
    Check,
    Copy,
}
