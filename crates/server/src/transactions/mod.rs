//! Transactions of clients (facts section 2.13).
//!
//! A client keeps what it reads and writes to itself until it prepares: then it sends what it writes, with the versions
//! that it has read. The server writes a record of it ([`record`]), locks its keys ([`locks`]) in their order, looks whether
//! the versions are still those, and notes which version each key has. From then on the transaction can be done by any
//! server: a commit decides it in the record, writes each key on condition that it still has that version, and frees the
//! keys. In caches with transactions every write takes its key's lock first, one of a single key too, so that a prepared
//! transaction finds its keys as they were.
//!
//! What that gives: no lost update of keys that were read and are written, and all or nothing. A client reads what is
//! committed; keys that it reads and does not write are not looked at again, and who reads several keys while they are being
//! written may see some before and others after.
//!
//! What a member puts into such a cache by itself, not through a server, asks for no lock, and may be lost beneath a
//! transaction's write, or that beneath it.
//!
//! Records and locks are in two caches of which every server has all, in memory. A server that crashes while it prepares
//! leaves a record that is rolled back; one that crashes between prepare and commit is not missed: the next server that is
//! asked commits or rolls back. What it had decided and not written, others write after a while; the keys stay locked until
//! then. What all servers together lose is lost as the caches are.

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
use consort_hotrod::ops::transaction::{Modification, Prepare, Recovery, Request, Response, Seen, Xid, xa};
use consort_hotrod::{ProtocolVersion, RequestHeader, ResponseBody, Status};

use crate::answer::{Answer, Refusal};
use crate::bounds::{
    DECISION_TIME_MAX, LOCK_KEPT, LOCK_TIME_MAX, TRANSACTION_BYTES_MAX, TRANSACTIONS_BYTES_MAX,
    TRANSACTIONS_MAX,
};
use crate::caches::Caches;
use crate::gathering::Gathering;
use crate::served::Served;
use crate::session::Session;
use crate::stats::Count;
use locks::Locks;
pub(crate) use reaper::reap;
use record::{Branch, Intent, State, Value};
pub(crate) use record::{Record, key_of, xid_of};

/// The records.
const RECORDS: &str = "___consort_transactions";

/// The locks.
const LOCKS: &str = "___consort_locks";

/// The caches of transactions.
pub(crate) const CACHES: [&str; 2] = [RECORDS, LOCKS];

/// What PREPARE_TX, the form of before 2.9, does not say.
const OLD_RECOVERY: Recovery = Recovery { is_recoverable: false, timeout: 60_000 };

/// How long a client is kept from asking again whose transaction is being prepared.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(50);

/// How often a server tries to write what is decided before it leaves that to the reaper.
const ATTEMPTS: usize = 3;

/// Transactions of all clients, as this server does them.
pub(crate) struct Transactions {
    records: Cache<Vec<u8>, Record>,
    locks: Locks,
    /// This member.
    server: String,
    pub(crate) counts: Counts,
    limits: Limits,
}

/// The most transactions that are known, and the most bytes that they are to write.
struct Limits {
    transactions: u64,
    bytes: u64,
}

/// What became of transactions for clients of this server.
#[derive(Default)]
pub(crate) struct Counts {
    prepared: Count,
    committed: Count,
    rolled_back: Count,
}

impl Counts {
    /// A client is answered with this code what became of what it asked for.
    fn note(&self, asked: &Count, code: i32) {
        match code {
            xa::OK => asked.one(),
            xa::ROLLBACK | xa::HEURISTIC_ROLLBACK => self.rolled_back.one(),
            _ => {}
        }
    }

    /// By their names.
    pub(crate) fn all(&self) -> [(&'static str, i64); 3] {
        [
            ("prepared", self.prepared.get()),
            ("committed", self.committed.get()),
            ("rolled_back", self.rolled_back.get()),
        ]
    }
}

/// The caches that a transaction is about, by their names; nothing for one that was removed.
type Involved = BTreeMap<String, Option<RawCache>>;

/// Goes on whether the client stays or not: what has begun is ended by who has begun it.
async fn detached<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    match tokio::spawn(work).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime ends, and this with it.
            Err(_) => std::future::pending().await,
        },
    }
}

fn code(code: i32) -> Answer {
    Answer::success(ResponseBody::Transaction(Response::Code(code)))
}

/// Does what is asked.
pub(crate) async fn answer(
    session: &Session,
    served: Option<&Arc<Served>>,
    request: Request,
    header: &RequestHeader,
) -> Result<Answer, Refusal> {
    let caches = &*session.caches;
    let failed = |error: crate::admin_error::AdminError| Refusal::new(error.to_string());
    if let Request::Prepare(prepare, recovery) = request {
        let transactions = served.and_then(|served| served.transactions.clone());
        let (Some(served), Some(transactions)) = (served, transactions) else {
            let name = header.cache.as_str();
            let text =
                format!("ISPN006020: Cache '{name}' is not transactional to execute a client transaction");
            return Err(Refusal::new(text));
        };
        let mut involved = transactions.involved(caches, &prepare.xid).await?;
        involved.insert(served.cache.name().to_owned(), Some(served.cache.clone()));
        let (cache, version) = (served.cache.clone(), header.version);
        let recovery = recovery.unwrap_or(OLD_RECOVERY);
        let is_one_phase = prepare.is_one_phase;
        let prepared = async move {
            let code = transactions.prepare(&cache, &involved, prepare, recovery, version).await?;
            let counts = &transactions.counts;
            let asked = if is_one_phase { &counts.committed } else { &counts.prepared };
            code.iter().for_each(|code| counts.note(asked, *code));
            Ok::<_, Refusal>(code)
        };
        // Without an answer of its own the client asks again.
        return Ok(detached(prepared).await?.map_or(Answer::of(Status::NotExecuted), code));
    }
    let transactions = caches.transactions().await.map_err(failed)?.clone();
    Ok(match request {
        Request::Commit(xid) => {
            let involved = transactions.involved(caches, &xid).await?;
            let committed = async move {
                let code = transactions.commit(&xid, &involved).await?;
                transactions.counts.note(&transactions.counts.committed, code);
                Ok::<_, Refusal>(code)
            };
            code(detached(committed).await?)
        }
        Request::Rollback(xid) => {
            let rolled_back = async move {
                let code = transactions.roll_back(&key_of(&xid)).await?;
                transactions.counts.note(&transactions.counts.rolled_back, code);
                Ok::<_, Refusal>(code)
            };
            code(detached(rolled_back).await?)
        }
        Request::Forget(xid) => {
            transactions.forget(&key_of(&xid)).await?;
            Answer::of(Status::Success)
        }
        Request::FetchRecovery | Request::Prepare(..) => {
            let mut gathering = session.responses.begin().await?;
            let in_doubt = transactions.in_doubt(&mut gathering).await?;
            let body = ResponseBody::Transaction(Response::Prepared(in_doubt));
            Answer::success(body).holding(gathering.finish())
        }
    })
}

/// The branch that a client wants, with what it has read of its keys, both in the order of the keys.
fn branch_of(
    cache: &str,
    server: &str,
    modifications: Vec<Modification>,
    recovery: Recovery,
    version: ProtocolVersion,
    default: Lifetime,
) -> Result<(Branch, Vec<Seen>), Refusal> {
    let bytes = |one: &Modification| one.key.len() + one.change.as_ref().map_or(0, |(_, value)| value.len());
    if modifications.iter().map(bytes).sum::<usize>() > TRANSACTION_BYTES_MAX {
        return Err(Refusal::new(format!("a transaction changes {TRANSACTION_BYTES_MAX} bytes at most")));
    }
    let mut by_key = BTreeMap::new();
    for Modification { key, seen, change } in modifications {
        let value = change.map(|(expiration, value)| {
            let Lifetime { lifespan, max_idle } = crate::map::lifetime(&expiration, version, default);
            Value { bytes: value.to_vec(), lifespan, max_idle }
        });
        let intent = Intent { key: key.to_vec(), had: None, value };
        if by_key.insert(key, (intent, seen)).is_some() {
            return Err(Refusal::new("a transaction changes a key twice"));
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

/// Who holds the locks of a transaction.
fn holder_of(key: &[u8]) -> Bytes {
    [&b"x"[..], key].concat().into()
}

impl Transactions {
    /// Opens what all servers share of transactions.
    pub(crate) async fn open(manager: &CacheManager) -> Result<Self, OpenError> {
        let everywhere =
            |name| CacheConfig { mode: CacheMode::Replicated, segments: 16, ..CacheConfig::new(name) };
        let records = manager.open(everywhere(RECORDS)).cache().await?;
        let locks = Locks::new(manager.open(everywhere(LOCKS)).essential().raw().await?);
        let (server, counts) = (manager.address().to_string(), Counts::default());
        let limits = Limits { transactions: TRANSACTIONS_MAX, bytes: TRANSACTIONS_BYTES_MAX };
        Ok(Self { records, locks, server, counts, limits })
    }

    /// Records that there are.
    pub(crate) fn len(&self) -> u64 {
        self.records.local_len()
    }

    /// Writes a key that no transaction has meanwhile.
    ///
    /// # Errors
    ///
    /// The cache's, or that it is out of time because one has it.
    pub(crate) async fn write(
        self: Arc<Self>,
        cache: RawCache,
        key: Bytes,
        write: Write,
    ) -> Result<Written, CacheError> {
        detached(async move {
            let holder = Bytes::from(format!("w{:x}", RandomState::new().build_hasher().finish()));
            let kept = Lifetime { lifespan: Some(LOCK_KEPT), max_idle: None };
            if !self.locks.take(cache.name(), &key, &holder, kept).await? {
                return Err(OperationError::TimedOut(LOCK_TIME_MAX).into());
            }
            let written = cache.write(key.clone(), write).await;
            // What may still be done has its lock until it cannot be any more.
            let may_be_done = |error: &CacheError| {
                matches!(
                    error,
                    CacheError::Operation(OperationError::TimedOut(_) | OperationError::Uncertain)
                )
            };
            if !written.as_ref().is_err_and(may_be_done) {
                // Else it is free in a minute.
                let _ = self.locks.release(cache.name(), &key, &holder).await;
            }
            written
        })
        .await
    }

    async fn record(&self, key: &[u8]) -> Result<Option<Record>, CacheError> {
        self.records.with_read_from(ReadFrom::Primary).get(key).await
    }

    /// The caches that a transaction has been about so far.
    async fn involved(&self, caches: &Caches, xid: &Xid) -> Result<Involved, Refusal> {
        let mut involved = Involved::new();
        for branch in self.record(&key_of(xid)).await?.unwrap_or_default().branches {
            let found = caches.find(&branch.cache).await.map_err(|error| Refusal::new(error.to_string()))?;
            involved.insert(branch.cache, found.map(|served| served.handle()));
        }
        Ok(involved)
    }

    /// Prepares a transaction in a cache, and commits it if it has one phase. Nothing if another request is at it.
    async fn prepare(
        &self,
        cache: &RawCache,
        involved: &Involved,
        prepare: Prepare,
        recovery: Recovery,
        version: ProtocolVersion,
    ) -> Result<Option<i32>, Refusal> {
        let Prepare { xid, is_one_phase, modifications } = prepare;
        if modifications.is_empty() {
            return Ok(Some(xa::READ_ONLY));
        }
        let default = cache.options().lifetime;
        let (mut branch, seen) =
            branch_of(cache.name(), &self.server, modifications, recovery, version, default)?;
        let key = key_of(&xid);
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
        let is_sound = self.lock_and_look(cache, &holder_of(&key), &mut branch, &seen).await;
        let is_prepared = match is_sound {
            Ok(true) => self.set_prepared(&key, &branch, is_one_phase).await,
            other => other,
        };
        if let Err(error) = &is_prepared {
            tracing::debug!(%error, "a transaction cannot be prepared");
        }
        if let (Ok(true), false) = (&is_prepared, is_one_phase) {
            return Ok(Some(xa::OK));
        }
        // Without an answer nobody knows what was written down.
        let is_decided = matches!(is_prepared, Ok(true)) || !self.take_back(&key, &branch).await?;
        if is_decided {
            return self.finish_in_time(&key, involved).await.map(Some);
        }
        // Also those that were taken after somebody else had said that it is not done.
        self.release(&key, &branch).await?;
        self.note_released(&key).await?;
        Ok(Some(xa::ROLLBACK))
    }

    /// Writes down that a branch is being prepared. Its state if it is there already.
    async fn begin(&self, key: &[u8], branch: &Branch) -> Result<Option<State>, Refusal> {
        let Limits { transactions, bytes } = self.limits;
        if self.records.local_len() >= transactions || self.records.local_bytes() > bytes {
            return Err(Refusal::new(format!(
                "there are {transactions} transactions, or {bytes} bytes of them"
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

    /// Locks a branch's keys and looks at them. Whether it can be done.
    async fn lock_and_look(
        &self,
        cache: &RawCache,
        holder: &Bytes,
        branch: &mut Branch,
        seen: &[Seen],
    ) -> Result<bool, CacheError> {
        for intent in &branch.intents {
            if !self.locks.take(cache.name(), &intent.key, holder, Lifetime::FOREVER).await? {
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

    /// Writes down that a branch is prepared, and with one phase that the transaction is done. False if that was decided
    /// otherwise meanwhile.
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

    /// Takes back what was prepared of a branch; others of the transaction are their requests'. False if it is decided that
    /// it is done.
    async fn take_back(&self, key: &[u8], branch: &Branch) -> Result<bool, CacheError> {
        let mut is_back = true;
        let rolled_back = |record: Option<&Record>| {
            is_back = true;
            let mut record = record?.clone();
            if let Some(own) = record.branch(&branch.cache) {
                match own.state {
                    State::Preparing | State::Prepared => own.state = State::RolledBack,
                    State::Committing | State::Committed => is_back = false,
                    State::RolledBack => {}
                }
            }
            Some(record)
        };
        self.records.compute(key, rolled_back).await?;
        Ok(is_back)
    }

    async fn commit(&self, xid: &Xid, involved: &Involved) -> Result<i32, Refusal> {
        let key = key_of(xid);
        let mut decided = xa::UNKNOWN;
        let decide = |record: Option<&Record>| {
            decided = xa::UNKNOWN;
            let mut record = record?.clone();
            decided = record.commit(&self.server);
            Some(record)
        };
        self.records.compute(&key[..], decide).await?;
        match decided {
            xa::OK => self.finish_in_time(&key, involved).await,
            xa::UNKNOWN => Ok(decided),
            _ => {
                self.release_over(&key).await?;
                Ok(decided)
            }
        }
    }

    async fn roll_back(&self, key: &[u8]) -> Result<i32, Refusal> {
        let mut decided = xa::UNKNOWN;
        let decide = |record: Option<&Record>| {
            decided = xa::UNKNOWN;
            let mut record = record?.clone();
            decided = record.roll_back();
            Some(record)
        };
        self.records.compute(key, decide).await?;
        if decided != xa::UNKNOWN {
            self.release_over(key).await?;
        }
        Ok(decided)
    }

    /// Ends what is decided. The answer to the client.
    async fn finish_in_time(&self, key: &[u8], involved: &Involved) -> Result<i32, Refusal> {
        for _ in 0..ATTEMPTS {
            match self.finish(key, involved).await {
                Ok(()) => return Ok(xa::OK),
                Err(error) => tracing::warn!(%error, "what a transaction has decided is not written yet"),
            }
        }
        // It is going to be done all the same.
        Ok(xa::SERVER_ERROR)
    }

    /// Writes what is decided, and frees the keys.
    async fn finish(&self, key: &[u8], involved: &Involved) -> Result<(), CacheError> {
        let Some(record) = self.record(key).await? else { return Ok(()) };
        let mut written = Vec::new();
        for branch in record.branches.iter().filter(|branch| branch.state == State::Committing) {
            // One that is not known here has come since, and is its request's.
            let Some(cache) = involved.get(&branch.cache) else { continue };
            // What was in a cache that was removed is gone with it.
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
        self.release_over(key).await
    }

    /// Frees the keys of all branches that are over.
    async fn release_over(&self, key: &[u8]) -> Result<(), CacheError> {
        let Some(record) = self.record(key).await? else { return Ok(()) };
        let is_over = |branch: &&Branch| matches!(branch.state, State::Committed | State::RolledBack);
        for branch in record.branches.iter().filter(is_over) {
            self.release(key, branch).await?;
        }
        self.note_released(key).await
    }

    async fn release(&self, key: &[u8], branch: &Branch) -> Result<(), CacheError> {
        let holder = holder_of(key);
        for intent in &branch.intents {
            self.locks.release(&branch.cache, &intent.key, &holder).await?;
        }
        Ok(())
    }

    /// What is over keeps nothing but its outcome.
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

    /// Nobody asks for it again. One that is not over stays.
    async fn forget(&self, key: &[u8]) -> Result<(), CacheError> {
        let kept = |record: Option<&Record>| {
            record.filter(|record| record.branches.iter().any(|branch| !branch.intents.is_empty())).cloned()
        };
        self.records.compute(key, kept).await.map(drop)
    }

    /// Those that wait for recovery.
    async fn in_doubt(&self, gathering: &mut Gathering) -> Result<Vec<Xid>, Refusal> {
        let (mut walk, mut keys) = (self.records.keys(), Vec::new());
        while let Some(key) = walk.next().await.transpose()? {
            if let Some(entry) = self.records.get_with_metadata(&key[..]).await?
                && entry.value.is_in_doubt(entry.age)
            {
                // It is here, and then it is copied to the others.
                gathering.add(size_of::<Xid>() + 2 * key.len()).await?;
                keys.extend(xid_of(&key));
            }
        }
        Ok(keys)
    }
}

/// Writes a key as it was decided, unless that is done.
async fn write_intent(cache: &RawCache, intent: &Intent) -> Result<(), CacheError> {
    if intent.had.is_none() && intent.value.is_none() {
        return Ok(());
    }
    let key = Bytes::copy_from_slice(&intent.key);
    let write = |condition| Write { condition, change: intent.change(), wants_previous: false };
    let written = cache.write(key.clone(), write(intent.condition())).await?;
    // What it had may have come to its end meanwhile.
    if !written.is_done && !written.was_present && intent.value.is_some() {
        cache.write(key, write(Condition::Absent)).await?;
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests;
