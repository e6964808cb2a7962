//! What follows from a password: the keys of both sides.

use std::num::NonZeroU32;

use ring::{digest, hmac, pbkdf2};

/// Iterations that are too few to keep a password that somebody has the verifier of (RFC 7677, section 4).
pub const ITERATIONS_MIN: u32 = 4_096;

/// Iterations that are more than a client does for a server that may be anybody: a second of work.
pub const ITERATIONS_MAX: u32 = 1_000_000;

/// The hash of a mechanism.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Hash {
    /// SHA-256.
    Sha256,
    /// SHA-512.
    Sha512,
}

impl Hash {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Sha256, Self::Sha512];

    /// The mechanism's registered name.
    pub const fn mechanism(self) -> &'static str {
        match self {
            Self::Sha256 => "SCRAM-SHA-256",
            Self::Sha512 => "SCRAM-SHA-512",
        }
    }

    /// Bytes of a hash.
    pub(crate) const fn len(self) -> usize {
        match self {
            Self::Sha256 => digest::SHA256_OUTPUT_LEN,
            Self::Sha512 => digest::SHA512_OUTPUT_LEN,
        }
    }

    pub(crate) fn digest(self, bytes: &[u8]) -> Vec<u8> {
        let algorithm = match self {
            Self::Sha256 => &digest::SHA256,
            Self::Sha512 => &digest::SHA512,
        };
        digest::digest(algorithm, bytes).as_ref().to_vec()
    }

    pub(crate) fn hmac(self, key: &[u8], message: &[u8]) -> Vec<u8> {
        let algorithm = match self {
            Self::Sha256 => hmac::HMAC_SHA256,
            Self::Sha512 => hmac::HMAC_SHA512,
        };
        hmac::sign(&hmac::Key::new(algorithm, key), message).as_ref().to_vec()
    }
}

/// What a client can show to be the user with, and know the server by.
#[derive(Clone, PartialEq, Eq)]
pub struct Keys {
    pub(crate) hash: Hash,
    pub(crate) client: Vec<u8>,
    pub(crate) stored: Vec<u8>,
    pub(crate) server: Vec<u8>,
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Keys").field(&self.hash).finish()
    }
}

impl Keys {
    /// Derives them. This takes time, a millisecond or more per 1,000 iterations: not to be done where others wait.
    pub fn derive(hash: Hash, password: &str, salt: &[u8], iterations: u32) -> Self {
        let algorithm = match hash {
            Hash::Sha256 => pbkdf2::PBKDF2_HMAC_SHA256,
            Hash::Sha512 => pbkdf2::PBKDF2_HMAC_SHA512,
        };
        let iterations = NonZeroU32::new(iterations).unwrap_or(NonZeroU32::MIN);
        let mut salted = vec![0; hash.len()];
        pbkdf2::derive(algorithm, iterations, salt, password.as_bytes(), &mut salted);
        let client = hash.hmac(&salted, b"Client Key");
        let stored = hash.digest(&client);
        let server = hash.hmac(&salted, b"Server Key");
        Self { hash, client, stored, server }
    }
}
