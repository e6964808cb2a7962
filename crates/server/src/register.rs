//! What all servers have under names, be it until the last of them ends or beyond that.
//!
//! That is two caches, because what is kept belongs to a cache as a whole. A name is in one of them.

use std::collections::BTreeMap;

use bytes::Bytes;
use consort_cache::{CacheError, Change, Condition, Events, Lifetime, Lookup, RawCache, ReadFrom, Write};

use crate::answer::Refusal;
use crate::gathering::Gathering;

/// How long something is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Keeping {
    /// Also when all servers have ended and begun again, as far as they keep anything.
    Lasting,
    /// As long as one server is there.
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

    /// The cache that has a name; the one that passes for names that are nowhere. Every server has what lasts, so that this
    /// costs no message.
    pub(crate) async fn home(&self, name: &[u8]) -> Result<&RawCache, CacheError> {
        Ok(if self.lasting.contains(name).await? { &self.lasting } else { &self.passing })
    }

    /// What lasts under a name, which every server has: as its last write has left it, and known without waiting unless it is
    /// just on its way here.
    pub(crate) fn lasting_here(&self, name: &[u8]) -> Lookup<Bytes> {
        self.lasting.get_local(name)
    }

    pub(crate) async fn get(&self, name: &[u8]) -> Result<Option<Bytes>, CacheError> {
        self.home(name).await?.get(name).await
    }

    /// The same as its last write has left it.
    pub(crate) async fn newest(&self, name: &[u8]) -> Result<Option<Bytes>, CacheError> {
        self.home(name).await?.with_read_from(ReadFrom::Primary).get(name).await
    }

    /// Adds a value unless the name has one; whether it has been added. Of two that are added at the same time with
    /// different keeping none may be.
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

    /// Gives a name another value if it has this one. Whether it had.
    pub(crate) async fn replace(&self, name: &[u8], value: &[u8], by: &[u8]) -> Result<bool, CacheError> {
        self.home(name).await?.replace_if_value(name, value, by).await
    }

    /// Whether it was there: of several who remove it one is told so.
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

    /// The names of all, as a part of a response.
    pub(crate) async fn names_within(&self, gathering: &mut Gathering) -> Result<Vec<Bytes>, Refusal> {
        let mut names = Vec::new();
        for cache in self.both() {
            let mut walk = cache.keys();
            while let Some(name) = walk.next().await.transpose()? {
                // It is here, and then it is copied to the others.
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

    /// Changes of both, of which so many may wait.
    pub(crate) async fn listen(&self, events_max: usize) -> Result<[Events<Bytes, Bytes>; 2], CacheError> {
        let listen = |cache: &RawCache| cache.listen().events_max(events_max).start();
        Ok([listen(&self.lasting).await?, listen(&self.passing).await?])
    }
}
