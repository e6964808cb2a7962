//! Keys and values as the servers store them.

use bytes::Bytes;
use consort_client::{Cache, Client, Decode, Encode, Encoded, Encoding, EncodingError};

pub(super) type StoredCache = Cache<Bytes, Bytes, StoredBytes, StoredBytes>;

pub(super) fn open_stored(client: &Client, cache: &str) -> StoredCache {
    client.encoded(cache, StoredBytes, StoredBytes)
}

/// Servers convert from and to a media type that a client names. This one has no number in Hot Rod, so that the client names none.
#[derive(Clone, Copy)]
pub(super) struct StoredBytes;

impl Encoding for StoredBytes {
    fn media_type(&self) -> &str {
        "application/x-stored"
    }
}

impl Encode<Bytes> for StoredBytes {
    fn encode<'a>(&self, value: &'a Bytes) -> Result<Encoded<'a>, EncodingError> {
        Ok(Encoded::Shared(value))
    }
}

impl Decode<Bytes> for StoredBytes {
    fn decode(&self, bytes: Bytes) -> Result<Bytes, EncodingError> {
        Ok(bytes)
    }
}
