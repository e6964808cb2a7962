use std::time::Duration;

use consort_grid::{Flags, Lifetime, ReadFrom};

/// The default timeout. With the stock stacks a member is excluded at once if its process crashes, and the
/// next owner responds in time. A machine that fails silently is excluded after 40 s: to wait for that, set a
/// longer timeout.
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// A handle's options, set by [`crate::Cache::with_options`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CacheOptions {
    /// The owner for reads.
    pub read_from: ReadFrom,
    /// Timeout, including the wait for room.
    pub timeout: Duration,
    /// Default lifetime.
    pub lifetime: Lifetime,
    /// Flags of key operations; iterations, counts and listeners ignore them.
    pub flags: Flags,
    /// Bytes of a value that a key operation accepts from another member; unlimited by default. A larger one
    /// fails it with [`consort_grid::OperationError::LargeResponse`] and changes nothing: the caller can make
    /// room and try again.
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
