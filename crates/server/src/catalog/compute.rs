use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use bytes::Bytes;
use consort_cache::{CacheError, Change, Condition, RawCache, ReadFrom, Write};
use tokio::sync::Mutex;

use crate::compute_pool::offload_if_large;
use crate::reply::Refusal;

const KEY_LOCKS: usize = 64;

/// Attempts to change a value that other servers change, too; one server succeeds in each round.
const ATTEMPTS: u32 = 1_000;

/// Changes of a key on this server wait for one another, so that they do not make each other repeat.
pub(crate) struct KeyLocks([Mutex<()>; KEY_LOCKS]);

impl Default for KeyLocks {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Mutex::default()))
    }
}

impl KeyLocks {
    /// Replaces a key's value by the first part of the result of `make`, and returns the second part. Without a first part, or
    /// after an error, nothing changes. `make` is called again after a concurrent change by another server.
    pub(crate) async fn compute<T: Send + 'static>(
        &self,
        cache: &RawCache,
        key: &Bytes,
        mut make: impl FnMut(Option<&Bytes>) -> Result<(Option<Change>, T), Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(key);
        let _alone = self.0[hash as usize % KEY_LOCKS].lock().await;
        let linearizable = cache.with_read_from(ReadFrom::Primary);
        let mut current =
            linearizable.get_with_metadata(key).await?.map(|entry| (entry.value, entry.version));
        for _ in 0..ATTEMPTS {
            let value = current.as_ref().map(|(value, _)| value.clone());
            let outcome;
            (make, outcome) = offload_if_large(value.as_ref().map_or(0, Bytes::len), move || {
                let outcome = make(value.as_ref());
                (make, outcome)
            })
            .await;
            let (change, result) = outcome?;
            let Some(change) = change else { return Ok(result) };
            let condition = match &current {
                None => Condition::Absent,
                Some((_, version)) => Condition::Version(*version),
            };
            let write = Write { condition, change, wants_previous: true };
            let written = cache.write(key.clone(), write).await?;
            if written.is_done {
                return Ok(result);
            }
            current = written.previous.map(|stored| (stored.value, stored.version));
        }
        Err(CacheError::Contended { attempts: ATTEMPTS }.into())
    }
}
