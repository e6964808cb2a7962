//! A request's passcode: time, random number, digest.

use bytes::{BufMut, BytesMut};
use sha1::{Digest, Sha1};

/// Bytes before the text, with a passcode.
pub const PASSCODE_PREFIX: usize = 8 + 8 + 4 + 20;

/// Encodes the prefix, of which receivers compare the digest only.
pub fn passcode_prefix(passcode: &str, millis: i64, random: f64) -> Vec<u8> {
    let digest = Sha1::digest(passcode.as_bytes());
    let mut out = BytesMut::with_capacity(PASSCODE_PREFIX);
    out.put_i64(millis);
    out.put_f64(random);
    out.put_i32(digest.len() as i32);
    out.put_slice(&digest);
    out.to_vec()
}

/// Returns the text if the passcode is right.
pub fn checked<'r>(request: &'r [u8], passcode: Option<&str>) -> Option<&'r [u8]> {
    let Some(passcode) = passcode else { return Some(request) };
    let length = request.get(16..20)?;
    let digest = request.get(20..PASSCODE_PREFIX)?;
    let wanted = Sha1::digest(passcode.as_bytes());
    // Compares all bytes, so that the time does not depend on the first difference.
    let differences = digest.iter().zip(wanted.iter()).fold(0, |all, (a, b)| all | (a ^ b));
    (length == 20_i32.to_be_bytes() && differences == 0).then(|| &request[PASSCODE_PREFIX..])
}

#[cfg(test)]
mod tests {
    use consort_testbed::vectors::vector;

    use super::*;

    #[test]
    fn the_vectors_prefix_is_written_and_understood() {
        let (prefix, digest) = (vector("12-probe", "auth.secret"), vector("12-probe", "sha1.secret"));
        assert_eq!(passcode_prefix("secret", 1_700_000_000_000, 0.5), prefix);
        assert_eq!(prefix.len(), PASSCODE_PREFIX);
        // The digest is of the passcode alone, without time and random number.
        assert_eq!(prefix[PASSCODE_PREFIX - digest.len()..], digest);
        let request = [&prefix[..], b"jmx=UFC\n"].concat();
        assert_eq!(checked(&request, Some("secret")), Some(&b"jmx=UFC\n"[..]));
        assert_eq!(checked(&request, Some("Secret")), None);
    }

    #[test]
    fn requests_without_the_passcode_are_ignored() {
        let request = [&passcode_prefix("secret", 1, 0.5)[..], b"keys"].concat();
        assert_eq!(checked(&request, Some("secret")), Some(&b"keys"[..]));
        assert_eq!(checked(&request, Some("guess")), None);
        assert_eq!(checked(b"keys", Some("secret")), None);
        assert_eq!(checked(b"keys", None), Some(&b"keys"[..]));
    }
}
