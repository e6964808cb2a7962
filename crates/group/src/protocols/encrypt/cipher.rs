//! AES in the modes of JGroups' transformations.

use aes::cipher::consts::U16;
use aes::cipher::generic_array::GenericArray;
use aes::cipher::inout::InOutBuf;
use aes::cipher::{BlockDecrypt, BlockEncrypt, BlockSizeUser, KeyInit};
use aes::{Aes128, Aes192, Aes256};

use super::SecretKey;

/// The block size in bytes, and that of an initialization vector.
pub(super) const BLOCK: usize = 16;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mode {
    /// Each block alone: equal blocks have equal cipher texts.
    Ecb,
    Cbc,
    Ctr,
}

impl Mode {
    /// The error is for the operator.
    pub(super) fn parse(transformation: &str) -> Result<Self, String> {
        let upper = transformation.trim().to_ascii_uppercase();
        match upper.as_str() {
            "AES" | "AES/ECB/PKCS5PADDING" => Ok(Self::Ecb),
            "AES/CBC/PKCS5PADDING" => Ok(Self::Cbc),
            "AES/CTR/NOPADDING" => Ok(Self::Ctr),
            text if text.contains("/GCM/") => Err(format!(
                "sym_algorithm ({transformation}) is refused, because JGroups sends no message with it; \
                 use AES/CBC/PKCS5Padding with sym_iv_length=\"16\", or tls.enabled=\"true\" at TCP, \
                 which also detects changed messages"
            )),
            _ => Err(format!(
                "sym_algorithm ({transformation}) is none of AES/CBC/PKCS5Padding, AES/CTR/NoPadding, \
                 AES/ECB/PKCS5Padding, AES"
            )),
        }
    }

    pub(super) const fn has_iv(self) -> bool {
        !matches!(self, Self::Ecb)
    }
}

/// The length, padding or initialization vector is wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Undecipherable;

/// The keys are cleared on drop.
enum RoundKeys {
    Aes128(Box<Aes128>),
    Aes192(Box<Aes192>),
    Aes256(Box<Aes256>),
}

pub(super) struct Cipher {
    keys: RoundKeys,
    mode: Mode,
}

macro_rules! with_keys {
    ($keys:expr, $cipher:ident => $body:expr) => {
        match $keys {
            RoundKeys::Aes128($cipher) => $body,
            RoundKeys::Aes192($cipher) => $body,
            RoundKeys::Aes256($cipher) => $body,
        }
    };
}

impl Cipher {
    /// The error is for the operator.
    pub(super) fn new(key: &SecretKey, mode: Mode) -> Result<Self, String> {
        if !key.algorithm().eq_ignore_ascii_case("AES") {
            return Err(format!(
                "the key is for {}, and only AES is supported: create one with keytool -genseckey -keyalg AES",
                key.algorithm()
            ));
        }
        let bytes = key.bytes();
        let keys = match bytes.len() {
            16 => RoundKeys::Aes128(Box::new(Aes128::new(GenericArray::from_slice(bytes)))),
            24 => RoundKeys::Aes192(Box::new(Aes192::new(GenericArray::from_slice(bytes)))),
            32 => RoundKeys::Aes256(Box::new(Aes256::new(GenericArray::from_slice(bytes)))),
            length => return Err(format!("the key has {length} bytes; a key for AES has 16, 24 or 32")),
        };
        Ok(Self { keys, mode })
    }

    pub(super) const fn mode(&self) -> Mode {
        self.mode
    }

    /// The vector has [`BLOCK`] bytes, or none in a mode without one.
    pub(super) fn encrypt(&self, iv: &[u8], plain: &[u8]) -> Vec<u8> {
        let padding = match self.mode {
            Mode::Ctr => 0,
            Mode::Ecb | Mode::Cbc => BLOCK - plain.len() % BLOCK,
        };
        let mut text = Vec::with_capacity(plain.len() + padding);
        text.extend_from_slice(plain);
        text.resize(plain.len() + padding, padding as u8);
        with_keys!(&self.keys, cipher => match self.mode {
            Mode::Ecb => {
                let (blocks, _) = InOutBuf::from(&mut text[..]).into_chunks::<U16>();
                cipher.encrypt_blocks_inout(blocks);
            }
            Mode::Cbc => chain(&**cipher, iv, &mut text),
            Mode::Ctr => apply_counters(&**cipher, iv, &mut text),
        });
        text
    }

    pub(super) fn decrypt(&self, iv: &[u8], text: &[u8]) -> Result<Vec<u8>, Undecipherable> {
        let has_whole_blocks = !text.is_empty() && text.len().is_multiple_of(BLOCK);
        if iv.len() != if self.mode.has_iv() { BLOCK } else { 0 }
            || (self.mode != Mode::Ctr && !has_whole_blocks)
        {
            return Err(Undecipherable);
        }
        let mut plain = text.to_vec();
        with_keys!(&self.keys, cipher => match self.mode {
            Mode::Ctr => apply_counters(&**cipher, iv, &mut plain),
            Mode::Ecb | Mode::Cbc => {
                let (blocks, _) = InOutBuf::from(&mut plain[..]).into_chunks::<U16>();
                cipher.decrypt_blocks_inout(blocks);
            }
        });
        if self.mode == Mode::Cbc {
            // The blocks before the cipher text's blocks: the vector, then the cipher text itself.
            let before = iv.iter().chain(text);
            plain.iter_mut().zip(before).for_each(|(byte, before)| *byte ^= before);
        }
        if self.mode != Mode::Ctr {
            let length = unpadded_length(&plain).ok_or(Undecipherable)?;
            plain.truncate(length);
        }
        Ok(plain)
    }
}

/// An AES key whose blocks are encrypted each alone, for keys on their way (DH_KEY_EXCHANGE).
pub(in crate::protocols) struct EcbKey(Cipher);

impl EcbKey {
    /// `None`: no length of AES.
    pub(in crate::protocols) fn new(key: &[u8]) -> Option<Self> {
        Cipher::new(&SecretKey::new("AES", key.to_vec()), Mode::Ecb).ok().map(Self)
    }

    pub(in crate::protocols) fn encrypt(&self, plain: &[u8]) -> Vec<u8> {
        self.0.encrypt(&[], plain)
    }

    /// `None`: the padding is wrong.
    pub(in crate::protocols) fn decrypt(&self, text: &[u8]) -> Option<Vec<u8>> {
        self.0.decrypt(&[], text).ok()
    }
}

fn chain<C: BlockEncrypt + BlockSizeUser<BlockSize = U16>>(cipher: &C, iv: &[u8], text: &mut [u8]) {
    let mut before = [0; BLOCK];
    before.copy_from_slice(iv);
    for block in text.chunks_exact_mut(BLOCK) {
        block.iter_mut().zip(before).for_each(|(byte, before)| *byte ^= before);
        cipher.encrypt_block(GenericArray::from_mut_slice(block));
        before.copy_from_slice(block);
    }
}

/// Java counts with all 128 bits, the highest first.
fn apply_counters<C: BlockEncrypt + BlockSizeUser<BlockSize = U16>>(cipher: &C, iv: &[u8], text: &mut [u8]) {
    let mut first = [0; BLOCK];
    first.copy_from_slice(iv);
    let mut counter = u128::from_be_bytes(first);
    for chunk in text.chunks_mut(BLOCK) {
        let mut block = GenericArray::from(counter.to_be_bytes());
        cipher.encrypt_block(&mut block);
        chunk.iter_mut().zip(block).for_each(|(byte, key)| *byte ^= key);
        counter = counter.wrapping_add(1);
    }
}

/// The time does not depend on the text, so that an attacker cannot measure the padding.
fn unpadded_length(plain: &[u8]) -> Option<usize> {
    let last = plain.last_chunk::<BLOCK>()?;
    let padding = last[BLOCK - 1];
    let mut wrong = u8::from(padding == 0) | u8::from(usize::from(padding) > BLOCK);
    for (nth, byte) in last.iter().rev().enumerate() {
        let is_padding = u8::from(nth < usize::from(padding));
        wrong |= is_padding & u8::from(*byte != padding);
    }
    (wrong == 0).then(|| plain.len() - usize::from(padding))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cipher(bytes: usize, mode: Mode) -> Cipher {
        Cipher::new(&SecretKey::new("AES", (0..bytes as u8).collect()), mode).unwrap()
    }

    fn hex(text: &str) -> Vec<u8> {
        (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
    }

    /// NIST SP 800-38A, F.5.1, and a counter that overflows into its higher half.
    #[test]
    fn counter_mode_equals_its_standard_and_overflows_in_all_128_bits() {
        let key = SecretKey::new("AES", hex("2b7e151628aed2a6abf7158809cf4f3c"));
        let cipher = Cipher::new(&key, Mode::Ctr).unwrap();
        let iv = hex("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff");
        let text = cipher.encrypt(&iv, &hex("6bc1bee22e409f96e93d7e117393172a"));
        assert_eq!(text, hex("874d6191b620e3261bef6864990db6ce"));
        let high = hex("0000000000000000ffffffffffffffff");
        let next = hex("00000000000000010000000000000000");
        assert_eq!(cipher.encrypt(&high, &[0; 32])[16..], cipher.encrypt(&next, &[0; 16]));
    }

    /// The vector is in NIST SP 800-38A, F.2.5.
    #[test]
    fn chaining_equals_its_standard() {
        let key =
            SecretKey::new("AES", hex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4"));
        let cipher = Cipher::new(&key, Mode::Cbc).unwrap();
        let iv = hex("000102030405060708090a0b0c0d0e0f");
        let plain = hex("6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51");
        let text = cipher.encrypt(&iv, &plain);
        assert_eq!(text[..32], hex("f58c4c04d6e5f1ba779eabfb5f7bfbd69cfc4e967edb808d679f777bc6702c7d"));
        assert_eq!(cipher.decrypt(&iv, &text), Ok(plain));
    }

    #[test]
    fn each_length_survives_in_each_mode_and_key_size() {
        for mode in [Mode::Ecb, Mode::Cbc, Mode::Ctr] {
            let iv: &[u8] = if mode.has_iv() { &[9; BLOCK] } else { &[] };
            for bytes in [16, 24, 32] {
                let cipher = cipher(bytes, mode);
                for length in 1..=100 {
                    let plain: Vec<u8> = (0..length).collect();
                    let text = cipher.encrypt(iv, &plain);
                    assert_ne!(text, plain);
                    assert_eq!(cipher.decrypt(iv, &text).unwrap(), plain, "{mode:?} {bytes} {length}");
                }
            }
        }
    }

    #[test]
    fn a_wrong_length_vector_or_padding_is_undecipherable() {
        let cbc = cipher(16, Mode::Cbc);
        let text = cbc.encrypt(&[1; 16], b"hello");
        for (iv, text) in [(&[1; 16][..], &text[..15]), (&[1; 16], &[]), (&[], &text), (&[1; 15], &text)] {
            assert_eq!(cbc.decrypt(iv, text), Err(Undecipherable));
        }
        assert_eq!(cipher(16, Mode::Ecb).decrypt(&[1; 16], &text), Err(Undecipherable), "ECB has no vector");
        for (last, length) in [(11, None), (0, None), (17, None), (1, Some(15)), (16, None)] {
            let mut plain = [11; 16];
            plain[5] = 0;
            plain[15] = last;
            assert_eq!(unpadded_length(&plain), length, "{last}");
        }
        assert_eq!(unpadded_length(&[16; 16]), Some(0));
    }

    #[test]
    fn keys_of_other_algorithms_or_lengths_are_refused() {
        let error = |algorithm: &str, length| {
            Cipher::new(&SecretKey::new(algorithm, vec![0; length]), Mode::Cbc).err().unwrap()
        };
        assert!(error("DESede", 24).contains("DESede"));
        assert_eq!(error("AES", 20), "the key has 20 bytes; a key for AES has 16, 24 or 32");
    }
}
