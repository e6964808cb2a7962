//! Secret keys of groups, and requests for them.

use std::fmt;

use bytes::Bytes;
use md5::{Digest as _, Md5};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use crate::{Address, PhysAddr};

/// A secret key that all members share. Its memory is cleared, and debug output hides it.
#[derive(Clone)]
pub struct SecretKey {
    algorithm: String,
    bytes: Zeroizing<Vec<u8>>,
}

impl SecretKey {
    /// The bytes of a version.
    pub(crate) const VERSION_LEN: usize = 16;

    /// Creates a key for an algorithm by its Java name, such as `AES`.
    pub fn new(algorithm: impl Into<String>, bytes: Vec<u8>) -> Self {
        Self { algorithm: algorithm.into(), bytes: Zeroizing::new(bytes) }
    }

    pub(crate) fn algorithm(&self) -> &str {
        &self.algorithm
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the key's MD5, by which receivers recognise it.
    pub(crate) fn version(&self) -> Bytes {
        Bytes::copy_from_slice(&Md5::digest(self.bytes()))
    }
}

/// The time does not depend on the bytes.
impl PartialEq for SecretKey {
    fn eq(&self, other: &Self) -> bool {
        self.algorithm == other.algorithm && bool::from(self.bytes().ct_eq(other.bytes()))
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretKey({}, {} bytes)", self.algorithm, self.bytes.len())
    }
}

/// A request for a key of this version.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyRequest {
    /// The key's MD5.
    pub version: Bytes,
    /// The key server's address, if the message has it.
    pub server: Option<PhysAddr>,
    /// The sender of the message that is encrypted with the key.
    pub sender: Address,
    /// The key's length in bytes.
    pub key_length: usize,
}
