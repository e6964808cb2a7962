//! Changing a value by what it is.

use std::borrow::Borrow;

#[cfg(doc)]
use consort_grid::OperationError;
use consort_grid::{Change, Condition};

use crate::cache::Cache;
use crate::error::CacheError;
use consort_encoding::{Decode, Encode};

/// How often a change is tried again because others were faster. Somebody's succeeds each time, so that this many
/// writers of one key may meet without one of them failing.
const ATTEMPTS: u32 = 10_000;

impl<K, V, KE, VE> Cache<K, V, KE, VE> {
    /// Gives a key what `change` makes of its value; none takes it away, or leaves it absent. Returns what the key has
    /// then. `change` is called again if others have changed the key meanwhile, so it should have no effects of its own.
    ///
    /// # Errors
    ///
    /// [`CacheError::Contended`] if that happens too often. After [`OperationError::TimedOut`] and
    /// [`OperationError::Uncertain`] the last change may have been done.
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
