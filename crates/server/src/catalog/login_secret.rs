//! The shared secret of logins ([`crate::security::secret`]), among the definitions of caches.

use bytes::Bytes;
use consort_cache::CacheError;
use ring::rand::{SecureRandom, SystemRandom};

use crate::catalog::caches::Caches;
use crate::catalog::registry::Lifecycle;
use crate::limits::CACHES_MAX;
use crate::security::secret::Secret;

const KEY: &[u8] = b"___login secret";

const LEN: usize = 32;

impl Caches {
    /// After a merge the secret may be another one.
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
        Bytes::copy_from_slice(of_file.bytes())
    }

    /// The secret does not count.
    pub(crate) async fn has_room_for_definition(&self) -> Result<bool, CacheError> {
        let others = u64::from(self.definitions.get(KEY).await?.is_some());
        Ok(self.definitions.size().await? < CACHES_MAX as u64 + others)
    }
}
