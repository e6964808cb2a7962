//! Transactions of clients (facts section 2.13).
//!
//! A client sends its writes with the versions that it has read. The server writes a record of the transaction ([`record`]),
//! locks its keys ([`locks`]) in their order, checks that the versions are unchanged, and notes them. From then on any server can
//! complete the transaction. A commit is decided in the record, writes each key on condition that it still has the noted version,
//! and unlocks the keys. In caches with transactions a single write locks its key, too, so that prepared keys do not change.
//!
//! Guarantees: no lost update of keys that the transaction reads and writes, and atomicity; a client reads committed values. Keys
//! that a client only reads are not validated. A client that reads several keys during a commit may see some before and others
//! after it.
//!
//! Writes of a member into such a cache without a server take no lock: a concurrent transaction's write may lose them, or be
//! lost.
//!
//! Records and locks are in two replicated caches, in memory. If a server crashes during prepare, its record is rolled back. If
//! it crashes between prepare and commit, the next server with the client's request commits or rolls back. Another server makes a
//! crashed server's decided writes after a while; until then the keys stay locked.

mod locks;
mod reaper;
mod record;

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use consort_cache::{
    Cache, CacheConfig, CacheError, CacheManager, CacheMode, Condition, Lifetime, OpenError, OperationError,
    RawCache, ReadFrom, Write, Written,
};
use consort_hotrod::Expiration;
use consort_hotrod::ops::transaction::{Modification, Prepare, Recovery, Seen, Xid, xa};

use crate::limits::{
    DECISION_TIME_MAX, LOCK_LEASE, LOCK_TIME_MAX, TRANSACTION_BYTES_MAX, TRANSACTIONS_BYTES_MAX,
    TRANSACTIONS_MAX,
};
use crate::memory::responses::ResponseReservation;
use crate::metrics::cache_stats::Count;
use crate::reply::Refusal;
use locks::Locks;
use record::{Branch, Intent, State, Value};
pub(crate) use record::{Record, record_key, xid_from_key};

const RECORDS: &str = "___consort_transactions";

const LOCKS: &str = "___consort_locks";

pub(crate) const CACHES: [&str; 2] = [RECORDS, LOCKS];

/// A client repeats its request while its transaction is being prepared.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(50);

/// Then the server leaves a decided transaction to the reaper.
const ATTEMPTS: usize = 3;

pub(crate) struct Transactions {
    records: Cache<Vec<u8>, Record>,
    locks: Locks,
    server: String,
    pub(crate) counts: Counts,
    limits: Limits,
}

struct Limits {
    transactions: u64,
    bytes: u64,
}

#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) prepared: Count,
    pub(crate) committed: Count,
    pub(crate) rolled_back: Count,
}

impl Counts {
    pub(crate) fn note(&self, requested: &Count, code: i32) {
        match code {
            xa::OK => requested.one(),
            xa::ROLLBACK | xa::HEURISTIC_ROLLBACK => self.rolled_back.one(),
            _ => {}
        }
    }

    pub(crate) fn all(&self) -> [(&'static str, i64); 3] {
        [
            ("prepared", self.prepared.get()),
            ("committed", self.committed.get()),
            ("rolled_back", self.rolled_back.get()),
        ]
    }
}

pub(crate) trait FindCache: Sync {
    fn find_cache(&self, name: &str) -> impl Future<Output = Result<Option<RawCache>, Refusal>> + Send;
}

pub(crate) type InvolvedCaches = BTreeMap<String, Option<RawCache>>;

/// The server that begins a step also ends it, even if the client disconnects.
pub(crate) async fn run_detached<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    match tokio::spawn(work).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime ends, and this task with it.
            Err(_) => std::future::pending().await,
        },
    }
}

/// Both results are in the order of the keys.
fn new_branch(
    cache: &str,
    server: &str,
    modifications: Vec<Modification>,
    recovery: Recovery,
    lifetime: impl Fn(&Expiration) -> Lifetime,
) -> Result<(Branch, Vec<Seen>), Refusal> {
    let bytes = |one: &Modification| one.key.len() + one.change.as_ref().map_or(0, |(_, value)| value.len());
    if modifications.iter().map(bytes).sum::<usize>() > TRANSACTION_BYTES_MAX {
        return Err(Refusal::new(format!("a transaction can change at most {TRANSACTION_BYTES_MAX} bytes")));
    }
    let mut by_key = BTreeMap::new();
    for Modification { key, seen, change } in modifications {
        let value = change.map(|(expiration, value)| {
            let Lifetime { lifespan, max_idle } = lifetime(&expiration);
            Value { bytes: value.to_vec(), lifespan, max_idle }
        });
        let intent = Intent { key: key.to_vec(), had: None, value };
        if by_key.insert(key, (intent, seen)).is_some() {
            return Err(Refusal::new("a transaction cannot change a key twice"));
        }
    }
    let (intents, seen) = by_key.into_values().unzip();
    let timeout = Duration::from_millis(u64::try_from(recovery.timeout).unwrap_or(0));
    let branch = Branch {
        cache: cache.to_owned(),
        state: State::Preparing,
        server: server.to_owned(),
        is_recoverable: recovery.is_recoverable,
        timeout: timeout.clamp(Duration::from_secs(1), DECISION_TIME_MAX),
        intents,
    };
    Ok((branch, seen))
}

fn lock_holder(key: &[u8]) -> Bytes {
    [&b"x"[..], key].concat().into()
}

impl Transactions {
    pub(crate) async fn open(manager: &CacheManager) -> Result<Self, OpenError> {
        let replicated =
            |name| CacheConfig { mode: CacheMode::Replicated, segments: 16, ..CacheConfig::new(name) };
        let records = manager.open(replicated(RECORDS)).cache().await?;
        let locks = Locks::new(manager.open(replicated(LOCKS)).essential().raw().await?);
        let (server, counts) = (manager.address().to_string(), Counts::default());
        let limits = Limits { transactions: TRANSACTIONS_MAX, bytes: TRANSACTIONS_BYTES_MAX };
        Ok(Self { records, locks, server, counts, limits })
    }

    pub(crate) fn len(&self) -> u64 {
        self.records.local_len()
    }

    /// Waits until no transaction holds the lock, or a timeout.
    pub(crate) async fn write(
        self: Arc<Self>,
        cache: RawCache,
        key: Bytes,
        write: Write,
    ) -> Result<Written, CacheError> {
        run_detached(async move {
            let holder = Bytes::from(format!("w{:x}", RandomState::new().build_hasher().finish()));
            let kept = Lifetime { lifespan: Some(LOCK_LEASE), max_idle: None };
            if !self.locks.acquire(cache.name(), &key, &holder, kept).await? {
                return Err(OperationError::TimedOut(LOCK_TIME_MAX).into());
            }
            let written = cache.write(key.clone(), write).await;
            // While the write may still be applied, it keeps its lock.
            let may_have_been_applied = |error: &CacheError| {
                matches!(
                    error,
                    CacheError::Operation(OperationError::TimedOut(_) | OperationError::Uncertain)
                )
            };
            if !written.as_ref().is_err_and(may_have_been_applied) {
                // Otherwise the lock expires within a minute.
                let _ = self.locks.release(cache.name(), &key, &holder).await;
            }
            written
        })
        .await
    }

    async fn record(&self, key: &[u8]) -> Result<Option<Record>, CacheError> {
        self.records.with_read_from(ReadFrom::Primary).get(key).await
    }

    pub(crate) async fn involved(
        &self,
        caches: &impl FindCache,
        xid: &Xid,
    ) -> Result<InvolvedCaches, Refusal> {
        let mut involved = InvolvedCaches::new();
        for branch in self.record(&record_key(xid)).await?.unwrap_or_default().branches {
            let found = caches.find_cache(&branch.cache).await?;
            involved.insert(branch.cache, found);
        }
        Ok(involved)
    }

    pub(crate) async fn branch_caches(&self, xid: &Xid) -> Result<Vec<String>, CacheError> {
        let record = self.record(&record_key(xid)).await?.unwrap_or_default();
        Ok(record.branches.into_iter().map(|branch| branch.cache).collect())
    }

    /// With one phase it also commits. `None` if another request executes the transaction.
    pub(crate) async fn prepare(
        &self,
        cache: &RawCache,
        involved: &InvolvedCaches,
        prepare: Prepare,
        recovery: Recovery,
        lifetime: impl Fn(&Expiration) -> Lifetime,
    ) -> Result<Option<i32>, Refusal> {
        let Prepare { xid, is_one_phase, modifications } = prepare;
        if modifications.is_empty() {
            return Ok(Some(xa::READ_ONLY));
        }
        let (mut branch, seen) = new_branch(cache.name(), &self.server, modifications, recovery, lifetime)?;
        let key = record_key(&xid);
        if let Some(state) = self.begin(&key, &branch).await? {
            return Ok(match state {
                State::Preparing => {
                    tokio::time::sleep(ASK_AGAIN_AFTER).await;
                    None
                }
                State::Prepared | State::Committing | State::Committed => Some(xa::OK),
                State::RolledBack => Some(xa::ROLLBACK),
            });
        }
        let is_sound = self.lock_and_validate(cache, &lock_holder(&key), &mut branch, &seen).await;
        let is_prepared = match is_sound {
            Ok(true) => self.set_prepared(&key, &branch, is_one_phase).await,
            other => other,
        };
        if let Err(error) = &is_prepared {
            tracing::debug!(%error, "cannot prepare a transaction");
        }
        if let (Ok(true), false) = (&is_prepared, is_one_phase) {
            return Ok(Some(xa::OK));
        }
        // After an error it is unknown whether the record was written.
        let is_decided = matches!(is_prepared, Ok(true)) || !self.roll_back_branch(&key, &branch).await?;
        if is_decided {
            return self.finish_with_retries(&key, involved).await.map(Some);
        }
        // Also locks that were taken after another server had decided the rollback.
        self.release(&key, &branch).await?;
        self.note_released(&key).await?;
        Ok(Some(xa::ROLLBACK))
    }

    async fn begin(&self, key: &[u8], branch: &Branch) -> Result<Option<State>, Refusal> {
        let Limits { transactions, bytes } = self.limits;
        if self.records.local_len() >= transactions || self.records.local_bytes() > bytes {
            return Err(Refusal::new(format!(
                "the limit of {transactions} transactions or {bytes} bytes is reached"
            )));
        }
        let mut known = None;
        let begun = |record: Option<&Record>| {
            let mut record = record.cloned().unwrap_or_default();
            known = record.branch(&branch.cache).map(|branch| branch.state);
            if known.is_none() {
                record.branches.push(branch.clone());
            }
            Some(record)
        };
        self.records.compute(key, begun).await?;
        Ok(known)
    }

    async fn lock_and_validate(
        &self,
        cache: &RawCache,
        holder: &Bytes,
        branch: &mut Branch,
        seen: &[Seen],
    ) -> Result<bool, CacheError> {
        for intent in &branch.intents {
            if !self.locks.acquire(cache.name(), &intent.key, holder, Lifetime::FOREVER).await? {
                return Ok(false);
            }
        }
        let newest = cache.with_read_from(ReadFrom::Primary);
        for (intent, seen) in branch.intents.iter_mut().zip(seen) {
            let entry = newest.get_with_metadata(&intent.key[..]).await?;
            intent.had = entry.map(|entry| entry.version.0);
            let is_as_seen = match seen {
                Seen::NotRead => true,
                Seen::Absent => intent.had.is_none(),
                Seen::Version(version) => intent.had == Some(version.cast_unsigned()),
            };
            if !is_as_seen {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Committed with one phase. False if another decision came first.
    async fn set_prepared(
        &self,
        key: &[u8],
        branch: &Branch,
        is_one_phase: bool,
    ) -> Result<bool, CacheError> {
        let mut is_prepared = false;
        let prepared = |record: Option<&Record>| {
            let mut record = record?.clone();
            is_prepared = false;
            if let Some(own) = record.branch(&branch.cache)
                && own.state == State::Preparing
                && own.server == branch.server
            {
                *own = Branch { state: State::Prepared, ..branch.clone() };
                is_prepared = !is_one_phase || record.commit(&self.server) == xa::OK;
            }
            Some(record)
        };
        self.records.compute(key, prepared).await?;
        Ok(is_prepared)
    }

    /// Other branches have their own requests. False if the commit is decided.
    async fn roll_back_branch(&self, key: &[u8], branch: &Branch) -> Result<bool, CacheError> {
        let mut is_rolled_back = true;
        let rolled_back = |record: Option<&Record>| {
            is_rolled_back = true;
            let mut record = record?.clone();
            if let Some(own) = record.branch(&branch.cache) {
                match own.state {
                    State::Preparing | State::Prepared => own.state = State::RolledBack,
                    State::Committing | State::Committed => is_rolled_back = false,
                    State::RolledBack => {}
                }
            }
            Some(record)
        };
        self.records.compute(key, rolled_back).await?;
        Ok(is_rolled_back)
    }

    pub(crate) async fn commit(&self, xid: &Xid, involved: &InvolvedCaches) -> Result<i32, Refusal> {
        let key = record_key(xid);
        let mut decided = xa::UNKNOWN;
        let decide = |record: Option<&Record>| {
            decided = xa::UNKNOWN;
            let mut record = record?.clone();
            decided = record.commit(&self.server);
            Some(record)
        };
        self.records.compute(&key[..], decide).await?;
        match decided {
            xa::OK => self.finish_with_retries(&key, involved).await,
            xa::UNKNOWN => Ok(decided),
            _ => {
                self.release_completed(&key).await?;
                Ok(decided)
            }
        }
    }

    pub(crate) async fn roll_back(&self, key: &[u8]) -> Result<i32, Refusal> {
        let mut decided = xa::UNKNOWN;
        let decide = |record: Option<&Record>| {
            decided = xa::UNKNOWN;
            let mut record = record?.clone();
            decided = record.roll_back();
            Some(record)
        };
        self.records.compute(key, decide).await?;
        if decided != xa::UNKNOWN {
            self.release_completed(key).await?;
        }
        Ok(decided)
    }

    async fn finish_with_retries(&self, key: &[u8], involved: &InvolvedCaches) -> Result<i32, Refusal> {
        for _ in 0..ATTEMPTS {
            match self.finish(key, involved).await {
                Ok(()) => return Ok(xa::OK),
                Err(error) => {
                    tracing::warn!(%error, "cannot complete the writes of a decided transaction; trying again");
                }
            }
        }
        // The decision stands, and the writes will still be made.
        Ok(xa::SERVER_ERROR)
    }

    async fn finish(&self, key: &[u8], involved: &InvolvedCaches) -> Result<(), CacheError> {
        let Some(record) = self.record(key).await? else { return Ok(()) };
        let mut written = Vec::new();
        for branch in record.branches.iter().filter(|branch| branch.state == State::Committing) {
            // A branch that is unknown here was added since, and belongs to its own request.
            let Some(cache) = involved.get(&branch.cache) else { continue };
            // Writes to a removed cache are dropped.
            if let Some(cache) = cache {
                for intent in &branch.intents {
                    write_intent(cache, intent).await?;
                }
            }
            written.push(&branch.cache);
        }
        let done = |now: Option<&Record>| {
            let mut now = now?.clone();
            for cache in &written {
                if let Some(own) = now.branch(cache) {
                    own.state = State::Committed;
                }
            }
            Some(now)
        };
        self.records.compute(key, done).await?;
        self.release_completed(key).await
    }

    async fn release_completed(&self, key: &[u8]) -> Result<(), CacheError> {
        let Some(record) = self.record(key).await? else { return Ok(()) };
        let is_over = |branch: &&Branch| matches!(branch.state, State::Committed | State::RolledBack);
        for branch in record.branches.iter().filter(is_over) {
            self.release(key, branch).await?;
        }
        self.note_released(key).await
    }

    async fn release(&self, key: &[u8], branch: &Branch) -> Result<(), CacheError> {
        let holder = lock_holder(key);
        for intent in &branch.intents {
            self.locks.release(&branch.cache, &intent.key, &holder).await?;
        }
        Ok(())
    }

    async fn note_released(&self, key: &[u8]) -> Result<(), CacheError> {
        let released = |record: Option<&Record>| {
            let mut record = record?.clone();
            for branch in &mut record.branches {
                if matches!(branch.state, State::Committed | State::RolledBack) {
                    branch.intents = Vec::new();
                }
            }
            Some(record)
        };
        self.records.compute(key, released).await.map(drop)
    }

    /// A record that is not completed stays.
    pub(crate) async fn forget(&self, key: &[u8]) -> Result<(), CacheError> {
        let kept = |record: Option<&Record>| {
            record.filter(|record| record.branches.iter().any(|branch| !branch.intents.is_empty())).cloned()
        };
        self.records.compute(key, kept).await.map(drop)
    }

    pub(crate) async fn in_doubt(&self, gathering: &mut ResponseReservation) -> Result<Vec<Xid>, Refusal> {
        let (mut all, mut keys) = (self.records.keys(), Vec::new());
        while let Some(key) = all.next().await.transpose()? {
            if let Some(entry) = self.records.get_with_metadata(&key[..]).await?
                && entry.value.is_in_doubt(entry.age)
            {
                // The id is held here, and then copied for the response.
                gathering.add(size_of::<Xid>() + 2 * key.len()).await?;
                keys.extend(xid_from_key(&key));
            }
        }
        Ok(keys)
    }
}

/// Writes a key as decided, unless the write is made already.
async fn write_intent(cache: &RawCache, intent: &Intent) -> Result<(), CacheError> {
    if intent.had.is_none() && intent.value.is_none() {
        return Ok(());
    }
    let key = Bytes::copy_from_slice(&intent.key);
    let write = |condition| Write { condition, change: intent.change(), wants_previous: false };
    let written = cache.write(key.clone(), write(intent.condition())).await?;
    // The key's previous entry may have expired meanwhile.
    if !written.is_done && !written.was_present && intent.value.is_some() {
        cache.write(key, write(Condition::Absent)).await?;
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests;
