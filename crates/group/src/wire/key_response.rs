//! The bytes of SSL_KEY_EXCHANGE's connections (facts section 22.4).

use bytes::Bytes;
use zeroize::Zeroizing;

/// The only byte of a request.
pub const KEY_REQUEST: u8 = 0;
/// The first byte of a response.
const KEY_RESPONSE: u8 = 1;
/// The most bytes of a key's version: MD5 has 16.
const KEY_VERSION_BYTES_MAX: usize = 64;
/// The most bytes of a key: AES has at most 32.
const SECRET_KEY_BYTES_MAX: usize = 64;
/// The most bytes of a response.
pub const KEY_RESPONSE_BYTES_MAX: usize = 1 + 4 + KEY_VERSION_BYTES_MAX + 4 + SECRET_KEY_BYTES_MAX;

/// Encodes a response. Its memory is cleared.
pub fn encode_key_response(version: &[u8], key: &[u8]) -> Bytes {
    let mut out = Zeroizing::new(Vec::with_capacity(1 + 4 + version.len() + 4 + key.len()));
    out.push(KEY_RESPONSE);
    for bytes in [version, key] {
        out.extend_from_slice(&(bytes.len() as i32).to_be_bytes());
        out.extend_from_slice(bytes);
    }
    Bytes::from_owner(out)
}

/// Why the bytes of a connection are no response.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyResponseError {
    /// The response has not arrived whole.
    #[error("the response is not complete")]
    Incomplete,
    /// No response.
    #[error("it sent no key: another program may listen at the port")]
    Malformed,
}

/// Decodes a response: the version and the key, which are parts of the bytes.
///
/// # Errors
///
/// The response is not complete, or is none.
pub fn decode_key_response(bytes: &[u8]) -> Result<(&[u8], &[u8]), KeyResponseError> {
    let rest = match bytes.split_first() {
        Some((&KEY_RESPONSE, rest)) => rest,
        Some(_) => return Err(KeyResponseError::Malformed),
        None => return Err(KeyResponseError::Incomplete),
    };
    let (version, rest) = part(rest, KEY_VERSION_BYTES_MAX)?;
    let (key, rest) = part(rest, SECRET_KEY_BYTES_MAX)?;
    if rest.is_empty() { Ok((version, key)) } else { Err(KeyResponseError::Malformed) }
}

fn part(bytes: &[u8], most: usize) -> Result<(&[u8], &[u8]), KeyResponseError> {
    let (length, rest) = bytes.split_first_chunk().ok_or(KeyResponseError::Incomplete)?;
    let length = usize::try_from(i32::from_be_bytes(*length)).map_err(|_| KeyResponseError::Malformed)?;
    if length == 0 || length > most {
        return Err(KeyResponseError::Malformed);
    }
    rest.split_at_checked(length).ok_or(KeyResponseError::Incomplete)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn response_has_the_bytes_of_jgroups_and_survives() {
        let bytes = encode_key_response(&[1; 16], &[2; 16]);
        let expected = [&[1, 0, 0, 0, 16][..], &[1; 16], &[0, 0, 0, 16], &[2; 16]].concat();
        assert_eq!(bytes, expected);
        assert_eq!(decode_key_response(&bytes), Ok((&[1; 16][..], &[2; 16][..])));
        for length in 0..bytes.len() {
            assert_eq!(decode_key_response(&bytes[..length]), Err(KeyResponseError::Incomplete), "{length}");
        }
    }

    #[test]
    fn other_bytes_are_no_response() {
        let of = |parts: &[&[u8]]| decode_key_response(&parts.concat()).unwrap_err();
        assert_eq!(of(&[b"HTTP/1.1 400"]), KeyResponseError::Malformed);
        assert_eq!(of(&[&[0]]), KeyResponseError::Malformed);
        for length in [0, -1, i32::MAX, KEY_VERSION_BYTES_MAX as i32 + 1] {
            assert_eq!(of(&[&[1], &length.to_be_bytes(), &[7; 8]]), KeyResponseError::Malformed, "{length}");
        }
        let whole = encode_key_response(&[1; 16], &[2; 16]);
        assert_eq!(of(&[&whole, &[0]]), KeyResponseError::Malformed);
        let longest = encode_key_response(&[1; KEY_VERSION_BYTES_MAX], &[2; SECRET_KEY_BYTES_MAX]);
        assert_eq!(longest.len(), KEY_RESPONSE_BYTES_MAX);
        assert!(decode_key_response(&longest).is_ok());
    }
}
