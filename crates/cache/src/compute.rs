//! Read-modify-write of a value.

use std::borrow::Borrow;

#[cfg(doc)]
use consort_grid::OperationError;
use consort_grid::{Change, Condition};

use crate::cache::Cache;
use crate::error::CacheError;
use consort_encoding::{Decode, Encode};

/// Maximum number of attempts when other writers were faster. One writer succeeds in each round, so this many writers
/// of one key may compete without a failure.
const ATTEMPTS: u32 = 10_000;

impl<K, V, KE, VE> Cache<K, V, KE, VE> {
    /// Sets a key to the result of `change` for its value; `None` removes the key, or leaves it absent. Returns the
    /// new value. `change` is called again if other writers have changed the key meanwhile, so it should have no
    /// effects of its own.
    ///
    /// # Errors
    ///
    /// [`CacheError::Contended`] after too many attempts. After [`OperationError::TimedOut`] and
    /// [`OperationError::Uncertain`] the last change may have been applied.
    pub async fn compute<Q>(
        &self,
        key: &Q,
        mut change: impl FnMut(Option<&V>) -> Option<V>,
    ) -> Result<Option<V>, CacheError>
    where
        K: Borrow<Q>,
        Q: ?Sized,
        KE: Encode<Q>,
        VE: Encode<V> + Decode<V>,
    {
        let mut seen = self.get_with_metadata(key).await?;
        let key = self.key(key)?.into_bytes();
        for _ in 0..ATTEMPTS {
            let made = change(seen.as_ref().map(|entry| &entry.value));
            let condition = match (&seen, &made) {
                (None, None) => return Ok(None),
                (None, Some(_)) => Condition::Absent,
                (Some(entry), _) => Condition::Version(entry.version),
            };
            let done = match &made {
                Some(value) => self.putting(value)?,
                None => Change::Remove,
            };
            let written = self.exchange(key.clone(), condition, done).await?;
            if written.is_done {
                return Ok(made);
            }
            seen = written.previous.map(|stored| self.entry_of(stored)).transpose()?;
        }
        Err(CacheError::Contended { attempts: ATTEMPTS })
    }
}
