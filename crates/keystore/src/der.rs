//! A reader of DER: tags, definite lengths, and the types that key stores use.

use crate::KeyStoreError;

type Result<T> = std::result::Result<T, KeyStoreError>;

pub(crate) const INTEGER: u8 = 0x02;
pub(crate) const BIT_STRING: u8 = 0x03;
pub(crate) const OCTETS: u8 = 0x04;
pub(crate) const OID: u8 = 0x06;
pub(crate) const BMP_STRING: u8 = 0x1e;
pub(crate) const SEQUENCE: u8 = 0x30;
pub(crate) const SET: u8 = 0x31;
/// The tag `[0]`, constructed.
pub(crate) const EXPLICIT_0: u8 = 0xa0;
/// The tag `[1]`, constructed.
pub(crate) const EXPLICIT_1: u8 = 0xa1;
/// The tag `[0]`, primitive.
pub(crate) const IMPLICIT_0: u8 = 0x80;

#[derive(Clone, Copy)]
pub(crate) struct Der<'a> {
    rest: &'a [u8],
}

impl<'a> Der<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn tag(&self) -> Option<u8> {
        self.rest.first().copied()
    }

    /// Errors have the given name.
    pub(crate) fn read(&mut self, tag: u8, what: &'static str) -> Result<&'a [u8]> {
        let malformed = KeyStoreError::Malformed(what);
        let (&own, rest) = self.rest.split_first().ok_or(malformed.clone())?;
        let (&first, mut rest) = rest.split_first().ok_or(malformed.clone())?;
        if own != tag {
            return Err(malformed);
        }
        let mut length = usize::from(first);
        // The long form: a file's size fits 4 bytes. 0x80 is the indefinite form, which DER does not have.
        if first >= 0x80 {
            let count = usize::from(first & 0x7f);
            if count == 0 || count > 4 || count > rest.len() {
                return Err(malformed);
            }
            let (bytes, after) = rest.split_at(count);
            length = bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
            rest = after;
        }
        let (content, after) = rest.split_at_checked(length).ok_or(malformed)?;
        self.rest = after;
        Ok(content)
    }

    pub(crate) fn enter(&mut self, tag: u8, what: &'static str) -> Result<Self> {
        Ok(Self::new(self.read(tag, what)?))
    }

    /// Without sign.
    pub(crate) fn number(&mut self, what: &'static str) -> Result<u64> {
        let bytes = self.read(INTEGER, what)?;
        let is_positive = bytes.first().is_some_and(|first| first & 0x80 == 0);
        if !is_positive || bytes.len() > 8 {
            return Err(KeyStoreError::Malformed(what));
        }
        Ok(bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    /// Its OID and its parameters.
    pub(crate) fn algorithm(&mut self, what: &'static str) -> Result<(&'a [u8], Self)> {
        let mut inner = self.enter(SEQUENCE, what)?;
        Ok((inner.read(OID, what)?, inner))
    }
}

/// For errors.
pub(crate) fn dotted(oid: &[u8]) -> String {
    let mut parts = Vec::new();
    let mut number: u64 = 0;
    for byte in oid {
        number = number.wrapping_shl(7) | u64::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            parts.push(number);
            number = 0;
        }
    }
    let first = parts.first().copied().unwrap_or_default();
    let root = (first / 40).min(2);
    let rest = parts.iter().skip(1).map(|part| format!(".{part}")).collect::<String>();
    format!("OID {root}.{}{rest}", first - root * 40)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_both_forms_are_read_and_others_refused() {
        let mut short = Der::new(&[OCTETS, 2, 7, 8, OCTETS, 0x81, 1, 9]);
        assert_eq!(short.read(OCTETS, "a"), Ok(&[7, 8][..]));
        assert_eq!(short.read(OCTETS, "b"), Ok(&[9][..]));
        assert!(short.is_empty());
        for wrong in [
            &[][..],
            &[OCTETS],
            &[OCTETS, 1],
            &[OCTETS, 0x80, 0, 0],
            &[OCTETS, 0x85, 0, 0, 0, 0, 0],
            &[OCTETS, 0x84, 255, 255, 255, 255, 1],
            &[INTEGER, 1, 5],
        ] {
            assert_eq!(Der::new(wrong).read(OCTETS, "it"), Err(KeyStoreError::Malformed("it")), "{wrong:?}");
        }
        assert_eq!(Der::new(&[INTEGER, 2, 0x27, 0x10]).number("count"), Ok(10_000));
        assert!(Der::new(&[INTEGER, 1, 0x80]).number("count").is_err());
        assert!(Der::new(&[INTEGER, 9, 1, 0, 0, 0, 0, 0, 0, 0, 0]).number("count").is_err());
    }

    #[test]
    fn an_oid_is_shown_with_dots() {
        assert_eq!(dotted(&[0x60, 0x86, 0x48, 1, 0x65, 3, 4, 1]), "OID 2.16.840.1.101.3.4.1");
        assert_eq!(dotted(&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 3, 7]), "OID 1.2.840.113549.3.7");
        assert_eq!(dotted(&[]), "OID 0.0");
    }
}
