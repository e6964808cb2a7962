//! The client side of SCRAM.

use subtle::ConstantTimeEq;

use crate::scram::keys::{Hash, ITERATIONS_MAX, ITERATIONS_MIN, Keys};
use crate::scram::message::{attribute, base64, escaped, text, unbase64, wrong};
use crate::scram::{ScramError, server};

/// After the client's first message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct First {
    hash: Hash,
    nonce: String,
    /// Without the header.
    bare: String,
}

/// After the server's challenge.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Challenged {
    hash: Hash,
    salt: Vec<u8>,
    iterations: u32,
    /// All messages so far and the beginning of the last one, which are signed.
    said: String,
    last: String,
}

/// After the client's proof.
#[derive(Clone, PartialEq, Eq)]
pub struct Last {
    signature: Vec<u8>,
}

impl std::fmt::Debug for Last {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Last").finish_non_exhaustive()
    }
}

impl First {
    /// Begins as this normalised user, with the first message. The nonce must be new, random, and without commas.
    pub fn begin(hash: Hash, name: &str, nonce: &str) -> (Self, Vec<u8>) {
        let bare = format!("n={},r={nonce}", escaped(name));
        let message = format!("{}{bare}", server::HEADER).into_bytes();
        (Self { hash, nonce: nonce.to_owned(), bare }, message)
    }

    /// Decodes the server's challenge.
    ///
    /// # Errors
    ///
    /// An invalid challenge, or one that is unsafe to answer.
    pub fn challenged(self, challenge: &[u8]) -> Result<Challenged, ScramError> {
        let challenge = text(challenge)?;
        let mut attributes = challenge.split(',');
        let nonce = attribute(&mut attributes, 'r', "missing nonce")?;
        let salt = attribute(&mut attributes, 's', "missing salt")?;
        let iterations = attribute(&mut attributes, 'i', "missing iterations")?;
        if !nonce.starts_with(&self.nonce) || nonce.len() == self.nonce.len() {
            return Err(ScramError::Nonce);
        }
        let salt = unbase64(salt).filter(|salt| !salt.is_empty()).ok_or(wrong("invalid salt"))?;
        let iterations = iterations.parse().map_err(|_| wrong("invalid iterations"))?;
        if !(ITERATIONS_MIN..=ITERATIONS_MAX).contains(&iterations) {
            return Err(ScramError::Iterations(iterations));
        }
        let last = format!("c={},r={nonce}", base64(server::HEADER.as_bytes()));
        let said = format!("{},{challenge},{last}", self.bare);
        Ok(Challenged { hash: self.hash, salt, iterations, said, last })
    }
}

impl Challenged {
    /// Returns the derivation's hash.
    pub const fn hash(&self) -> Hash {
        self.hash
    }

    /// Returns the derivation's salt.
    pub fn salt(&self) -> &[u8] {
        &self.salt
    }

    /// Returns the derivation's iterations.
    pub const fn iterations(&self) -> u32 {
        self.iterations
    }

    /// Returns the last message, which proves the keys.
    pub fn prove(self, keys: &Keys) -> (Last, Vec<u8>) {
        let signature = self.hash.hmac(&keys.stored, self.said.as_bytes());
        let proof: Vec<u8> = keys.client.iter().zip(&signature).map(|(key, sign)| key ^ sign).collect();
        let message = format!("{},p={}", self.last, base64(&proof)).into_bytes();
        (Last { signature: self.hash.hmac(&keys.server, self.said.as_bytes()) }, message)
    }
}

impl Last {
    /// Checks the server's signature.
    ///
    /// # Errors
    ///
    /// An impostor, without the user's verifier.
    pub fn check(self, message: &[u8]) -> Result<(), ScramError> {
        let mut attributes = text(message)?.split(',');
        let signature = attribute(&mut attributes, 'v', "missing signature")?;
        let signature = unbase64(signature).ok_or(wrong("invalid signature"))?;
        let is_right = bool::from(signature.ct_eq(&self.signature));
        if is_right { Ok(()) } else { Err(ScramError::Impostor) }
    }
}
