//! Bit sets as clients encode them: bit `n` is bit `n % 8` of byte `n / 8`, and the last byte is not zero (facts section
//! 2.10).

use bytes::Bytes;

/// A set of bits, such as segments.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct BitSet(Bytes);

impl BitSet {
    /// Creates a set; trailing zeros are ignored.
    pub fn from_bytes(bytes: Bytes) -> Self {
        let length = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        Self(bytes.slice(..length))
    }

    /// Returns the bytes.
    pub const fn as_bytes(&self) -> &Bytes {
        &self.0
    }

    /// Returns whether it has this bit.
    pub fn contains(&self, bit: usize) -> bool {
        self.0.get(bit / 8).is_some_and(|byte| byte >> (bit % 8) & 1 == 1)
    }

    /// Returns whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Iterates in order.
    pub fn iter(&self) -> impl Iterator<Item = usize> {
        (0..self.0.len() * 8).filter(|&bit| self.contains(bit))
    }
}

impl FromIterator<usize> for BitSet {
    fn from_iter<I: IntoIterator<Item = usize>>(bits: I) -> Self {
        let mut bytes = Vec::new();
        for bit in bits {
            if bytes.len() <= bit / 8 {
                bytes.resize(bit / 8 + 1, 0);
            }
            bytes[bit / 8] |= 1 << (bit % 8);
        }
        Self(bytes.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Facts 2.10.
    #[test]
    fn segments_are_bits_from_the_lowest() {
        let segments: BitSet = [1, 3, 12, 13].into_iter().collect();
        assert_eq!(&segments.as_bytes()[..], [0x0a, 0x30]);
        assert_eq!(segments.iter().collect::<Vec<_>>(), [1, 3, 12, 13]);
        assert!(!segments.contains(2) && !segments.contains(1_000));
        assert_eq!(BitSet::from_bytes(Bytes::from_static(&[0x0a, 0x30, 0, 0])), segments);
    }
}
