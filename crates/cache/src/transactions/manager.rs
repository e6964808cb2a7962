//! The transactions of a member.

use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use consort_grid::Write;

use super::branches::{NewBranch, Prepared};
use super::cache_storage::{self, CacheStorage, scope_of};
use super::id::Id;
use super::limits::{LOCK_TIME_MAX, REAP_INTERVAL, TAKE_OVER_AFTER};
use super::protocol::{InvolvedCaches, Protocol};
use super::reaper::Members;
use super::record::Decision;
use super::session::Unfinished;
use super::storage::Storage;
use crate::encoded::{EncodedCache, LockedWrites, Writing};
use crate::error::{CacheError, OpenError};
use crate::iteration::EntryStream;
use crate::manager::CacheManager;

/// Attempts to complete decided writes; then the reaper of a member does it.
const FINISH_ATTEMPTS: usize = 20;

/// The transactions of a manager's caches, for its own program and for the clients of a server. Records and locks are entries of
/// internal caches, so that each member can complete the transactions of a member that was lost.
pub struct Transactions {
    pub(crate) protocol: Arc<Protocol<CacheStorage>>,
    is_reaped_by_server: AtomicBool,
}

impl Transactions {
    /// The internal caches that all members have.
    pub const CACHES: [&'static str; 2] = cache_storage::SHARED;

    async fn open(manager: &CacheManager) -> Result<Arc<dyn LockedWrites>, OpenError> {
        let protocol = Arc::new(Protocol::new(CacheStorage::open(manager).await?));
        let transactions = Arc::new(Self { protocol, is_reaped_by_server: AtomicBool::new(false) });
        tokio::spawn(reap(Arc::downgrade(&transactions)));
        Ok(transactions)
    }

    /// Runs a step to its end, even if its caller goes: the member that begins a step also ends it.
    pub async fn run_detached<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
        match tokio::spawn(work).await {
            Ok(done) => done,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime ends, and this task with it.
                Err(_) => std::future::pending().await,
            },
        }
    }

    /// Returns the number of recorded transactions.
    pub fn len(&self) -> u64 {
        self.protocol.storage.records().local_len()
    }

    /// Whether no transaction is recorded.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Prepares the branch of a client's transaction; with one phase it also commits. `involved` has the caches of all branches.
    ///
    /// # Errors
    ///
    /// [`CacheError`]; the branch is rolled back unless it was decided before.
    pub async fn prepare(
        &self,
        transaction: &[u8],
        branch: NewBranch,
        is_one_phase: bool,
        involved: InvolvedCaches,
    ) -> Result<Prepared, CacheError> {
        let id = id(transaction);
        let storage = &self.protocol.storage;
        let scope = storage.scope_of(&branch.cache).ok_or(CacheError::Closed)?;
        let (branch, seen) = branch.begin(scope, storage.member());
        let prepared = self.protocol.prepare(&id, branch, &seen, is_one_phase, &involved).await?;
        if prepared == Prepared::Late {
            self.finish_later(Unfinished { id, involved, claim: None });
        }
        Ok(prepared)
    }

    /// Decides the commit of a client's transaction if all branches are prepared, else the rollback. Also returns whether all
    /// decided writes are made; else they will be, and the keys are locked until then.
    ///
    /// # Errors
    ///
    /// [`CacheError`]; the decision may have been made.
    pub async fn commit(
        &self,
        transaction: &[u8],
        involved: InvolvedCaches,
    ) -> Result<(Decision, bool), CacheError> {
        let id = id(transaction);
        let (decision, is_written) = self.protocol.commit(&id, &involved).await?;
        if !is_written {
            self.finish_later(Unfinished { id, involved, claim: None });
        }
        Ok((decision, is_written))
    }

    /// Rolls a client's transaction back where it is not decided.
    ///
    /// # Errors
    ///
    /// [`CacheError`]; the decision may have been made.
    pub async fn roll_back(&self, transaction: &[u8]) -> Result<Decision, CacheError> {
        self.protocol.roll_back(&id(transaction)).await
    }

    /// Forgets the outcome of a client's transaction. A transaction that is not completed stays.
    ///
    /// # Errors
    ///
    /// [`CacheError`]; the outcome is forgotten later.
    pub async fn forget(&self, transaction: &[u8]) -> Result<(), CacheError> {
        self.protocol.forget(&id(transaction)).await
    }

    /// Returns the caches that a client's transaction changes.
    ///
    /// # Errors
    ///
    /// [`CacheError`]; nothing was changed.
    pub async fn branch_caches(&self, transaction: &[u8]) -> Result<Vec<String>, CacheError> {
        let record = self.protocol.record(&id(transaction)).await?.unwrap_or_default();
        Ok(record.branches.into_iter().map(|branch| branch.cache).collect())
    }

    /// Whether a transaction waits for its client's recovery.
    ///
    /// # Errors
    ///
    /// [`CacheError`]; nothing was changed.
    pub async fn is_in_doubt(&self, transaction: &[u8]) -> Result<bool, CacheError> {
        let known = self.protocol.known(&id(transaction)).await?;
        Ok(known.is_some_and(|known| known.record.is_in_doubt(known.age)))
    }

    /// Returns the ids of all recorded transactions.
    pub fn ids(&self) -> EntryStream<Bytes> {
        self.protocol.storage.keys(super::storage::Space::Records(super::record::Scope::Shared))
    }

    pub(crate) fn finish_later(&self, mut unfinished: Unfinished) {
        let protocol = self.protocol.clone();
        tokio::spawn(async move {
            for _ in 0..FINISH_ATTEMPTS {
                protocol.storage.pause(TAKE_OVER_AFTER).await;
                match unfinished.finish(&protocol).await {
                    Ok(()) | Err(CacheError::Closed) => return,
                    Err(error) => tracing::debug!(%error, "cannot complete a decided transaction yet"),
                }
            }
        });
    }

    /// Completes abandoned transactions and releases their locks. A server calls it in place of its manager, because it also knows
    /// the caches that are not open here: `find` opens a cache, and says whether it exists; `None` if that is unknown.
    ///
    /// # Errors
    ///
    /// [`CacheError`]; some transactions may have been completed.
    pub async fn reap<F>(&self, find: impl Fn(String) -> F + Send + Sync) -> Result<(), CacheError>
    where
        F: Future<Output = Option<bool>> + Send,
    {
        self.is_reaped_by_server.store(true, Ordering::Relaxed);
        self.reap_with(find).await
    }

    async fn reap_with<F>(&self, find: impl Fn(String) -> F + Send + Sync) -> Result<(), CacheError>
    where
        F: Future<Output = Option<bool>> + Send,
    {
        let storage = &self.protocol.storage;
        let all = storage.members();
        let is_first = all.first().is_some_and(|first| first == storage.member());
        self.protocol.reap(&Members { all: &all, is_first }, find).await
    }
}

impl LockedWrites for Transactions {
    /// Waits until no transaction has the key's lock, for [`LOCK_TIME_MAX`] at most, and writes.
    fn write(self: Arc<Self>, cache: EncodedCache, key: Bytes, write: Write) -> Writing {
        Box::pin(Self::run_detached(async move {
            let config = &cache.opened.config;
            let place = (scope_of(config.mode), &*config.name, &key[..]);
            let times = (LOCK_TIME_MAX.min(cache.options.timeout), cache.options.timeout);
            let written =
                self.protocol.locked(place, times, cache.write_unlocked(key.clone(), write)).await?;
            written.ok_or(CacheError::Locked { after: times.0 })
        }))
    }

    fn as_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }
}

impl CacheManager {
    /// Returns the transactions of this manager's caches, for servers. The first call opens their internal caches.
    ///
    /// # Errors
    ///
    /// [`OpenError`]; another call can succeed.
    pub async fn transactions(&self) -> Result<Arc<Transactions>, OpenError> {
        // Boxed, because the internal caches are opened by the same function.
        let open = || Box::pin(Transactions::open(self));
        let locked_writes = self.locked_writes().get_or_try_init(open).await?;
        // There is no other implementation.
        locked_writes.clone().as_any().downcast().map_err(|_| OpenError::Closed)
    }
}

fn id(transaction: &[u8]) -> Id {
    Id::shared(Bytes::copy_from_slice(transaction))
}

async fn reap(transactions: Weak<Transactions>) {
    loop {
        tokio::time::sleep(REAP_INTERVAL).await;
        let Some(transactions) = transactions.upgrade() else { return };
        if !transactions.protocol.storage.is_open() {
            return;
        }
        if transactions.is_reaped_by_server.load(Ordering::Relaxed) {
            continue;
        }
        let storage = &transactions.protocol.storage;
        let find = |cache: String| {
            let is_open = storage.scope_of(&cache).is_some();
            async move { is_open.then_some(true) }
        };
        if let Err(error) = transactions.reap_with(find).await {
            tracing::debug!(%error, "cannot complete abandoned transactions; trying again later");
        }
    }
}
