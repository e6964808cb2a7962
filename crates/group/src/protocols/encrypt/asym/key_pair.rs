//! The RSA keys of members, which protect the shared key on its way (facts section 22.3).

use std::fmt;

use bytes::Bytes;
use rsa::pkcs8::{DecodePrivateKey, DecodePublicKey, EncodePublicKey};
use rsa::rand_core::{TryCryptoRng, TryRng};
use rsa::traits::PublicKeyParts;
use rsa::{PrivateKey, PublicKey};
use zeroize::Zeroizing;

use crate::protocols::encrypt::RandomBytes;

/// A member's RSA key pair. The private key's memory is cleared, and debug output hides it.
#[derive(Clone)]
pub struct KeyPair {
    private: Option<PrivateKey>,
    public: Bytes,
}

impl KeyPair {
    /// The sizes of keys in bits.
    pub const BITS: std::ops::RangeInclusive<u32> = 1_024..=8_192;

    /// Generates a key pair, which takes from milliseconds to seconds.
    ///
    /// # Errors
    ///
    /// If there are no random bytes, or the size is not one of [`Self::BITS`].
    pub fn generate(bits: u32, random: &mut dyn RandomBytes) -> Result<Self, String> {
        if !Self::BITS.contains(&bits) {
            return Err(format!("a key of RSA has 1024 to 8192 bits, not {bits}"));
        }
        let fail = |error: &dyn fmt::Display| format!("no RSA key can be generated: {error}");
        let private = PrivateKey::new(&mut Source(random), bits as usize).map_err(|error| fail(&error))?;
        let public = private.as_public_key().to_public_key_der().map_err(|error| fail(&error))?;
        Ok(Self { private: Some(private), public: Bytes::copy_from_slice(public.as_bytes()) })
    }

    /// Reads a private key, a PKCS#8 structure.
    ///
    /// # Errors
    ///
    /// If it is no RSA key, or its size is not one of [`Self::BITS`].
    pub fn from_private_key(private: &[u8]) -> Result<Self, String> {
        let private = PrivateKey::from_pkcs8_der(private)
            .map_err(|_| "the private key is not one of RSA".to_owned())?;
        let bits = 8 * private.size() as u32;
        if !Self::BITS.contains(&bits) {
            return Err(format!("a key of RSA has 1024 to 8192 bits, not {bits}"));
        }
        let public = private.as_public_key().to_public_key_der().map_err(|error| error.to_string())?;
        Ok(Self { private: Some(private), public: Bytes::copy_from_slice(public.as_bytes()) })
    }

    /// Returns no key pair, for a layer with an external exchange, or whose settings are checked and that never runs.
    pub const fn absent() -> Self {
        Self { private: None, public: Bytes::new() }
    }

    /// Returns the encoded public key, an X.509 SubjectPublicKeyInfo.
    pub(super) const fn public(&self) -> &Bytes {
        &self.public
    }

    /// Encrypts a short text for the owner of the private key, with an absent one to nothing. `None`: the text is too long.
    pub(crate) fn encrypt(&self, random: &mut dyn RandomBytes, text: &[u8]) -> Option<Bytes> {
        if self.private.is_none() {
            return Some(Bytes::new());
        }
        encrypt_for(&self.public, random, text)
    }

    /// Decrypts a shared key. Wrong padding gives other bytes and no error, so that neither an answer nor its time shows
    /// an attacker the padding (RUSTSEC-2023-0071): the caller compares the key's version.
    pub(crate) fn decrypt(&self, random: &mut dyn RandomBytes, text: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        // The random bytes blind the operation, so that its time does not depend on the text.
        let plain = self.private.as_ref()?.pkcs1v15_decrypt_with_rng(&mut Source(random), text);
        plain.ok().map(Zeroizing::new)
    }
}

impl fmt::Debug for KeyPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyPair({} bytes)", self.public.len())
    }
}

/// Encrypts a shared key for the owner of an encoded public key. `None`: the public key is unusable.
pub(super) fn encrypt_for(public: &[u8], random: &mut dyn RandomBytes, key: &[u8]) -> Option<Bytes> {
    let public = PublicKey::from_public_key_der(public).ok()?;
    public.pkcs1v15_encrypt_with_rng(&mut Source(random), key).ok().map(Bytes::from)
}

/// The random bytes that the layer has.
struct Source<'r>(&'r mut dyn RandomBytes);

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct NoRandomBytes(String);

impl Source<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], NoRandomBytes> {
        let mut bytes = [0; N];
        self.0.fill(&mut bytes).map_err(NoRandomBytes)?;
        Ok(bytes)
    }
}

impl TryRng for Source<'_> {
    type Error = NoRandomBytes;

    fn try_next_u32(&mut self) -> Result<u32, NoRandomBytes> {
        self.array().map(u32::from_le_bytes)
    }

    fn try_next_u64(&mut self) -> Result<u64, NoRandomBytes> {
        self.array().map(u64::from_le_bytes)
    }

    fn try_fill_bytes(&mut self, out: &mut [u8]) -> Result<(), NoRandomBytes> {
        self.0.fill(out).map_err(NoRandomBytes)
    }
}

impl TryCryptoRng for Source<'_> {}
