//! Capacity for large values of other servers. For a request for one key, the other server first sends the size, and the bytes
//! are reserved before the transfer. A connection's other limits bound smaller values.

use consort_cache::{CacheError, CacheOptions, OperationError, RawCache};

use crate::limits::UNRESERVED_BYTES_MAX;
use crate::memory::responses::Responses;
use crate::reply::Refusal;
use crate::reply::ResponseBytes;

pub(crate) struct ValueReservation<'c> {
    cache: &'c RawCache,
    reserved: Option<RawCache>,
    held: Option<Box<ResponseBytes>>,
    overhead: usize,
}

/// Operations of this handle on a key fail if another server has a large value.
pub(crate) fn limited(cache: &RawCache) -> RawCache {
    within(cache, UNRESERVED_BYTES_MAX)
}

pub(crate) fn within(cache: &RawCache, response_bytes_max: u32) -> RawCache {
    cache.with_options(CacheOptions { response_bytes_max, ..*cache.options() })
}

pub(crate) const fn size_of_large(error: &CacheError) -> Option<u32> {
    match error {
        CacheError::Operation(OperationError::LargeResponse { bytes, .. }) => Some(*bytes),
        _ => None,
    }
}

impl<'c> ValueReservation<'c> {
    /// `cache` is a limited handle.
    pub(crate) const fn new(cache: &'c RawCache) -> Self {
        Self { cache, reserved: None, held: None, overhead: 0 }
    }

    pub(crate) fn with_overhead(self, overhead: usize) -> Self {
        Self { overhead, ..self }
    }

    pub(crate) fn cache(&self) -> &RawCache {
        self.reserved.as_ref().unwrap_or(self.cache)
    }

    /// After this the operation is to be repeated.
    pub(crate) async fn grow(&mut self, responses: &Responses, error: CacheError) -> Result<(), Refusal> {
        let Some(bytes) = size_of_large(&error) else { return Err(error.into()) };
        // Doubling ends the repetition also where others write larger and larger values meanwhile.
        let known = self.reserved.as_ref().map_or(0, |reserved| reserved.options().response_bytes_max);
        let bytes = bytes.max(known.saturating_mul(2));
        // A request that waits for capacity holds none.
        self.held = None;
        self.held = Some(responses.hold(bytes as usize + self.overhead).await?);
        self.reserved = Some(within(self.cache, bytes));
        Ok(())
    }

    pub(crate) fn into_held(self) -> Option<Box<ResponseBytes>> {
        self.held
    }
}
