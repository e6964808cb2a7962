//! Entries of a store.

use crate::PingData;

/// A file, or a row, and the members that it lists.
pub(super) struct Document {
    /// The file's name, or the address of the row.
    pub(super) name: String,
    pub(super) listed: Vec<PingData>,
}
