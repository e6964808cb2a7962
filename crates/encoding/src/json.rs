use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{Decode, Encode, Encoded, Encoding, EncodingError};

/// Serde values as JSON, `application/json`, which programs in other languages and people can read.
///
/// It is longer and slower than [`Postcard`](crate::Postcard), but names its fields: a type can get fields with a default. Equal
/// keys have equal bytes if their serde output depends only on equality; unordered maps and sets are unsuitable as keys.
///
/// ```
/// use consort_encoding::{Decode, Encode, Json};
///
/// let encoded = Json.encode(&("apples", 3_u32))?.into_bytes();
/// assert_eq!(encoded, r#"["apples",3]"#);
/// let decoded: (String, u32) = Json.decode(encoded)?;
/// assert_eq!(decoded, ("apples".to_owned(), 3));
/// # Ok::<(), consort_encoding::EncodingError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Json;

impl Json {
    fn failed(self, error: &serde_json::Error) -> EncodingError {
        EncodingError { media_type: self.media_type().to_owned().into(), reason: error.to_string() }
    }
}

impl Encoding for Json {
    fn media_type(&self) -> &str {
        "application/json"
    }
}

impl<T: Serialize + ?Sized> Encode<T> for Json {
    fn encode<'a>(&self, value: &'a T) -> Result<Encoded<'a>, EncodingError> {
        let encoded = serde_json::to_vec(value).map_err(|error| self.failed(&error))?;
        Ok(Encoded::Owned(encoded.into()))
    }
}

impl<T: DeserializeOwned> Decode<T> for Json {
    fn decode(&self, bytes: Bytes) -> Result<T, EncodingError> {
        serde_json::from_slice(&bytes).map_err(|error| self.failed(&error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_json_is_refused_with_its_media_type() {
        let decode = |bytes| Decode::<u32>::decode(&Json, Bytes::from_static(bytes));
        assert_eq!(decode(b" 7 "), Ok(7));
        for wrong in [&b""[..], b"7 8", b"\"7\"", b"-1"] {
            let error = decode(wrong).unwrap_err();
            assert_eq!(error.media_type, "application/json");
        }
        let key = std::collections::BTreeMap::from([((1, 2), 3)]);
        assert!(Json.encode(&key).is_err(), "keys of JSON are texts");
    }
}
