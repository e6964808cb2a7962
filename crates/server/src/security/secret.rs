//! The secret from which the server derives the SCRAM parameters of names that do not exist.
//!
//! All servers of a cluster have the same secret, so that a client cannot find existing names by comparing servers. It is
//! stored among the definitions of caches, which all servers have and clients cannot read. A server with a data directory
//! begins with a random secret, which is stored there. Without a directory, the first server derives it from its users' file,
//! so that a restart of all servers with the same file keeps it. In either case a change of the file does not change the
//! secret while one server runs. The secret is known before the first client is served.

use bytes::Bytes;
use consort_cache::CacheError;
use ring::rand::{SecureRandom, SystemRandom};
use ring::{digest, hmac};

use crate::catalog::caches::Caches;
use crate::catalog::registry::Lifecycle;

/// The secret's key among the definitions, which no cache can have.
const KEY: &[u8] = b"___login secret";

/// The length of a shared secret in bytes.
const LEN: usize = 32;

/// The secret.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(Vec<u8>);

impl Secret {
    /// Returns a shared secret.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }

    /// Derives a secret from the text of a users' file, which has verifiers that clients cannot guess.
    pub(crate) fn from_file_text(text: &str) -> Self {
        Self(digest::digest(&digest::SHA512, text.as_bytes()).as_ref().to_vec())
    }

    /// Derives bytes for a purpose and a name.
    pub(crate) fn derive(&self, purpose: &str, name: &str) -> Vec<u8> {
        let key = hmac::Key::new(hmac::HMAC_SHA512, &self.0);
        hmac::sign(&key, format!("{purpose} {name}").as_bytes()).as_ref().to_vec()
    }
}

impl Caches {
    /// Uses the shared secret, or shares one if there is none. After a merge the secret may be another one.
    pub(crate) async fn share_secret(&self) -> Result<(), CacheError> {
        let Some(authenticator) = &self.security().authenticator else { return Ok(()) };
        let shared = match self.definitions.get(KEY).await? {
            Some(shared) => shared,
            None => {
                let proposed = self.proposed_secret(&authenticator.secret());
                self.definitions
                    .add(&Bytes::from_static(KEY), proposed.clone(), Lifecycle::Persistent)
                    .await?;
                // Another server may have written its secret first.
                self.definitions.get_linearizable(KEY).await?.unwrap_or(proposed)
            }
        };
        authenticator.set_secret(&Secret::from_bytes(&shared));
        Ok(())
    }

    fn proposed_secret(&self, of_file: &Secret) -> Bytes {
        let mut random = vec![0; LEN];
        if self.has_data() && SystemRandom::new().fill(&mut random).is_ok() {
            return random.into();
        }
        Bytes::copy_from_slice(&of_file.0)
    }

    /// Returns whether another definition of a cache, an alias or a template can be added. The secret does not count.
    pub(crate) async fn has_room_for_definition(&self) -> Result<bool, CacheError> {
        let others = u64::from(self.definitions.get(KEY).await?.is_some());
        Ok(self.definitions.size().await? < crate::limits::CACHES_MAX as u64 + others)
    }
}
