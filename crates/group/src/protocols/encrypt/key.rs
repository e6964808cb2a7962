//! Secret keys and unpredictable bytes.

use std::fmt;

use zeroize::Zeroizing;

/// A secret key that all members share. Its memory is cleared, and debug output hides it.
#[derive(Clone)]
pub struct SecretKey {
    algorithm: String,
    bytes: Zeroizing<Vec<u8>>,
}

impl SecretKey {
    /// Creates a key for an algorithm by its Java name, such as `AES`.
    pub fn new(algorithm: impl Into<String>, bytes: Vec<u8>) -> Self {
        Self { algorithm: algorithm.into(), bytes: Zeroizing::new(bytes) }
    }

    pub(super) fn algorithm(&self) -> &str {
        &self.algorithm
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretKey({}, {} bytes)", self.algorithm, self.bytes.len())
    }
}

/// A source of bytes that no peer can predict, such as the operating system. The stack's [`crate::Rng`] is
/// predictable.
pub trait RandomBytes: Send {
    /// Fills a buffer.
    ///
    /// # Errors
    ///
    /// If there are none; then nothing is sent.
    fn fill(&mut self, out: &mut [u8]) -> Result<(), String>;
}
