//! The options of a handle for every operation.

use std::time::Duration;

use consort_grid::{Flags, Lifetime, ReadFrom};

/// Default timeout of an operation. With the stock stacks a member whose process has crashed is excluded at once, and
/// the next owner responds within this time. A member whose machine fails silently is excluded after 40 s: set a
/// longer timeout to wait for that.
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// The options of a handle for every operation. [`crate::Cache::with_options`] makes a handle with others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CacheOptions {
    /// The owner that serves reads.
    pub read_from: ReadFrom,
    /// Timeout of an operation, including the wait for room.
    pub timeout: Duration,
    /// Default lifetime of entries.
    pub lifetime: Lifetime,
    /// Flags of operations on keys. Iterations, counts and listeners ignore them.
    pub flags: Flags,
    /// Maximum bytes of a value that operations on one key accept from another member; unlimited by default. With a
    /// larger value an operation fails with [`consort_grid::OperationError::LargeResponse`] and changes nothing, so
    /// that its caller can make room for the value and try again.
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
