//! The secret from which everything follows that clients are told of names that are no user's.
//!
//! All servers of a cluster have the same one, so that no client finds out by asking several of them which names are users'. It
//! is among the definitions of caches, which every server has and no client reaches. A server with a directory for data begins
//! with a random one, which is kept there. Without a directory the first server takes one that follows from its users' file, so
//! that a restart of all servers with the same file changes nothing. In either case a change of the file changes nothing while
//! one server is there. It is known before the first client is served.

use bytes::Bytes;
use consort_cache::CacheError;
use ring::rand::{SecureRandom, SystemRandom};
use ring::{digest, hmac};

use crate::caches::Caches;
use crate::register::Keeping;

/// Its name among the definitions, which no cache can have.
const KEY: &[u8] = b"___login secret";

/// Bytes of it that servers share.
const LEN: usize = 32;

/// The secret.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(Vec<u8>);

impl Secret {
    /// One that servers share.
    pub(crate) fn of_bytes(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }

    /// One that follows from the text of a users' file, which holds what nobody guesses: verifiers.
    pub(crate) fn of_file(text: &str) -> Self {
        Self(digest::digest(&digest::SHA512, text.as_bytes()).as_ref().to_vec())
    }

    /// What follows from it for a name.
    pub(crate) fn follows(&self, what: &str, name: &str) -> Vec<u8> {
        let key = hmac::Key::new(hmac::HMAC_SHA512, &self.0);
        hmac::sign(&key, format!("{what} {name}").as_bytes()).as_ref().to_vec()
    }
}

impl Caches {
    /// Takes the secret that the servers share, or shares one if they have none. After a merge it may be another one.
    pub(crate) async fn share_secret(&self) -> Result<(), CacheError> {
        let Some(authenticator) = &self.security().authenticator else { return Ok(()) };
        let shared = match self.definitions.get(KEY).await? {
            Some(shared) => shared,
            None => {
                let proposed = self.proposed_secret(&authenticator.secret());
                self.definitions.add(&Bytes::from_static(KEY), proposed.clone(), Keeping::Lasting).await?;
                // Another server may have been first.
                self.definitions.newest(KEY).await?.unwrap_or(proposed)
            }
        };
        authenticator.take_secret(&Secret::of_bytes(&shared));
        Ok(())
    }

    fn proposed_secret(&self, of_file: &Secret) -> Bytes {
        let mut random = vec![0; LEN];
        if self.has_data() && SystemRandom::new().fill(&mut random).is_ok() {
            return random.into();
        }
        Bytes::copy_from_slice(&of_file.0)
    }

    /// Definitions beside those of caches, aliases and templates.
    pub(crate) async fn has_room_for_definition(&self) -> Result<bool, CacheError> {
        let others = u64::from(self.definitions.get(KEY).await?.is_some());
        Ok(self.definitions.size().await? < crate::bounds::CACHES_MAX as u64 + others)
    }
}
