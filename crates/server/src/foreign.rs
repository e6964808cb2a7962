//! What reads foreign bytes here, for fuzz targets. Nobody else has a use for it.

use bytes::Bytes;

use crate::bucket::Bucket;
use crate::media::Format;
use crate::{definition, http, schemas};

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

/// How many formats [`convert`] knows. The last one is protostream's, the one before it JSON.
pub const FORMATS: usize = Format::ALL.len();

/// What bytes of one format are in another, by their places among all formats; `None` if they cannot become that.
pub fn convert(bytes: &Bytes, from: usize, to: usize) -> Option<Bytes> {
    Format::ALL[from].convert(bytes.clone(), &Format::ALL[to]).ok()
}

/// Reads what a cache is to be like in XML, JSON or YAML, and writes it as servers tell it each other; `None` if it is
/// refused.
pub fn definition(text: &str) -> Option<String> {
    definition::from_text("c", text).ok().map(|definition| definition::to_text(&definition))
}

/// What is wrong with a schema of protobuf, if anything is.
pub fn schema(text: &str) -> Option<String> {
    schemas::error_of(Bytes::copy_from_slice(text.as_bytes()))
}
