//! What a handle of a cache asks for with every operation.

use std::time::Duration;

use consort_grid::{Flags, Lifetime, ReadFrom};

/// How long an operation may take unless its handle says otherwise. With the stock stacks a member whose process has
/// crashed is excluded at once, and the next owner answers within this. One whose machine is gone without a word is missed
/// after 40 s: who wants to wait for that says so.
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// What a handle of a cache asks for with every operation. [`crate::Cache::with_options`] makes a handle with others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CacheOptions {
    /// Which owner answers reads.
    pub read_from: ReadFrom,
    /// How long an operation may take, waiting for room included.
    pub timeout: Duration,
    /// How long entries live that are written without saying so.
    pub lifetime: Lifetime,
    /// What operations on keys do otherwise than the cache. Walks, counts and listeners know none.
    pub flags: Flags,
    /// Bytes of the largest value that operations on one key take from another member; all by default. With a larger one an
    /// operation fails with [`consort_grid::OperationError::LargeResponse`] and changes nothing, so that its caller can make
    /// room for the value and try again.
    pub response_bytes_max: u32,
}

impl Default for CacheOptions {
    fn default() -> Self {
        Self {
            read_from: ReadFrom::Nearest,
            timeout: TIMEOUT,
            lifetime: Lifetime::FOREVER,
            flags: Flags::NONE,
            response_bytes_max: u32::MAX,
        }
    }
}
