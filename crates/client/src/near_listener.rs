//! The listener of a near cache: a task keeps it registered and renews the server's filter (facts section 2.12).

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use consort_hotrod::bloom::{BLOOM_BITS_MAX, BloomFilter};
use consort_hotrod::ops::listener::{Interests, Listener, Request};
use consort_hotrod::{RequestBody, Status};
use tokio::sync::watch;

use crate::backoff::Backoff;
use crate::cache::Cache;
use crate::error::ClientError;
use crate::limits::BLOOM_BITS_PER_ENTRY;
use crate::near::{InvalidationSink, NearCache, NearCacheConfig, NearEntries, NearStats};
use crate::operation::NotExecuted;
use crate::registration::{ListenedCache, ListenerRegistration};

struct NearCacheTask {
    listened: ListenedCache,
    entries: Arc<NearEntries>,
    /// 0 without a filter.
    bits: u32,
    timeout: Duration,
    begins: watch::Sender<Option<Result<(), ClientError>>>,
}

impl NearCacheTask {
    fn request(&self, id: Bytes) -> Request {
        if self.bits > 0 {
            return Request::AddBloom(id, self.bits);
        }
        Request::Add(Listener {
            id,
            includes_state: false,
            filter: None,
            converter: None,
            is_raw: false,
            interests: Interests::NEAR_CACHE,
        })
    }

    async fn keep(mut self) {
        let mut backoff = Backoff::new(RandomState::new().build_hasher().finish());
        loop {
            let mut is_lost = Arc::default();
            let added = self.listened.add(
                |id| RequestBody::Listener(self.request(id)),
                self.timeout,
                |_, lost| {
                    is_lost = Arc::new(AtomicBool::new(false));
                    Arc::new(InvalidationSink {
                        entries: self.entries.clone(),
                        lost,
                        is_lost: is_lost.clone(),
                    })
                },
            );
            match added.await {
                Ok(registration) => {
                    self.serve(&registration, &is_lost).await;
                    self.entries.turn_off();
                    backoff.reset();
                }
                // Servers of 3.0 do not support filters.
                Err(ClientError::Unsupported { .. }) if self.bits > 0 => {
                    self.bits = 0;
                    continue;
                }
                Err(error) => {
                    let is_first = self.begins.borrow().is_none();
                    tracing::debug!(%error, is_first, "near cache: the listener could not be registered");
                    if is_first || matches!(error, ClientError::Closed) {
                        let _ = self.begins.send(Some(Err(error)));
                        return;
                    }
                }
            }
            tokio::time::sleep(backoff.next()).await;
        }
    }

    /// Runs until the connection is lost or the filter fails.
    async fn serve(&mut self, registration: &ListenerRegistration, is_lost: &AtomicBool) {
        self.entries.turn_on(&registration.target);
        if is_lost.load(Ordering::Acquire) {
            // The loss came first.
            return;
        }
        let _ = self.begins.send(Some(Ok(())));
        loop {
            tokio::select! {
                () = registration.lost() => return,
                () = self.entries.stale_filter(), if self.bits > 0 => {}
            }
            if let Err(why) = self.update(registration).await {
                if !is_lost.load(Ordering::Acquire) {
                    // The server may still install the filter, when it is outdated.
                    tracing::warn!(%why, "near cache: continuing without a Bloom filter");
                    self.bits = 0;
                }
                return;
            }
        }
    }

    async fn update(&self, registration: &ListenerRegistration) -> Result<(), ClientError> {
        let mut filter = BloomFilter::new(self.bits).expect("the number of bits is in range");
        self.entries.begin_update(|key| filter.add(key));
        let update = RequestBody::Listener(Request::UpdateBloom(filter.to_bits()));
        let ask = self.listened.ask(update, self.timeout);
        let ListenedCache { client, cache, .. } = &self.listened;
        match client.perform_at(cache, ask, &registration.target).await {
            Ok(answer) if answer.status == Status::Success => {
                self.entries.end_update();
                Ok(())
            }
            Ok(answer) => Err(answer.unexpected()),
            Err(NotExecuted::Failed(error) | NotExecuted::TryAnotherServer(Some(error))) => Err(error),
            Err(NotExecuted::TryAnotherServer(None)) => {
                Err(ClientError::Unreachable { after: Duration::ZERO, cause: client.trouble() })
            }
        }
    }
}

fn shared_near_cache(
    listened: ListenedCache,
    config: NearCacheConfig,
    timeout: Duration,
) -> Result<Arc<NearCache>, ClientError> {
    let cache = listened.cache.clone();
    let mut shared = cache.near.lock().unwrap_or_else(PoisonError::into_inner);
    let types = (listened.key_type.clone(), listened.value_type.clone());
    if let Some(there) = shared.upgrade() {
        let is_same = there.config == config && there.types == types;
        return if is_same {
            Ok(there)
        } else {
            Err(ClientError::NearCacheConflict(cache.name.as_str().to_owned()))
        };
    }
    let entries = Arc::new(NearEntries::new(&config));
    let (begins, started) = watch::channel(None);
    let bits = u32::try_from(config.max_entries.max(1)).unwrap_or(u32::MAX);
    let bits = bits.saturating_mul(BLOOM_BITS_PER_ENTRY).min(BLOOM_BITS_MAX);
    let client = listened.client.clone();
    let task = NearCacheTask {
        listened,
        entries: entries.clone(),
        bits: if config.bloom { bits } else { 0 },
        timeout,
        begins,
    };
    let task = client.spawn(task.keep());
    let near = Arc::new(NearCache { config, types, entries, started, task });
    *shared = Arc::downgrade(&near);
    Ok(near)
}

impl<K, V, KE, VE> Cache<K, V, KE, VE> {
    /// Returns the statistics of this handle's near cache.
    pub fn near_stats(&self) -> Option<NearStats> {
        self.near.as_ref().map(|near| near.stats())
    }
}

impl<K, V, KE: Clone, VE: Clone> Cache<K, V, KE, VE> {
    /// Returns a handle with a near cache: [`Cache::get`] and [`Cache::get_with_metadata`] keep their results until a change.
    /// Such handles of a client share one near cache, dropped with the last of them.
    ///
    /// Writes through these handles invalidate the key before they return. Other clients' writes invalidate it when their event
    /// arrives, shortly after they return; until then reads return the old value. Writes with
    /// [`crate::Flags::SKIP_LISTENER_NOTIFICATION`] do not invalidate. Entries with max-idle are not cached.
    ///
    /// Misses of all keys go to the server that sends the events; without its connection the near cache is empty and off until
    /// another server sends them.
    ///
    /// # Errors
    ///
    /// [`ClientError::NearCacheConflict`] if this client has a near cache with other settings; if no server is reachable in time,
    /// or the server refuses.
    pub async fn near(&self, near: NearCacheConfig) -> Result<Self, ClientError> {
        let timeout = self.options().timeout;
        let shared = shared_near_cache(self.listened(), near, timeout)?;
        shared.started(timeout).await?;
        let mut handle = self.clone();
        handle.near = Some(shared);
        Ok(handle)
    }
}
