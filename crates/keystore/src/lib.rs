//! Keys from Java key stores: PKCS#12, JCEKS, JKS, and raw keys; and certificates with private keys.
//!
//! ```
//! use consort_keystore::{KeyStoreError, Limits, StoreType, secret_key};
//!
//! let digits = b"000102030405060708090a0b0c0d0e0f\n";
//! let key = secret_key(digits, StoreType::Raw, "", "", "", &Limits::default()).unwrap();
//! assert_eq!((key.algorithm(), key.bytes().len()), ("AES", 16));
//!
//! let error = secret_key(b"no store", StoreType::Pkcs12, "mykey", "", "", &Limits::default());
//! assert_eq!(error.unwrap_err(), KeyStoreError::UnknownFormat);
//! ```
//!
//! The crate reads bytes and opens no file. [`Limits`] bound every size, count and number of iterations before memory is
//! allocated or time is spent. Keys and passwords are cleared from memory.

#![forbid(unsafe_code)]

mod certificates;
mod credentials;
mod der;
mod ec_key;
mod error;
mod java_store;
mod password_based;
mod pkcs12;
mod serialized;

use std::fmt;
use std::str::FromStr;

use zeroize::Zeroizing;

pub use certificates::{Certificates, Opening, certificates};
pub use credentials::{credential, unmask};
pub use error::KeyStoreError;

/// Limits on a key store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// The file's bytes.
    pub file: usize,
    /// The number of entries.
    pub entries: usize,
    /// Iterations of all derivations together. The default is Java's for one, about 2 s.
    pub iterations: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { file: 1024 * 1024, entries: 1_000, iterations: 5_000_000 }
    }
}

/// JGroups' `keystore_type`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StoreType {
    /// PKCS#12, as of `keytool`.
    Pkcs12,
    /// Java's older format.
    Jceks,
    /// Java's oldest format, without secret keys. Java also reads PKCS#12 under this name.
    Jks,
    /// An AES key's bytes or hexadecimal digits.
    Raw,
}

impl FromStr for StoreType {
    type Err = KeyStoreError;

    fn from_str(name: &str) -> Result<Self, KeyStoreError> {
        match name.trim().to_ascii_uppercase().as_str() {
            "PKCS12" => Ok(Self::Pkcs12),
            "JCEKS" => Ok(Self::Jceks),
            "JKS" => Ok(Self::Jks),
            "RAW" => Ok(Self::Raw),
            _ => Err(KeyStoreError::UnknownType(name.to_owned())),
        }
    }
}

/// A secret key.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretKey {
    algorithm: String,
    bytes: Zeroizing<Vec<u8>>,
}

impl SecretKey {
    /// Returns Java's name, such as `AES`.
    pub fn algorithm(&self) -> &str {
        &self.algorithm
    }

    /// Returns the key.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretKey({}, {} bytes)", self.algorithm, self.bytes.len())
    }
}

struct Request<'a> {
    /// In any case, as in Java.
    alias: &'a str,
    store_password: &'a str,
    key_password: &'a str,
}

impl Request<'_> {
    fn names(&self, alias: &str) -> bool {
        alias.to_lowercase() == self.alias.to_lowercase()
    }
}

/// The work that a file may still cause.
struct Budget {
    entries: usize,
    iterations: u64,
}

impl Budget {
    fn entry(&mut self) -> Result<(), KeyStoreError> {
        self.entries = self.entries.checked_sub(1).ok_or(KeyStoreError::TooManyEntries)?;
        Ok(())
    }

    /// For one derivation.
    fn iterate(&mut self, iterations: u64) -> Result<std::num::NonZeroU32, KeyStoreError> {
        let left = self.iterations.checked_sub(iterations);
        self.iterations = left.ok_or(KeyStoreError::TooManyIterations(iterations))?;
        let iterations = u32::try_from(iterations).ok().and_then(std::num::NonZeroU32::new);
        iterations.ok_or(KeyStoreError::Malformed("number of iterations"))
    }
}

/// The first bytes.
const JKS: [u8; 4] = [0xfe, 0xed, 0xfe, 0xed];
const JCEKS: [u8; 4] = [0xce, 0xce, 0xce, 0xce];
/// The first byte of PKCS#12.
const SEQUENCE: u8 = 0x30;

/// Reads the secret key with an alias. The file's first bytes determine the format, except for [`StoreType::Raw`].
///
/// # Errors
///
/// A malformed or too large file, a wrong password, or no secret key with the alias.
pub fn secret_key(
    file: &[u8],
    kind: StoreType,
    alias: &str,
    store_password: &str,
    key_password: &str,
    limits: &Limits,
) -> Result<SecretKey, KeyStoreError> {
    if file.len() > limits.file {
        return Err(KeyStoreError::TooLarge { bytes: file.len(), limit: limits.file });
    }
    if kind == StoreType::Raw {
        return raw_key(file);
    }
    let request = Request { alias, store_password, key_password };
    let mut budget = Budget { entries: limits.entries, iterations: limits.iterations };
    match file.first_chunk() {
        Some(&JCEKS | &JKS) => java_store::secret_key(file, &request, &mut budget),
        Some([SEQUENCE, ..]) => pkcs12::secret_key(file, &request, &mut budget),
        _ => Err(KeyStoreError::UnknownFormat),
    }
}

/// 16, 24 or 32 bytes, or twice as many hexadecimal digits.
fn raw_key(file: &[u8]) -> Result<SecretKey, KeyStoreError> {
    let key = |bytes| SecretKey { algorithm: "AES".to_owned(), bytes };
    let text = file.trim_ascii();
    if matches!(text.len(), 32 | 48 | 64) {
        let digit = |byte: u8| char::from(byte).to_digit(16);
        let bytes: Option<Vec<u8>> =
            text.chunks_exact(2).map(|pair| Some((digit(pair[0])? * 16 + digit(pair[1])?) as u8)).collect();
        if let Some(bytes) = bytes {
            return Ok(key(Zeroizing::new(bytes)));
        }
    }
    match file.len() {
        16 | 24 | 32 => Ok(key(Zeroizing::new(file.to_vec()))),
        length => Err(KeyStoreError::RawLength(length)),
    }
}

#[cfg(test)]
mod tests;
