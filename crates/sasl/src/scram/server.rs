//! The server side of SCRAM.

use subtle::ConstantTimeEq;

use crate::scram::ScramError;
use crate::scram::message::{attribute, base64, text, unbase64, unescaped, wrong};
use crate::scram::verifier::Verifier;

/// No channel binding, no other identity.
pub(crate) const HEADER: &str = "n,,";

/// After the client's first message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct First {
    header: String,
    bare: String,
    act_as: String,
    name: String,
    nonce: String,
}

/// After the challenge.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Last {
    verifier: Verifier,
    header: String,
    nonce: String,
    /// The signed text so far.
    said: String,
}

impl First {
    /// Decodes a client's first message.
    ///
    /// # Errors
    ///
    /// An invalid message.
    pub fn read(message: &[u8]) -> Result<Self, ScramError> {
        let message = text(message)?;
        let mut parts = message.splitn(3, ',');
        let (Some(binding), Some(act_as), Some(bare)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(wrong("missing header").into());
        };
        match binding {
            "n" | "y" => {}
            binding if binding.starts_with("p=") => return Err(ScramError::ChannelBinding),
            _ => return Err(wrong("invalid header").into()),
        }
        let header = format!("{binding},{act_as},");
        let act_as = match act_as {
            "" => String::new(),
            act_as => unescaped(act_as.strip_prefix("a=").ok_or(wrong("invalid header"))?)?,
        };
        let mut attributes = bare.split(',');
        let name = unescaped(attribute(&mut attributes, 'n', "missing name")?)?;
        let nonce = attribute(&mut attributes, 'r', "missing nonce")?.to_owned();
        if nonce.is_empty() {
            return Err(wrong("empty nonce").into());
        }
        Ok(Self { header, bare: bare.to_owned(), act_as, name, nonce })
    }

    /// Returns the name as sent, not normalised.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the identity to act as; empty for the user.
    pub fn act_as(&self) -> &str {
        &self.act_as
    }

    /// Returns the challenge. The nonce must be new, random, and without commas.
    pub fn challenge(self, verifier: &Verifier, nonce: &str) -> (Last, Vec<u8>) {
        let nonce = format!("{}{nonce}", self.nonce);
        let (salt, iterations) = (base64(verifier.salt()), verifier.iterations());
        let challenge = format!("r={nonce},s={salt},i={iterations}");
        let said = format!("{},{challenge}", self.bare);
        (Last { verifier: verifier.clone(), header: self.header, nonce, said }, challenge.into_bytes())
    }
}

impl Last {
    /// Checks the client's proof. Returns the message that authenticates the server.
    ///
    /// # Errors
    ///
    /// A wrong proof.
    pub fn check(self, message: &[u8]) -> Result<Vec<u8>, ScramError> {
        let message = text(message)?;
        let (without_proof, proof) = message.rsplit_once(",p=").ok_or(wrong("missing proof"))?;
        let mut attributes = without_proof.split(',');
        let header = attribute(&mut attributes, 'c', "missing header")?;
        let nonce = attribute(&mut attributes, 'r', "missing nonce")?;
        if unbase64(header).as_deref() != Some(self.header.as_bytes()) {
            return Err(ScramError::ChannelBinding);
        }
        if nonce != self.nonce {
            return Err(ScramError::Nonce);
        }
        let hash = self.verifier.hash();
        let proof = unbase64(proof).filter(|proof| proof.len() == hash.len());
        let proof = proof.ok_or(wrong("invalid proof"))?;
        let said = format!("{},{without_proof}", self.said);
        let signature = hash.hmac(self.verifier.stored_key(), said.as_bytes());
        let key: Vec<u8> = proof.iter().zip(&signature).map(|(proof, sign)| proof ^ sign).collect();
        let is_right = bool::from(hash.digest(&key).ct_eq(self.verifier.stored_key()));
        if !is_right {
            return Err(ScramError::Proof);
        }
        let signature = hash.hmac(self.verifier.server_key(), said.as_bytes());
        Ok(format!("v={}", base64(&signature)).into_bytes())
    }
}
