//! The keys that ASYM_ENCRYPT puts in front of a payload (facts section 22.3).

use bytes::{BufMut, Bytes, BytesMut};

use super::addresses::{put_address, read_present};
use super::primitives::{Reader, Result, WireError};
use crate::Address;

/// The most entries of a key block.
pub const KEY_BLOCK_MEMBERS_MAX: usize = 4_096;
/// The most bytes of an encoded public key: one of 8,192 bits has 1,062.
pub const PUBLIC_KEY_BYTES_MAX: usize = 1_100;
/// The most bytes of an encrypted shared key: as the modulus of 8,192 bits.
pub const SHARED_KEY_BYTES_MAX: usize = 1_024;

/// A member's keys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemberKeys {
    /// The member.
    pub member: Address,
    /// Its public key, an X.509 SubjectPublicKeyInfo; empty if absent.
    pub public: Bytes,
    /// The shared key, encrypted with the public key; empty if absent.
    pub shared: Bytes,
}

/// Encodes a key block and the payload behind it.
pub fn encode_key_block(keys: &[MemberKeys], payload: &[u8]) -> Bytes {
    let size: usize = keys.iter().map(|keys| 32 + keys.public.len() + keys.shared.len()).sum();
    let mut out = BytesMut::with_capacity(4 + size + payload.len());
    out.put_i32(keys.len() as i32);
    for keys in keys {
        put_address(&mut out, Some(&keys.member));
        for bytes in [&keys.public, &keys.shared] {
            out.put_i32(bytes.len() as i32);
            out.put_slice(bytes);
        }
    }
    out.put_slice(payload);
    out.freeze()
}

/// Decodes [`encode_key_block`]'s output: the keys, and the payload.
///
/// # Errors
///
/// If the bytes are invalid, or a limit is exceeded.
pub fn decode_key_block(bytes: &Bytes) -> Result<(Vec<MemberKeys>, Bytes)> {
    let mut reader = Reader::new(bytes);
    let count = number(&mut reader, "number of keys", KEY_BLOCK_MEMBERS_MAX)?;
    let mut keys = Vec::new();
    for _ in 0..count {
        let member = read_present(&mut reader, "key's member")?;
        let public = key(&mut reader, "public key", PUBLIC_KEY_BYTES_MAX)?;
        let shared = key(&mut reader, "shared key", SHARED_KEY_BYTES_MAX)?;
        keys.push(MemberKeys { member, public, shared });
    }
    Ok((keys, reader.rest()))
}

fn number(reader: &mut Reader<'_>, what: &'static str, max: usize) -> Result<usize> {
    let value = reader.i32(what)?;
    let number = usize::try_from(value).ok().filter(|number| *number <= max);
    number.ok_or(WireError::BadValue { what, value: value.into() })
}

fn key(reader: &mut Reader<'_>, what: &'static str, max: usize) -> Result<Bytes> {
    let length = number(reader, what, max)?;
    reader.bytes(what, length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::member;

    fn keys(public: usize, shared: usize) -> MemberKeys {
        MemberKeys { member: member(1), public: vec![1; public].into(), shared: vec![2; shared].into() }
    }

    #[test]
    fn a_key_block_survives_in_front_of_any_payload_and_not_if_it_is_cut() {
        let block = [keys(162, 128), MemberKeys { member: member(2), ..keys(0, 0) }];
        for payload in [&b""[..], b"cipher text"] {
            let bytes = encode_key_block(&block, payload);
            let (read, rest) = decode_key_block(&bytes).unwrap();
            assert_eq!((&read[..], &rest[..]), (&block[..], payload));
            for end in 0..bytes.len() - payload.len() {
                assert!(decode_key_block(&bytes.slice(..end)).is_err(), "cut at {end}");
            }
        }
    }

    #[test]
    fn counts_and_lengths_beyond_the_limits_are_refused() {
        let with = |keys: &[MemberKeys]| decode_key_block(&encode_key_block(keys, b""));
        assert!(with(&[keys(PUBLIC_KEY_BYTES_MAX, SHARED_KEY_BYTES_MAX)]).is_ok());
        for (public, shared) in [(PUBLIC_KEY_BYTES_MAX + 1, 0), (0, SHARED_KEY_BYTES_MAX + 1)] {
            assert!(matches!(with(&[keys(public, shared)]), Err(WireError::BadValue { .. })));
        }
        assert!(with(&vec![keys(0, 0); KEY_BLOCK_MEMBERS_MAX]).is_ok());
        assert!(matches!(
            with(&vec![keys(0, 0); KEY_BLOCK_MEMBERS_MAX + 1]),
            Err(WireError::BadValue { what: "number of keys", .. })
        ));
        for negative in [-1, i32::MIN] {
            let bytes = Bytes::copy_from_slice(&negative.to_be_bytes());
            assert!(matches!(decode_key_block(&bytes), Err(WireError::BadValue { .. })));
        }
    }
}
