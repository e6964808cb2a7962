//! Locks of keys: entries of a replicated cache, with the holder as value.

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use consort_cache::{CacheError, Change, Condition, Lifetime, RawCache, Write};
use tokio::time::{Instant, sleep};

use crate::limits::LOCK_TIME_MAX;

/// The pause doubles each time, up to [`PAUSE_MAX`].
const PAUSE_FIRST: Duration = Duration::from_millis(1);

const PAUSE_MAX: Duration = Duration::from_millis(32);

pub(crate) struct Locks {
    cache: RawCache,
}

fn lock(cache: &str, key: &[u8]) -> Bytes {
    let mut name = BytesMut::with_capacity(2 + cache.len() + key.len());
    name.put_u16(cache.len() as u16);
    name.put_slice(cache.as_bytes());
    name.put_slice(key);
    name.freeze()
}

impl Locks {
    pub(crate) const fn new(cache: RawCache) -> Self {
        Self { cache }
    }

    /// The holder may have the lock already. False if another keeps it for [`LOCK_TIME_MAX`].
    pub(crate) async fn acquire(
        &self,
        cache: &str,
        key: &[u8],
        holder: &Bytes,
        lifetime: Lifetime,
    ) -> Result<bool, CacheError> {
        let (lock, until) = (lock(cache, key), Instant::now() + LOCK_TIME_MAX);
        let mut pause = PAUSE_FIRST;
        loop {
            let change = Change::Put { value: holder.clone(), lifetime };
            let write = Write { condition: Condition::Absent, change, wants_previous: true };
            let written = self.cache.write(lock.clone(), write).await?;
            if written.is_done || written.previous.is_some_and(|held| held.value == holder) {
                return Ok(true);
            }
            if Instant::now() + pause > until {
                return Ok(false);
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    pub(crate) async fn release(&self, cache: &str, key: &[u8], holder: &Bytes) -> Result<(), CacheError> {
        let condition = Condition::Value(holder.clone());
        let write = Write { condition, change: Change::Remove, wants_previous: false };
        self.cache.write(lock(cache, key), write).await.map(drop)
    }
}
