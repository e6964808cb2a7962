//! What reads foreign bytes here, for fuzz targets. Nobody else has a use for it.

use bytes::Bytes;

use crate::bucket::Bucket;
use crate::http;

/// Reads the values of a multimap's key, and writes them again; `None` if these bytes are something else.
pub fn bucket(bytes: &Bytes) -> Option<(Vec<Bytes>, Bytes)> {
    let bucket = Bucket::from_bytes(bytes)?;
    let written = bucket.to_bytes();
    Some((bucket.into_values(true), written))
}

/// Reads the head of a request in HTTP, with what its client shows of itself and what it asks for. Returns all of that as a
/// text, and the head's length; `None` if it goes on.
///
/// # Errors
///
/// What its client is told.
pub fn http_head(bytes: &[u8]) -> Result<Option<(String, usize)>, String> {
    http::read_whole(bytes)
}
