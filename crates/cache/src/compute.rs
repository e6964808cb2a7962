//! Read-modify-write of a value.

use std::ops::ControlFlow;

use bytes::Bytes;
#[cfg(doc)]
use consort_grid::OperationError;
use consort_grid::{Change, Condition, Version};

use crate::cache::{Cache, Entry};
use crate::error::CacheError;
use consort_encoding::{Contention, Decode, Encode, EncodeBorrowed, optimistic_update};

impl<K, V, KE, VE> Cache<K, V, KE, VE> {
    /// Sets a key to the result of `change` for its value; `None` removes the key. Returns the new value. If
    /// other writers change the key meanwhile, `change` is called again, so it should have no effects of its
    /// own.
    ///
    /// # Errors
    ///
    /// [`CacheError::Contended`] after too many attempts. After [`OperationError::TimedOut`] and
    /// [`OperationError::Uncertain`] the last change may have been applied.
    pub async fn compute<Q: ?Sized>(
        &self,
        key: &Q,
        change: impl FnMut(Option<&V>) -> Option<V>,
    ) -> Result<Option<V>, CacheError>
    where
        KE: EncodeBorrowed<K, Q>,
        VE: Encode<V> + Decode<V>,
    {
        let entry = self.get_with_metadata(key).await?;
        let key = &self.key(key)?.into_bytes();
        let write = move |entry: Option<Entry<V>>, new: Option<V>| async move {
            let expected = entry.map(|entry| entry.version);
            Ok(match self.compare_exchange_encoded(key.clone(), expected, new.as_ref()).await? {
                Ok(()) => ControlFlow::Break(new),
                Err(current) => ControlFlow::Continue(current),
            })
        };
        optimistic_update::compute(entry, |entry| &entry.value, change, write).await
    }

    /// Sets a key, or removes it for `None`, if its entry has the expected version, or is absent as expected.
    /// Returns the current entry if it is another one.
    pub(crate) async fn compare_exchange_encoded(
        &self,
        key: Bytes,
        expected: Option<Version>,
        new: Option<&V>,
    ) -> Result<Result<(), Option<Entry<V>>>, CacheError>
    where
        VE: Encode<V> + Decode<V>,
    {
        let condition = expected.map_or(Condition::Absent, Condition::Version);
        let change = match new {
            Some(value) => self.putting(value)?,
            None => Change::Remove,
        };
        let written = self.encoded.exchange(key, condition, change).await?;
        if written.is_done {
            return Ok(Ok(()));
        }
        let current = written.previous.map(|stored| self.entry(stored)).transpose()?;
        Ok(Err(current))
    }
}

impl From<Contention> for CacheError {
    fn from(Contention { attempts }: Contention) -> Self {
        Self::Contended { attempts }
    }
}
