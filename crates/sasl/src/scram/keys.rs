//! Key derivation from passwords.

use ring::{digest, hmac};

/// The fewest iterations that protect the password of a stolen verifier (RFC 7677, section 4).
pub const ITERATIONS_MIN: u32 = 4_096;

/// The most iterations for an unauthenticated server: a second of work.
pub const ITERATIONS_MAX: u32 = 1_000_000;

/// The hash of a mechanism.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Hash {
    /// SHA-256.
    Sha256,
    /// SHA-384.
    Sha384,
    /// SHA-512.
    Sha512,
}

impl Hash {
    /// All hashes.
    pub const ALL: [Self; 3] = [Self::Sha256, Self::Sha384, Self::Sha512];

    /// Returns the mechanism's name.
    pub const fn mechanism(self) -> &'static str {
        match self {
            Self::Sha256 => "SCRAM-SHA-256",
            Self::Sha384 => "SCRAM-SHA-384",
            Self::Sha512 => "SCRAM-SHA-512",
        }
    }

    pub(crate) const fn len(self) -> usize {
        match self {
            Self::Sha256 => digest::SHA256_OUTPUT_LEN,
            Self::Sha384 => digest::SHA384_OUTPUT_LEN,
            Self::Sha512 => digest::SHA512_OUTPUT_LEN,
        }
    }

    pub(crate) fn digest(self, bytes: &[u8]) -> Vec<u8> {
        let algorithm = match self {
            Self::Sha256 => &digest::SHA256,
            Self::Sha384 => &digest::SHA384,
            Self::Sha512 => &digest::SHA512,
        };
        digest::digest(algorithm, bytes).as_ref().to_vec()
    }

    pub(crate) fn hmac(self, key: &[u8], message: &[u8]) -> Vec<u8> {
        hmac::sign(&self.key(key), message).as_ref().to_vec()
    }

    fn key(self, key: &[u8]) -> hmac::Key {
        let algorithm = match self {
            Self::Sha256 => hmac::HMAC_SHA256,
            Self::Sha384 => hmac::HMAC_SHA384,
            Self::Sha512 => hmac::HMAC_SHA512,
        };
        hmac::Key::new(algorithm, key)
    }
}

/// Keys of both sides.
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
    /// Derives the keys, in a millisecond or more per 1,000 iterations; do not call it where other tasks wait.
    pub fn derive(hash: Hash, password: &str, salt: &[u8], iterations: u32) -> Self {
        let mut derivation = Derivation::begin(hash, password, salt, iterations);
        loop {
            if let Some(keys) = derivation.go_on(iterations) {
                return keys;
            }
        }
    }

    pub(crate) fn of(hash: Hash, salted: &[u8]) -> Self {
        let client = hash.hmac(salted, b"Client Key");
        let stored = hash.digest(&client);
        let server = hash.hmac(salted, b"Server Key");
        Self { hash, client, stored, server }
    }
}

/// A derivation in steps (PBKDF2, RFC 8018; one block, Hi in RFC 5802), between which other tasks run.
pub struct Derivation {
    hash: Hash,
    password: hmac::Key,
    last: hmac::Tag,
    sum: Vec<u8>,
    /// Remaining iterations.
    left: u32,
}

impl std::fmt::Debug for Derivation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Derivation").field("left", &self.left).finish_non_exhaustive()
    }
}

impl Derivation {
    /// Does the first iteration.
    pub fn begin(hash: Hash, password: &str, salt: &[u8], iterations: u32) -> Self {
        let password = hash.key(password.as_bytes());
        let mut first = hmac::Context::with_key(&password);
        first.update(salt);
        first.update(&1_u32.to_be_bytes());
        let last = first.sign();
        let sum = last.as_ref().to_vec();
        Self { hash, password, last, sum, left: iterations.saturating_sub(1) }
    }

    /// Does further iterations. Returns the keys once all are done.
    pub fn go_on(&mut self, iterations: u32) -> Option<Keys> {
        let now = iterations.min(self.left);
        for _ in 0..now {
            self.last = hmac::sign(&self.password, self.last.as_ref());
            for (sum, byte) in self.sum.iter_mut().zip(self.last.as_ref()) {
                *sum ^= byte;
            }
        }
        self.left -= now;
        (self.left == 0).then(|| Keys::of(self.hash, &self.sum))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compared with another implementation.
    #[test]
    fn parts_come_to_what_the_whole_does() {
        for (hash, algorithm) in [
            (Hash::Sha256, ring::pbkdf2::PBKDF2_HMAC_SHA256),
            (Hash::Sha384, ring::pbkdf2::PBKDF2_HMAC_SHA384),
            (Hash::Sha512, ring::pbkdf2::PBKDF2_HMAC_SHA512),
        ] {
            for iterations in [1_u32, 2, 4_096] {
                let mut salted = vec![0; hash.len()];
                let count = iterations.try_into().unwrap();
                ring::pbkdf2::derive(algorithm, count, b"salt", b"pencil", &mut salted);
                let wanted = Keys::of(hash, &salted);
                assert_eq!(Keys::derive(hash, "pencil", b"salt", iterations), wanted);
                let mut derivation = Derivation::begin(hash, "pencil", b"salt", iterations);
                let mut parts = 0;
                let keys = loop {
                    parts += 1;
                    if let Some(keys) = derivation.go_on(1_000) {
                        break keys;
                    }
                };
                assert_eq!((keys, parts), (wanted, iterations.div_ceil(1_000).max(1)));
            }
        }
    }
}
