//! The secret for the SCRAM parameters of names that do not exist.
//!
//! A cluster's servers share it, so that a client cannot find existing names by comparing them. It is among the definitions of
//! caches, which clients cannot read, before the first client is served. A server with a data directory begins with a random
//! secret. Without a directory, the first server derives it from its users' file, so that a restart of all keeps it; a change of
//! the file does not change it while one server runs.

use ring::{digest, hmac};

#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(Vec<u8>);

impl Secret {
    pub(crate) fn from_bytes(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }

    /// A users' file has verifiers that clients cannot guess.
    pub(crate) fn from_file_text(text: &str) -> Self {
        Self(digest::digest(&digest::SHA512, text.as_bytes()).as_ref().to_vec())
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub(crate) fn derive(&self, purpose: &str, name: &str) -> Vec<u8> {
        let key = hmac::Key::new(hmac::HMAC_SHA512, &self.0);
        hmac::sign(&key, format!("{purpose} {name}").as_bytes()).as_ref().to_vec()
    }
}
