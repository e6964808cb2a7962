//! Locks of keys: entries of an internal cache, with the holder as value.

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use consort_grid::{Change, Condition, Lifetime, Write};

use super::id::SINGLE;
use super::limits::{LOCK_LEASE, TAKE_OVER_AFTER};
use super::protocol::Protocol;
use super::record::Scope;
use super::storage::{Space, Storage, is_uncertain, removal};
use crate::error::CacheError;

/// The pause doubles each time, up to [`PAUSE_MAX`].
const PAUSE_FIRST: Duration = Duration::from_millis(1);

const PAUSE_MAX: Duration = Duration::from_millis(32);

fn lock(cache: &str, key: &[u8]) -> Bytes {
    let mut name = BytesMut::with_capacity(2 + cache.len() + key.len());
    name.put_u16(cache.len() as u16);
    name.put_slice(cache.as_bytes());
    name.put_slice(key);
    name.freeze()
}

impl<S: Storage> Protocol<S> {
    /// The holder may have the lock already. False if another keeps it for this time.
    pub(crate) async fn acquire(
        &self,
        (scope, cache, key): (Scope, &str, &[u8]),
        holder: &Bytes,
        lifetime: Lifetime,
        wait: Duration,
    ) -> Result<bool, CacheError> {
        let (lock, until) = (lock(cache, key), self.storage.now() + wait);
        let mut pause = PAUSE_FIRST;
        loop {
            let change = Change::Put { value: holder.clone(), lifetime };
            let write = Write { condition: Condition::Absent, change, wants_previous: true };
            let written = self.storage.write(Space::Locks(scope), &lock, write).await?;
            if written.is_done || written.previous.is_some_and(|held| held.value == holder) {
                return Ok(true);
            }
            if self.storage.now() + pause > until {
                return Ok(false);
            }
            self.storage.pause(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    pub(crate) async fn release(
        &self,
        (scope, cache, key): (Scope, &str, &[u8]),
        holder: &Bytes,
    ) -> Result<(), CacheError> {
        self.release_lock(scope, &lock(cache, key), holder).await
    }

    pub(super) async fn release_lock(
        &self,
        scope: Scope,
        lock: &Bytes,
        holder: &Bytes,
    ) -> Result<(), CacheError> {
        let write = removal(Condition::Value(holder.clone()));
        self.storage.write(Space::Locks(scope), lock, write).await.map(drop)
    }

    /// Whether no other holder has the lock.
    pub(crate) async fn is_free(
        &self,
        (scope, cache, key): (Scope, &str, &[u8]),
        holder: &Bytes,
    ) -> Result<bool, CacheError> {
        let held = self.storage.read(Space::Locks(scope), &lock(cache, key)).await?;
        Ok(held.is_none_or(|held| held.value == holder))
    }

    /// Makes a single write. `None` if a transaction holds the lock of its key for `wait`. `timeout` is that of the write.
    pub(crate) async fn locked<T>(
        &self,
        place: (Scope, &str, &[u8]),
        (wait, timeout): (Duration, Duration),
        write: impl Future<Output = Result<T, CacheError>> + Send,
    ) -> Result<Option<T>, CacheError> {
        let holder = Bytes::from(format!("{}{:x}", char::from(SINGLE), self.storage.unique()));
        let lease = Lifetime { lifespan: Some(timeout.saturating_add(LOCK_LEASE)), max_idle: None };
        let begun = self.storage.now();
        if !self.acquire(place, &holder, lease, wait).await? {
            return Ok(None);
        }
        // A member that was suspended meanwhile may have lost the lock.
        if self.storage.now() > begun + LOCK_LEASE - TAKE_OVER_AFTER {
            let _ = self.release(place, &holder).await;
            return Ok(None);
        }
        let written = write.await;
        // While the write may still be applied, it keeps its lock, which expires.
        if !written.as_ref().is_err_and(is_uncertain) {
            let _ = self.release(place, &holder).await;
        }
        written.map(Some)
    }
}
