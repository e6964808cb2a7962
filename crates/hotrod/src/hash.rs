//! Hash version 3: a draft of MurmurHash3 of 2010, and the segments of keys (facts section 4). Clients hash the key as sent,
//! members as stored; both must get the same segment.

const KEY_SEED: u64 = 9001;

/// Returns the hash of a key.
pub fn hash(key: &[u8]) -> i32 {
    hash_with_seed(key, KEY_SEED)
}

/// Hashes with another seed.
pub fn hash_with_seed(bytes: &[u8], seed: u64) -> i32 {
    let mut state = State::new(seed);
    let (blocks, tail) = bytes.as_chunks::<16>();
    for block in blocks {
        let (low, high) = halves(block);
        state.mix(low, high);
    }
    if !tail.is_empty() {
        let (low, high) = tail.split_at(tail.len().min(8));
        state.mix(signed_word(low), signed_word(high));
    }
    (state.finish(bytes.len()) >> 32) as i32
}

/// Returns the segment of a key; panics if `segment_count` is zero.
pub fn segment_of(key: &[u8], segment_count: u32) -> u32 {
    let positive = hash(key) as u32 & 0x7fff_ffff;
    positive / (1_u32 << 31).div_ceil(segment_count)
}

fn halves(block: &[u8; 16]) -> (u64, u64) {
    let both = u128::from_le_bytes(*block);
    (both as u64, (both >> 64) as u64)
}

/// Missing bytes are zero. Two or three reads are faster than one by one, because each operation hashes its key several times.
fn word(bytes: &[u8]) -> u64 {
    debug_assert!(bytes.len() <= 8, "{} bytes are more than a word", bytes.len());
    let at = |at: usize| u64::from(bytes[at]) << (8 * at);
    match (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        (Some(first), Some(last)) => {
            let behind = 8 * (bytes.len() - 4);
            u64::from(u32::from_le_bytes(*first)) | u64::from(u32::from_le_bytes(*last)) << behind
        }
        _ if bytes.is_empty() => 0,
        _ => at(0) | at(bytes.len() / 2) | at(bytes.len() - 1),
    }
}

/// The draft sign-extends the bytes of the last word, so that each byte above 127 inverts all later ones.
fn signed_word(bytes: &[u8]) -> u64 {
    let word = word(bytes);
    // The low bit of each byte says how often earlier bytes invert it.
    let mut inverted = (word & 0x8080_8080_8080_8080) >> 7 << 8;
    inverted ^= inverted << 8;
    inverted ^= inverted << 16;
    inverted ^= inverted << 32;
    word ^ inverted.wrapping_mul(0xff)
}

struct State {
    h1: u64,
    h2: u64,
    c1: u64,
    c2: u64,
}

impl State {
    const fn new(seed: u64) -> Self {
        Self {
            h1: 0x9368_e53c_2f6a_f274 ^ seed,
            h2: 0x586d_cd20_8f7c_d3fd ^ seed,
            c1: 0x87c3_7b91_1142_53d5,
            c2: 0x4cf5_ad43_2745_937f,
        }
    }

    /// Unlike in the final MurmurHash3, the constants change with each block.
    fn mix(&mut self, k1: u64, k2: u64) {
        let k1 = k1.wrapping_mul(self.c1).rotate_left(23).wrapping_mul(self.c2);
        self.h1 = (self.h1 ^ k1).wrapping_add(self.h2);
        self.h2 = self.h2.rotate_left(41);
        let k2 = k2.wrapping_mul(self.c2).rotate_left(23).wrapping_mul(self.c1);
        self.h2 = (self.h2 ^ k2).wrapping_add(self.h1);
        self.h1 = self.h1.wrapping_mul(3).wrapping_add(0x52dc_e729);
        self.h2 = self.h2.wrapping_mul(3).wrapping_add(0x3849_5ab5);
        self.c1 = self.c1.wrapping_mul(5).wrapping_add(0x7b7d_159c);
        self.c2 = self.c2.wrapping_mul(5).wrapping_add(0x6bce_6396);
    }

    fn finish(self, length: usize) -> u64 {
        let h2 = self.h2 ^ length as u64;
        let h1 = self.h1.wrapping_add(h2);
        let h2 = h2.wrapping_add(h1);
        scramble(h1).wrapping_add(scramble(h2))
    }
}

const fn scramble(mut k: u64) -> u64 {
    k ^= k >> 33;
    k = k.wrapping_mul(0xff51_afd7_ed55_8ccd);
    k ^= k >> 33;
    k = k.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    k ^ k >> 33
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
    }

    /// Facts 4.1: keys of every length from zero to more than a block.
    #[test]
    fn hashes_are_those_of_other_implementations() {
        let table = [
            ("", 0x054F_F222),
            ("61", 0xBD49_B31C),
            ("84", 0x7C96_8B75),
            ("7a52", 0x6634_9ADC),
            ("711045", 0xC299_25E0),
            ("036f6e65", 0x85C1_21DA),
            ("67cbce25", 0x1ADD_B01E),
            ("48656c6c6f", 0x5C55_31EF),
            ("28a9f54180", 0x0A85_3868),
            ("232d95ad7e7e", 0x069D_B0FA),
            ("1cadc3fa9d8354", 0x1AC8_0763),
            ("38d0347ad0f8f408", 0xB26F_E53F),
            ("4f0d1c21c86f913535", 0x1210_68A0),
            ("649ae5c1bff8fb319b0b8cf641de4f", 0x2FBE_EAC4),
            ("7aba985e7cae1a4d7b937102b99ac3dd", 0x2D55_68C7),
            ("b8994347bdbd609056669367704fc689b8", 0x8F50_6F52),
            ("233cce9ca0d8e2284f19b3e4036c57d2deaf6777", 0xAA62_D68E_u32),
        ];
        for (key, expected) in table {
            assert_eq!(hash(&bytes(key)) as u32, expected, "{key}");
        }
    }

    /// Facts 4.2.
    #[test]
    fn segments_are_those_of_other_implementations() {
        for (key, of_256, of_20) in
            [("4a046b657931", 115, 9), ("6b657931", 46, 3), ("4a0548656c6c6f", 172, 13), ("", 10, 0)]
        {
            assert_eq!((segment_of(&bytes(key), 256), segment_of(&bytes(key), 20)), (of_256, of_20), "{key}");
        }
    }

    proptest! {
        /// The draft's own way: byte by byte.
        #[test]
        fn short_words_are_those_of_the_draft(bytes in proptest::collection::vec(any::<u8>(), 0..=8)) {
            let each = bytes.iter().enumerate();
            let draft = each.fold(0, |word, (at, &byte)| word ^ ((byte as i8 as i64 as u64) << (8 * at)));
            prop_assert_eq!(signed_word(&bytes), draft);
        }
    }

    proptest! {
        #[test]
        fn every_key_has_one_of_the_segments(key: Vec<u8>, count in 1..5_000_u32) {
            prop_assert!(segment_of(&key, count) < count);
        }
    }
}
