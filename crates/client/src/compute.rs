//! Changes of a value based on the current one: optimistic loops of read and replace-if-version, because servers compare
//! versions, not values.

use std::ops::ControlFlow;

use bytes::Bytes;
use consort_encoding::optimistic_update::{self, retry};
use consort_encoding::{Contention, Decode, Encode, EncodeBorrowed};

use crate::cache::{Cache, Entry, RawCache};
use crate::error::ClientError;

impl<K, V, KE, VE> Cache<K, V, KE, VE> {
    /// Replaces a key's value by the result of `change`; `None` removes the key or leaves it absent. Returns the new value. A
    /// concurrent change repeats `change`, so it should have no side effects.
    ///
    /// # Errors
    ///
    /// [`ClientError::Contended`] after too many attempts. After [`ClientError::TimedOut`] and [`ClientError::Uncertain`] the
    /// last change may have been applied.
    pub async fn compute<Q: ?Sized>(
        &self,
        key: &Q,
        change: impl FnMut(Option<&V>) -> Option<V>,
    ) -> Result<Option<V>, ClientError>
    where
        KE: EncodeBorrowed<K, Q>,
        VE: Encode<V> + Decode<V>,
    {
        let entry = self.get_with_metadata(key).await?;
        let write = move |entry: Option<Entry<V>>, new: Option<V>| async move {
            let is_done = match (&entry, &new) {
                (None, None) => true,
                (None, Some(value)) => self.put_if_absent(key, value).await?,
                (Some(entry), Some(value)) => self.replace_if_version(key, entry.version, value).await?,
                (Some(entry), None) => self.remove_if_version(key, entry.version).await?,
            };
            Ok(if is_done {
                ControlFlow::Break(new)
            } else {
                ControlFlow::Continue(self.get_with_metadata(key).await?)
            })
        };
        optimistic_update::compute(entry, |entry| &entry.value, change, write).await
    }

    /// Replaces a key's value if it equals `expected` byte for byte; returns whether it did.
    ///
    /// # Errors
    ///
    /// As [`Cache::compute`].
    pub async fn replace_if_value<Q: ?Sized, W: ?Sized>(
        &self,
        key: &Q,
        expected: &W,
        value: &W,
    ) -> Result<bool, ClientError>
    where
        KE: EncodeBorrowed<K, Q>,
        VE: EncodeBorrowed<V, W>,
    {
        let (key, expected, value) = (self.key(key)?, self.value(expected)?, self.value(value)?);
        self.bytes().change_if(&key, &expected, Some(&value)).await
    }

    /// Removes a key if its value equals `value` byte for byte; returns whether it did.
    ///
    /// # Errors
    ///
    /// As [`Cache::compute`].
    pub async fn remove_if_value<Q: ?Sized, W: ?Sized>(
        &self,
        key: &Q,
        expected: &W,
    ) -> Result<bool, ClientError>
    where
        KE: EncodeBorrowed<K, Q>,
        VE: EncodeBorrowed<V, W>,
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
        let entry = self.get_with_metadata(key).await?;
        retry(entry, move |entry| async move {
            let expected = entry.filter(|entry| entry.value == *expected);
            let Some(entry) = expected else { return Ok(ControlFlow::Break(false)) };
            let is_done = match value {
                Some(value) => self.replace_if_version(key, entry.version, value).await?,
                None => self.remove_if_version(key, entry.version).await?,
            };
            Ok(if is_done {
                ControlFlow::Break(true)
            } else {
                ControlFlow::Continue(self.get_with_metadata(key).await?)
            })
        })
        .await
    }
}

impl From<Contention> for ClientError {
    fn from(Contention { attempts }: Contention) -> Self {
        Self::Contended { attempts }
    }
}
