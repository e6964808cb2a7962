//! Private keys of elliptic curves: Java leaves the public key out, and `ring` wants it.

use zeroize::Zeroizing;

use crate::der::{self, Der};
use crate::{KeyStoreError, Limits};

type Result<T> = std::result::Result<T, KeyStoreError>;

const EC_PUBLIC_KEY: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];

/// Returns a PKCS#8 key of a curve with the public key (SEC 1: a point) of its certificate, and other keys as they are.
pub(crate) fn with_public_key(key: Zeroizing<Vec<u8>>, public: &[u8]) -> Result<Zeroizing<Vec<u8>>> {
    let what = "private key";
    let mut outer = Der::new(&key).enter(der::SEQUENCE, what)?;
    outer.number(what)?;
    let algorithm = outer.read(der::SEQUENCE, what)?;
    let inner = outer.read(der::OCTETS, what)?;
    if Der::new(algorithm).read(der::OID, what)? != EC_PUBLIC_KEY {
        return Ok(key);
    }
    let mut own = Der::new(inner).enter(der::SEQUENCE, what)?;
    own.number(what)?;
    let secret = own.read(der::OCTETS, what)?;
    if own.tag() == Some(der::EXPLICIT_0) {
        own.read(der::EXPLICIT_0, what)?;
    }
    if own.tag() == Some(der::EXPLICIT_1) {
        return Ok(key);
    }
    // No bit of the last byte is unused.
    let point = element(der::BIT_STRING, &[&[0], public])?;
    let parts = [
        element(der::INTEGER, &[&[1]])?,
        element(der::OCTETS, &[secret])?,
        element(der::EXPLICIT_1, &[&point])?,
    ];
    let own = element(der::SEQUENCE, &[&parts[0], &parts[1], &parts[2]])?;
    let parts = [
        element(der::INTEGER, &[&[0]])?,
        element(der::SEQUENCE, &[algorithm])?,
        element(der::OCTETS, &[&own])?,
    ];
    element(der::SEQUENCE, &[&parts[0], &parts[1], &parts[2]])
}

/// Its memory is cleared.
fn element(tag: u8, parts: &[&[u8]]) -> Result<Zeroizing<Vec<u8>>> {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let length = u32::try_from(length)
        .map_err(|_| KeyStoreError::TooLarge { bytes: length, limit: Limits::default().file })?;
    // Reserved at once: a grown vector would leave a copy of the key.
    let mut out = Zeroizing::new(Vec::with_capacity(6 + length as usize));
    out.push(tag);
    if length < 0x80 {
        out.push(length as u8);
    } else {
        let bytes = length.to_be_bytes();
        let bytes = &bytes[length.leading_zeros() as usize / 8..];
        out.push(0x80 | bytes.len() as u8);
        out.extend_from_slice(bytes);
    }
    parts.iter().for_each(|part| out.extend_from_slice(part));
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_written_in_their_shortest_form() {
        for length in [0, 1, 127, 128, 255, 256, 70_000] {
            let content = vec![7; length];
            let written = element(der::OCTETS, &[&content]).unwrap();
            let mut read = Der::new(&written);
            assert_eq!(read.read(der::OCTETS, "it"), Ok(&content[..]));
            assert!(read.is_empty());
        }
        assert_eq!(&element(der::OCTETS, &[&[9; 128]]).unwrap()[..3], [der::OCTETS, 0x81, 128]);
    }

    #[test]
    fn a_key_of_another_algorithm_stays_as_it_is() {
        let rsa = [0x30, 11, 2, 1, 0, 0x30, 3, 6, 1, 0x2b, 4, 1, 7];
        let key = Zeroizing::new(rsa.to_vec());
        assert_eq!(with_public_key(key.clone(), &[1, 2]), Ok(key));
        assert!(with_public_key(Zeroizing::new(vec![0x30, 1]), &[]).is_err());
    }
}
