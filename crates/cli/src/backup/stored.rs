//! Keys and values as the servers store them.

use bytes::Bytes;
use consort_client::{Cache, Client, Decode, Encode, Encoded, Encoding, EncodingError};

pub(super) type StoredCache = Cache<Bytes, Bytes, Stored, Stored>;

pub(super) fn stored(client: &Client, cache: &str) -> StoredCache {
    client.encoded(cache, Stored, Stored)
}

/// Servers convert from and to a media type that a client names. This one has no number in Hot Rod, so that the client names none.
#[derive(Clone, Copy)]
pub(super) struct Stored;

impl Encoding for Stored {
    fn media_type(&self) -> &str {
        "application/x-stored"
    }
}

impl Encode<Bytes> for Stored {
    fn encode<'a>(&self, value: &'a Bytes) -> Result<Encoded<'a>, EncodingError> {
        Ok(Encoded::Shared(value))
    }
}

impl Decode<Bytes> for Stored {
    fn decode(&self, bytes: Bytes) -> Result<Bytes, EncodingError> {
        Ok(bytes)
    }
}
