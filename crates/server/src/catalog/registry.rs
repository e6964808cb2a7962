//! A map from names to values that all servers share: two caches, because persistence is a property of a whole cache. A name is
//! in one of them.

use std::collections::BTreeMap;

use bytes::Bytes;
use consort_cache::{CacheError, Change, Condition, Events, Lifetime, Lookup, RawCache, ReadFrom, Write};

use crate::memory::responses::ResponseReservation;
use crate::reply::Refusal;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lifecycle {
    /// Survives a full restart, if servers have directories for data.
    Persistent,
    /// Exists as long as one server runs.
    Volatile,
}

pub(crate) struct Registry {
    persistent: RawCache,
    volatile: RawCache,
}

impl Registry {
    pub(crate) const fn new(persistent: RawCache, volatile: RawCache) -> Self {
        Self { persistent, volatile }
    }

    const fn both(&self) -> [&RawCache; 2] {
        [&self.persistent, &self.volatile]
    }

    /// The volatile cache for unknown names. Every server has the persistent entries, so this costs no message.
    pub(crate) async fn cache_of(&self, name: &[u8]) -> Result<&RawCache, CacheError> {
        Ok(if self.persistent.contains(name).await? { &self.persistent } else { &self.volatile })
    }

    /// That of an unknown name is volatile.
    pub(crate) async fn lifecycle(&self, name: &[u8]) -> Result<Lifecycle, CacheError> {
        let is_persistent = self.persistent.contains(name).await?;
        Ok(if is_persistent { Lifecycle::Persistent } else { Lifecycle::Volatile })
    }

    /// The result of the last write; waits only if it is still on its way here.
    pub(crate) fn persistent_here(&self, name: &[u8]) -> Lookup<Bytes> {
        self.persistent.get_local(name)
    }

    pub(crate) async fn get(&self, name: &[u8]) -> Result<Option<Bytes>, CacheError> {
        self.cache_of(name).await?.get(name).await
    }

    pub(crate) async fn get_linearizable(&self, name: &[u8]) -> Result<Option<Bytes>, CacheError> {
        self.cache_of(name).await?.with_read_from(ReadFrom::Primary).get(name).await
    }

    /// Returns whether the name had no value. Two concurrent additions with different lifetimes may both fail.
    pub(crate) async fn add(
        &self,
        name: &Bytes,
        value: Bytes,
        keeping: Lifecycle,
    ) -> Result<bool, CacheError> {
        let (own, other) = match keeping {
            Lifecycle::Persistent => (&self.persistent, &self.volatile),
            Lifecycle::Volatile => (&self.volatile, &self.persistent),
        };
        let other = other.with_read_from(ReadFrom::Primary);
        if other.contains(name).await? {
            return Ok(false);
        }
        let change = Change::Put { value, lifetime: Lifetime::FOREVER };
        let write = Write { condition: Condition::Absent, change, wants_previous: false };
        if !own.write(name.clone(), write).await?.is_done {
            return Ok(false);
        }
        let is_alone = !other.contains(name).await?;
        if !is_alone {
            own.remove(name).await?;
        }
        Ok(is_alone)
    }

    pub(crate) async fn replace(&self, name: &[u8], value: &[u8], by: &[u8]) -> Result<bool, CacheError> {
        self.cache_of(name).await?.replace_if_value(name, value, by).await
    }

    /// Of several concurrent removals, one returns true.
    pub(crate) async fn remove(&self, name: &[u8]) -> Result<bool, CacheError> {
        let mut was_there = false;
        for cache in self.both() {
            was_there |= cache.remove(name).await?;
        }
        Ok(was_there)
    }

    pub(crate) async fn size(&self) -> Result<u64, CacheError> {
        Ok(self.persistent.size().await? + self.volatile.size().await?)
    }

    pub(crate) async fn names(&self, reservation: &mut ResponseReservation) -> Result<Vec<Bytes>, Refusal> {
        let mut names = Vec::new();
        for cache in self.both() {
            let mut keys = cache.keys();
            while let Some(name) = keys.next().await.transpose()? {
                // Each name counts twice, because it is in memory and is copied into the response.
                reservation.add(2 * (name.len() + size_of::<Bytes>())).await?;
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    /// The limits of their number and of their lengths bound them.
    pub(crate) async fn names_with_prefix(&self, prefix: &[u8]) -> Result<Vec<Bytes>, CacheError> {
        let mut names = Vec::new();
        for cache in self.both() {
            let mut keys = cache.keys();
            while let Some(name) = keys.next().await.transpose()? {
                if name.starts_with(prefix) {
                    names.push(name);
                }
            }
        }
        Ok(names)
    }

    pub(crate) async fn entries(&self) -> Result<BTreeMap<Bytes, Bytes>, CacheError> {
        let mut entries = BTreeMap::new();
        for cache in self.both() {
            let mut stream = cache.entries();
            while let Some((name, value)) = stream.next().await.transpose()? {
                entries.insert(name, value);
            }
        }
        Ok(entries)
    }

    pub(crate) async fn listen(&self, events_max: usize) -> Result<[Events<Bytes, Bytes>; 2], CacheError> {
        let listen = |cache: &RawCache| cache.listen().events_max(events_max).start();
        Ok([listen(&self.persistent).await?, listen(&self.volatile).await?])
    }
}
