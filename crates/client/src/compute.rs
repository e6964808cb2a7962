//! Changes of a value based on its current value: optimistic loops of read and replace-if-version, because
//! servers compare versions, not values.

use std::borrow::Borrow;

use bytes::Bytes;
use consort_encoding::{Decode, Encode, Encoding};

use crate::cache::{Cache, RawCache};
use crate::error::ClientError;

/// Maximum attempts. Each failed attempt means that another writer succeeded, so this many writers of one key
/// can run without a failure.
const ATTEMPTS: u32 = 10_000;

impl<K, V, KE, VE> Cache<K, V, KE, VE> {
    /// Replaces a key's value by the result of `change`; `None` removes the key or leaves it absent. Returns
    /// the new value. `change` is called again after a concurrent change, so it should have no side effects.
    ///
    /// # Errors
    ///
    /// [`ClientError::Contended`] after too many attempts. After [`ClientError::TimedOut`] and
    /// [`ClientError::Uncertain`] the last change may have been applied.
    pub async fn compute<Q>(
        &self,
        key: &Q,
        mut change: impl FnMut(Option<&V>) -> Option<V>,
    ) -> Result<Option<V>, ClientError>
    where
        K: Borrow<Q>,
        Q: ?Sized,
        KE: Encode<Q>,
        VE: Encode<V> + Decode<V>,
    {
        for _ in 0..ATTEMPTS {
            let seen = self.get_with_metadata(key).await?;
            let made = change(seen.as_ref().map(|entry| &entry.value));
            let is_done = match (&seen, &made) {
                (None, None) => true,
                (None, Some(value)) => self.put_if_absent(key, value).await?,
                (Some(entry), Some(value)) => self.replace_if_version(key, entry.version, value).await?,
                (Some(entry), None) => self.remove_if_version(key, entry.version).await?,
            };
            if is_done {
                return Ok(made);
            }
        }
        Err(ClientError::Contended { attempts: ATTEMPTS })
    }

    /// Replaces a key's value if it equals `expected` byte for byte. Returns whether it did.
    ///
    /// # Errors
    ///
    /// As [`Cache::compute`].
    pub async fn replace_if_value<Q, W>(&self, key: &Q, expected: &W, value: &W) -> Result<bool, ClientError>
    where
        K: Borrow<Q>,
        V: Borrow<W>,
        Q: ?Sized,
        W: ?Sized,
        KE: Encode<Q> + Encoding,
        VE: Encode<W> + Encoding,
    {
        let (key, expected, value) = (self.key(key)?, self.value(expected)?, self.value(value)?);
        self.bytes().change_if(&key, &expected, Some(&value)).await
    }

    /// Removes a key if its value equals `value` byte for byte. Returns whether it did.
    ///
    /// # Errors
    ///
    /// As [`Cache::compute`].
    pub async fn remove_if_value<Q, W>(&self, key: &Q, expected: &W) -> Result<bool, ClientError>
    where
        K: Borrow<Q>,
        V: Borrow<W>,
        Q: ?Sized,
        W: ?Sized,
        KE: Encode<Q> + Encoding,
        VE: Encode<W> + Encoding,
    {
        let (key, expected) = (self.key(key)?, self.value(expected)?);
        self.bytes().change_if(&key, &expected, None).await
    }
}

impl RawCache {
    async fn change_if(
        &self,
        key: &Bytes,
        expected: &Bytes,
        value: Option<&Bytes>,
    ) -> Result<bool, ClientError> {
        for _ in 0..ATTEMPTS {
            let seen = self.get_with_metadata(key).await?.filter(|entry| entry.value == *expected);
            let Some(entry) = seen else { return Ok(false) };
            let is_done = match value {
                Some(value) => self.replace_if_version(key, entry.version, value).await?,
                None => self.remove_if_version(key, entry.version).await?,
            };
            if is_done {
                return Ok(true);
            }
        }
        Err(ClientError::Contended { attempts: ATTEMPTS })
    }
}
