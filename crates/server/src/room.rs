//! Room for large values that another server has. A request for one key has the bytes of such a value reserved before the value is
//! sent here: the other server says first how large it is. Smaller values are bounded by the number of requests of a
//! connection and by what it has not taken.

use consort_cache::{CacheError, CacheOptions, OperationError, RawCache};

use crate::answer::Refusal;
use crate::bounds::UNRESERVED_BYTES_MAX;
use crate::gathering::{Held, Responses};

/// The handle by which a key is read until its value has room here.
pub(crate) struct Room<'c> {
    cache: &'c RawCache,
    /// With room for the value.
    again: Option<RawCache>,
    held: Option<Box<Held>>,
    /// Bytes of the response besides the value.
    besides: usize,
}

/// A handle whose operations on a key fail if another server has a large value.
pub(crate) fn limited(cache: &RawCache) -> RawCache {
    within(cache, UNRESERVED_BYTES_MAX)
}

/// A handle whose operations on a key fail if another server has a value of more bytes.
pub(crate) fn within(cache: &RawCache, response_bytes_max: u32) -> RawCache {
    cache.with_options(CacheOptions { response_bytes_max, ..*cache.options() })
}

/// The size of a value for which there is no room.
pub(crate) const fn size_of_large(error: &CacheError) -> Option<u32> {
    match error {
        CacheError::Operation(OperationError::LargeResponse { bytes, .. }) => Some(*bytes),
        _ => None,
    }
}

impl<'c> Room<'c> {
    /// For a value read by this handle, which is a limited one.
    pub(crate) const fn new(cache: &'c RawCache) -> Self {
        Self { cache, again: None, held: None, besides: 0 }
    }

    /// The response has at most so many bytes besides a large value.
    pub(crate) fn besides(self, besides: usize) -> Self {
        Self { besides, ..self }
    }

    /// The handle that has room for what is known of the value.
    pub(crate) fn cache(&self) -> &RawCache {
        self.again.as_ref().unwrap_or(self.cache)
    }

    /// Makes room if an operation has failed for lack of it, and waits for it. The operation is to be tried again then.
    pub(crate) async fn make(&mut self, responses: &Responses, error: CacheError) -> Result<(), Refusal> {
        let Some(bytes) = size_of_large(&error) else { return Err(error.into()) };
        // Where others write larger and larger values meanwhile, it is ahead of them in the end.
        let known = self.again.as_ref().map_or(0, |again| again.options().response_bytes_max);
        let bytes = bytes.max(known.saturating_mul(2));
        // A request that waits for room holds none.
        self.held = None;
        self.held = Some(responses.hold(bytes as usize + self.besides).await?);
        self.again = Some(within(self.cache, bytes));
        Ok(())
    }

    /// What was reserved.
    pub(crate) fn into_held(self) -> Option<Box<Held>> {
        self.held
    }
}
