//! The stored form of a multimap's values: one value of the cache under their key.
//!
//! The encoding is specific to this project: four bytes `f5 4d 4d 01`, the last of which is the version, and with which no text
//! in UTF-8 begins; the number of values in four bytes; then for each value, in the order of insertion, its length in four bytes,
//! and its bytes. Numbers are big-endian.

use bytes::{Buf, BufMut, Bytes, BytesMut};

const MARK: [u8; 4] = [0xf5, b'M', b'M', 1];

const HEAD: usize = 8;

#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Bucket(Vec<Bytes>);

pub(crate) fn count(bytes: &[u8]) -> Option<u32> {
    bytes.strip_prefix(&MARK)?.try_get_u32().ok()
}

impl Bucket {
    /// The values are slices of these bytes; `None` if they are no bucket.
    pub(crate) fn from_bytes(bytes: &Bytes) -> Option<Self> {
        let count = count(bytes)?;
        let mut rest = bytes.slice(HEAD..);
        let mut values = Vec::new();
        for _ in 0..count {
            let length = rest.try_get_u32().ok()? as usize;
            if rest.len() < length {
                return None;
            }
            values.push(rest.split_to(length));
        }
        rest.is_empty().then_some(Self(values))
    }

    pub(crate) fn to_bytes(&self) -> Bytes {
        let length = HEAD + self.bytes();
        let mut bytes = BytesMut::with_capacity(length);
        bytes.put_slice(&MARK);
        bytes.put_u32(self.0.len() as u32);
        for value in &self.0 {
            bytes.put_u32(value.len() as u32);
            bytes.put_slice(value);
        }
        bytes.freeze()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.0.iter().map(|value| 4 + value.len()).sum()
    }

    #[cfg(test)]
    pub(crate) fn of(values: impl IntoIterator<Item = Bytes>) -> Self {
        Self(values.into_iter().collect())
    }

    pub(crate) const fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn contains(&self, value: &[u8]) -> bool {
        self.0.iter().any(|own| own == value)
    }

    pub(crate) fn add(&mut self, value: Bytes, allows_duplicates: bool) -> bool {
        let is_new = allows_duplicates || !self.contains(&value);
        if is_new {
            self.0.push(value);
        }
        is_new
    }

    /// With all duplicates if these are allowed, as in Infinispan. Returns whether it was present.
    pub(crate) fn remove(&mut self, value: &[u8], allows_duplicates: bool) -> bool {
        let before = self.0.len();
        if allows_duplicates {
            self.0.retain(|own| own != value);
        } else if let Some(place) = self.0.iter().position(|own| own == value) {
            self.0.remove(place);
        }
        self.0.len() < before
    }

    pub(crate) fn into_values(self, with_duplicates: bool) -> Vec<Bytes> {
        let mut values = self.0;
        if !with_duplicates {
            let mut seen = std::collections::BTreeSet::new();
            values.retain(|value| seen.insert(value.clone()));
        }
        values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(values: &[&'static str]) -> Bucket {
        Bucket(values.iter().map(|value| Bytes::from_static(value.as_bytes())).collect())
    }

    #[test]
    fn encoding_has_the_documented_bytes() {
        let bytes = bucket(&["ab", ""]).to_bytes();
        assert_eq!(&bytes[..], b"\xf5MM\x01\0\0\0\x02\0\0\0\x02ab\0\0\0\0");
        assert_eq!(count(&bytes), Some(2));
        let read = Bucket::from_bytes(&bytes).unwrap();
        assert_eq!(read, bucket(&["ab", ""]));
        assert_eq!(read.0[0].as_ptr(), bytes[12..].as_ptr(), "values are not copied");
    }

    #[test]
    fn invalid_bytes_are_no_bucket() {
        let bytes = bucket(&["ab", "c"]).to_bytes();
        for cut in 0..bytes.len() {
            assert_eq!(Bucket::from_bytes(&bytes.slice(..cut)), None, "{cut} bytes");
        }
        let longer = Bytes::from([&bytes[..], b"x"].concat());
        assert_eq!(Bucket::from_bytes(&longer), None);
        let huge = Bytes::from_static(b"\xf5MM\x01\xff\xff\xff\xff");
        assert_eq!(Bucket::from_bytes(&huge), None, "nothing is reserved for what is announced");
        assert_eq!(count(b"a value of another kind"), None);
    }

    #[test]
    fn value_is_added_once_unless_duplicates_are_allowed() {
        let mut values = Bucket::default();
        assert!(values.add("a".into(), false));
        assert!(!values.add("a".into(), false));
        assert!(values.add("a".into(), true) && values.add("b".into(), true) && values.add("a".into(), true));
        assert_eq!(values.clone().into_values(true), ["a", "a", "b", "a"]);
        assert_eq!(values.clone().into_values(false), ["a", "b"]);
        assert!(values.contains(b"b") && !values.contains(b"c"));
        assert!(values.remove(b"a", false));
        assert_eq!(values.len(), 3, "one of them is gone");
        assert!(values.remove(b"a", true) && !values.remove(b"a", true));
        assert!(values.remove(b"b", false) && values.is_empty());
    }
}
