//! A map from names to values that all servers share. An entry is volatile, until the last server ends, or persistent.
//!
//! It consists of two caches, because persistence is a property of a cache as a whole. A name is in one of them.

use std::collections::BTreeMap;

use bytes::Bytes;
use consort_cache::{CacheError, Change, Condition, Events, Lifetime, Lookup, RawCache, ReadFrom, Write};

use crate::memory::responses::Gathering;
use crate::ops::answer::Refusal;

/// The lifetime of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Keeping {
    /// Survives a full restart, if the servers have directories for data.
    Lasting,
    /// Exists as long as one server runs.
    Passing,
}

/// Values by names.
pub(crate) struct Register {
    lasting: RawCache,
    passing: RawCache,
}

impl Register {
    pub(crate) const fn new(lasting: RawCache, passing: RawCache) -> Self {
        Self { lasting, passing }
    }

    const fn both(&self) -> [&RawCache; 2] {
        [&self.lasting, &self.passing]
    }

    /// The cache that has a name; the volatile one for unknown names. Every server has the persistent entries, so that this
    /// costs no message.
    pub(crate) async fn home(&self, name: &[u8]) -> Result<&RawCache, CacheError> {
        Ok(if self.lasting.contains(name).await? { &self.lasting } else { &self.passing })
    }

    /// The persistent value of a name, which every server has: the result of its last write, without waiting unless that
    /// write is still on its way here.
    pub(crate) fn lasting_here(&self, name: &[u8]) -> Lookup<Bytes> {
        self.lasting.get_here(name)
    }

    pub(crate) async fn get(&self, name: &[u8]) -> Result<Option<Bytes>, CacheError> {
        self.home(name).await?.get(name).await
    }

    /// The value of a name after all writes that have completed.
    pub(crate) async fn newest(&self, name: &[u8]) -> Result<Option<Bytes>, CacheError> {
        self.home(name).await?.with_read_from(ReadFrom::Primary).get(name).await
    }

    /// Adds a value unless the name has one. Returns whether it was added. Of two values that are added at the same time
    /// with different lifetimes, it may be that neither is added.
    pub(crate) async fn add(&self, name: &Bytes, value: Bytes, keeping: Keeping) -> Result<bool, CacheError> {
        let (own, other) = match keeping {
            Keeping::Lasting => (&self.lasting, &self.passing),
            Keeping::Passing => (&self.passing, &self.lasting),
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

    /// Replaces the value of a name if it is the expected one. Returns whether it was.
    pub(crate) async fn replace(&self, name: &[u8], value: &[u8], by: &[u8]) -> Result<bool, CacheError> {
        self.home(name).await?.replace_if_value(name, value, by).await
    }

    /// Removes a name. Returns whether it existed: of several concurrent removals, one returns true.
    pub(crate) async fn remove(&self, name: &[u8]) -> Result<bool, CacheError> {
        let mut was_there = false;
        for cache in self.both() {
            was_there |= cache.remove(name).await?;
        }
        Ok(was_there)
    }

    pub(crate) async fn size(&self) -> Result<u64, CacheError> {
        Ok(self.lasting.size().await? + self.passing.size().await?)
    }

    /// All names, as a part of a response.
    pub(crate) async fn names_within(&self, gathering: &mut Gathering) -> Result<Vec<Bytes>, Refusal> {
        let mut names = Vec::new();
        for cache in self.both() {
            let mut walk = cache.keys();
            while let Some(name) = walk.next().await.transpose()? {
                // Each name counts twice, because it is in memory and is copied into the response.
                gathering.add(2 * (name.len() + size_of::<Bytes>())).await?;
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    pub(crate) async fn entries(&self) -> Result<BTreeMap<Bytes, Bytes>, CacheError> {
        let mut entries = BTreeMap::new();
        for cache in self.both() {
            let mut walk = cache.entries();
            while let Some((name, value)) = walk.next().await.transpose()? {
                entries.insert(name, value);
            }
        }
        Ok(entries)
    }

    /// Events of both caches, of which this many may be unread.
    pub(crate) async fn listen(&self, events_max: usize) -> Result<[Events<Bytes, Bytes>; 2], CacheError> {
        let listen = |cache: &RawCache| cache.listen().events_max(events_max).start();
        Ok([listen(&self.lasting).await?, listen(&self.passing).await?])
    }
}
