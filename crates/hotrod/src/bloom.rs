//! The Bloom filter of a near cache: keys that the client may have cached (facts section 2.12).

use bytes::Bytes;

use crate::bit_set::BitSet;
use crate::hash::hash_with_seed;

/// One per hash function.
const SEEDS: [u64; 3] = [239, 1847, 2719];

/// The most bits, in 2 MiB: a near cache with 4 million entries.
pub const BLOOM_BITS_MAX: u32 = 16 * 1024 * 1024;

/// A filter with false positives and no false negatives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BloomFilter {
    bits: u32,
    words: Box<[u64]>,
}

impl BloomFilter {
    /// Creates an empty filter; `None` for zero or too many bits.
    pub fn new(bits: u32) -> Option<Self> {
        let is_possible = (1..=BLOOM_BITS_MAX).contains(&bits);
        is_possible.then(|| Self { bits, words: vec![0; bits.div_ceil(64) as usize].into() })
    }

    /// Returns the number of bits.
    pub const fn len(&self) -> u32 {
        self.bits
    }

    /// Returns whether no key was added.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    fn places(&self, key: &[u8]) -> [u32; 3] {
        // Java's absolute value of the least number is negative and would cause an exception there.
        SEEDS.map(|seed| hash_with_seed(key, seed).unsigned_abs() % self.bits)
    }

    /// Adds an encoded key.
    pub fn add(&mut self, key: &[u8]) {
        for bit in self.places(key) {
            self.words[bit as usize / 64] |= 1 << (bit % 64);
        }
    }

    /// Returns whether a key may be in it.
    pub fn may_contain(&self, key: &[u8]) -> bool {
        self.places(key).into_iter().all(|bit| self.words[bit as usize / 64] >> (bit % 64) & 1 == 1)
    }

    /// Replaces the bits, as many as fit.
    pub fn replace(&mut self, bits: &BitSet) {
        self.words.fill(0);
        let words = bits.as_bytes().chunks(8);
        for (word, bytes) in self.words.iter_mut().zip(words) {
            *word = bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte));
        }
        let beyond = self.bits % 64;
        if let Some(last) = self.words.last_mut().filter(|_| beyond > 0) {
            *last &= (1 << beyond) - 1;
        }
    }

    /// Returns the bits.
    pub fn to_bits(&self) -> BitSet {
        let bytes: Vec<u8> = self.words.iter().flat_map(|word| word.to_le_bytes()).collect();
        BitSet::from_bytes(Bytes::from(bytes))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Facts 2.12, recorded from a client.
    #[test]
    fn bits_are_those_of_other_implementations() {
        let keys: [(&[u8], [usize; 3]); 2] = [(b"\x4a\x04key1", [6, 16, 48]), (b"\x4a\x01q", [9, 17, 32])];
        for (key, bits) in keys {
            let mut filter = BloomFilter::new(80).unwrap();
            filter.add(key);
            assert_eq!(filter.to_bits().iter().collect::<Vec<_>>(), bits);
        }
    }

    #[test]
    fn a_filter_has_bits_but_not_any_number_of_them() {
        assert_eq!(BloomFilter::new(0), None);
        assert_eq!(BloomFilter::new(u32::MAX), None);
    }

    proptest! {
        #[test]
        fn added_keys_are_contained_also_after_encoding(
            keys in prop::collection::vec(any::<Vec<u8>>(), 0..20),
            bits in 1..3_000_u32,
        ) {
            let mut filter = BloomFilter::new(bits).unwrap();
            keys.iter().for_each(|key| filter.add(key));
            let mut other = BloomFilter::new(bits).unwrap();
            other.add(b"something else");
            other.replace(&filter.to_bits());
            prop_assert!(keys.iter().all(|key| other.may_contain(key)));
            prop_assert_eq!(other, filter);
        }

        #[test]
        fn foreign_bits_beyond_the_filter_are_nothing(foreign: Vec<u8>, bits in 1..100_u32) {
            let mut filter = BloomFilter::new(bits).unwrap();
            filter.replace(&BitSet::from_bytes(foreign.into()));
            prop_assert!(filter.to_bits().iter().all(|bit| bit < bits as usize));
        }
    }
}
