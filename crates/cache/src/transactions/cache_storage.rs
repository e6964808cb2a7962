//! The storage of a member: its open caches.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use consort_grid::{Action, CacheConfig, CacheId, CacheMode, ReadFrom, Stored, Write, Written};
use tokio::time::Instant;

use super::record::Scope;
use super::storage::{Keys, Space, Storage};
use crate::cache::RawCache;
use crate::encoded::{EncodedCache, written};
use crate::error::{CacheError, OpenError};
use crate::handler::GridHandler;
use crate::iteration::EntryStream;
use crate::manager::CacheManager;
use crate::options::CacheOptions;

/// The records and locks of transactions, which all members have.
pub(super) const SHARED: [&str; 2] = ["___consort_transactions", "___consort_locks"];

/// Those of local caches.
const LOCAL: [&str; 2] = ["___consort_local_transactions", "___consort_local_locks"];

struct Own {
    records: RawCache,
    locks: RawCache,
}

pub(crate) struct CacheStorage {
    handler: Arc<GridHandler>,
    member: String,
    shared: Own,
    local: Own,
    began: Instant,
}

async fn open(manager: &CacheManager, names: [&str; 2], mode: CacheMode) -> Result<Own, OpenError> {
    let config = |name| CacheConfig { mode, segments: 16, ..CacheConfig::new(name) };
    let records = manager.open(config(names[0])).raw().await?.with_read_from(ReadFrom::Primary);
    let locks = manager.open(config(names[1])).essential().raw().await?.with_read_from(ReadFrom::Primary);
    Ok(Own { records, locks })
}

impl CacheStorage {
    pub(super) async fn open(manager: &CacheManager) -> Result<Self, OpenError> {
        Ok(Self {
            shared: open(manager, SHARED, CacheMode::Replicated).await?,
            local: open(manager, LOCAL, CacheMode::Local).await?,
            handler: manager.shared_handler(),
            member: manager.address().to_string(),
            began: Instant::now(),
        })
    }

    fn own(&self, space: Space<'_>) -> Option<&RawCache> {
        let of = |scope| match scope {
            Scope::Shared => &self.shared,
            Scope::Local => &self.local,
        };
        match space {
            Space::Records(scope) => Some(&of(scope).records),
            Space::Locks(scope) => Some(&of(scope).locks),
            Space::Cache(_) => None,
        }
    }

    /// A handle whose writes take no locks.
    fn unlocked(&self, name: &str) -> Result<EncodedCache, CacheError> {
        let opened = self.handler.caches().get(&CacheId::of(name)).cloned();
        let opened = opened.filter(|opened| *opened.config.name == *name).ok_or(CacheError::Closed)?;
        let options = CacheOptions { read_from: ReadFrom::Primary, ..CacheOptions::default() };
        Ok(EncodedCache { handler: self.handler.clone(), opened, options, locked_writes: None })
    }

    fn in_space(&self, space: Space<'_>) -> Result<EncodedCache, CacheError> {
        match (self.own(space), space) {
            (Some(own), _) => Ok(own.encoded.clone()),
            (None, Space::Cache(name)) => self.unlocked(name),
            (None, _) => Err(CacheError::Closed),
        }
    }

    /// The members that can complete transactions, the oldest first.
    pub(super) fn members(&self) -> Vec<String> {
        let topology = self.shared.records.topology();
        topology.iter().flat_map(|topology| topology.addresses()).map(ToString::to_string).collect()
    }

    pub(super) fn is_open(&self) -> bool {
        !self.shared.records.encoded.opened.phase.borrow().is_over()
    }

    pub(super) const fn records(&self) -> &RawCache {
        &self.shared.records
    }
}

impl Keys for EntryStream<Bytes> {
    async fn next(&mut self) -> Option<Result<Bytes, CacheError>> {
        Self::next(self).await
    }
}

impl Storage for CacheStorage {
    type Keys = EntryStream<Bytes>;

    async fn read(&self, space: Space<'_>, key: &Bytes) -> Result<Option<Stored>, CacheError> {
        self.in_space(space)?.read(key.clone()).await
    }

    async fn write(&self, space: Space<'_>, key: &Bytes, write: Write) -> Result<Written, CacheError> {
        written(self.in_space(space)?.operation(key.clone(), Action::Write(write)).await?)
    }

    fn keys(&self, space: Space<'_>) -> EntryStream<Bytes> {
        self.own(space).unwrap_or(&self.shared.records).with_read_from(ReadFrom::Nearest).keys()
    }

    async fn pause(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn member(&self) -> &str {
        &self.member
    }

    fn unique(&self) -> u128 {
        let half = || u128::from(RandomState::new().build_hasher().finish());
        half() << 64 | half()
    }

    fn scope_of(&self, cache: &str) -> Option<Scope> {
        let opened = self.handler.caches().get(&CacheId::of(cache)).cloned()?;
        (*opened.config.name == *cache).then(|| scope_of(opened.config.mode))
    }

    fn members_of(&self, cache: &str) -> Option<Vec<String>> {
        let opened = self.handler.caches().get(&CacheId::of(cache)).cloned()?;
        let topology = opened.topology.borrow();
        topology.as_ref().map(|topology| topology.addresses().map(ToString::to_string).collect())
    }

    fn usage(&self, scope: Scope) -> (u64, u64) {
        let records = match scope {
            Scope::Shared => &self.shared.records,
            Scope::Local => &self.local.records,
        };
        (records.local_len(), records.local_bytes())
    }
}

pub(crate) const fn scope_of(mode: CacheMode) -> Scope {
    match mode {
        CacheMode::Local => Scope::Local,
        _ => Scope::Shared,
    }
}
