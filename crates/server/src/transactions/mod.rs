//! Transactions of clients (facts section 2.13).
//!
//! A client sends its writes with the versions that it has read. The protocol is that of [`consort_cache::transactions`], which
//! transactions of members use, too: the server of a request writes a record of the transaction, locks its keys in their order,
//! checks that the versions are unchanged, and notes them. From then on any server can complete the transaction.
//!
//! Guarantees: no lost update of keys that the transaction reads and writes, and atomicity; a client reads committed values. Keys
//! that a client only reads are not validated, because clients do not send them. A client that reads several keys during a commit
//! may see some before and others after it.
//!
//! If a server crashes during prepare, its record is rolled back. If it crashes between prepare and commit, the next server with
//! the client's request commits or rolls back. Another server makes a crashed server's decided writes after a while; until then
//! the keys stay locked.

mod xid;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use consort_cache::transactions::limits::{DECISION_TIME_MAX, TRANSACTION_BYTES_MAX};
use consort_cache::transactions::{
    Decision, Intent, InvolvedCaches, NewBranch, Prepared, Seen as SeenVersion, Transactions as Recorded,
    Value,
};
use consort_cache::{CacheError, CacheManager, Lifetime, OpenError};
use consort_hotrod::Expiration;
use consort_hotrod::ops::transaction::{Modification, Prepare, Recovery, Seen, Xid, xa};

use crate::memory::responses::ResponseReservation;
use crate::metrics::cache_stats::Count;
use crate::reply::Refusal;
pub(crate) use xid::{record_key, xid_from_key};

pub(crate) const CACHES: [&str; 2] = Recorded::CACHES;

/// A client repeats its request while its transaction is being prepared.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(50);

pub(crate) struct Transactions {
    recorded: Arc<Recorded>,
    pub(crate) counts: Counts,
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
    /// Opens a cache. Returns whether it exists.
    fn find_cache(&self, name: &str) -> impl Future<Output = Result<bool, Refusal>> + Send;
}

fn new_branch(
    cache: &str,
    modifications: Vec<Modification>,
    recovery: Recovery,
    lifetime: impl Fn(&Expiration) -> Lifetime,
) -> Result<NewBranch, Refusal> {
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
        let seen = match seen {
            Seen::NotRead => SeenVersion::NotRead,
            Seen::Absent => SeenVersion::Absent,
            Seen::Version(version) => SeenVersion::Version(version.cast_unsigned()),
        };
        if by_key.insert(key, (intent, seen)).is_some() {
            return Err(Refusal::new("a transaction cannot change a key twice"));
        }
    }
    let (intents, seen) = by_key.into_values().unzip();
    let timeout = Duration::from_millis(u64::try_from(recovery.timeout).unwrap_or(0));
    Ok(NewBranch {
        cache: cache.to_owned(),
        is_recoverable: recovery.is_recoverable,
        timeout: timeout.clamp(Duration::from_secs(1), DECISION_TIME_MAX),
        intents,
        seen,
    })
}

impl Transactions {
    pub(crate) async fn open(manager: &CacheManager) -> Result<Self, OpenError> {
        Ok(Self { recorded: manager.transactions().await?, counts: Counts::default() })
    }

    pub(crate) fn len(&self) -> u64 {
        self.recorded.len()
    }

    pub(crate) async fn involved(
        &self,
        caches: &impl FindCache,
        xid: &Xid,
    ) -> Result<InvolvedCaches, Refusal> {
        let mut involved = InvolvedCaches::new();
        for cache in self.branch_caches(xid).await? {
            let exists = caches.find_cache(&cache).await?;
            involved.insert(cache, exists);
        }
        Ok(involved)
    }

    pub(crate) async fn branch_caches(&self, xid: &Xid) -> Result<Vec<String>, CacheError> {
        self.recorded.branch_caches(&record_key(xid)).await
    }

    /// With one phase it also commits. `None` if another request executes the transaction.
    pub(crate) async fn prepare(
        &self,
        cache: &str,
        involved: InvolvedCaches,
        prepare: Prepare,
        recovery: Recovery,
        lifetime: impl Fn(&Expiration) -> Lifetime,
    ) -> Result<Option<i32>, Refusal> {
        let Prepare { xid, is_one_phase, modifications } = prepare;
        if modifications.is_empty() {
            return Ok(Some(xa::READ_ONLY));
        }
        let branch = new_branch(cache, modifications, recovery, lifetime)?;
        match self.recorded.prepare(&record_key(&xid), branch, is_one_phase, involved).await? {
            Prepared::Done => Ok(Some(xa::OK)),
            Prepared::RolledBack => Ok(Some(xa::ROLLBACK)),
            // The decision stands, and the writes will still be made.
            Prepared::Late => Ok(Some(xa::SERVER_ERROR)),
            Prepared::InProgress => {
                tokio::time::sleep(ASK_AGAIN_AFTER).await;
                Ok(None)
            }
            Prepared::NoRoom { transactions, bytes } => Err(Refusal::new(format!(
                "the limit of {transactions} transactions or {bytes} bytes is reached"
            ))),
        }
    }

    pub(crate) async fn commit(&self, xid: &Xid, involved: InvolvedCaches) -> Result<i32, Refusal> {
        Ok(match self.recorded.commit(&record_key(xid), involved).await? {
            (Decision::Committed, true) => xa::OK,
            (Decision::Committed, false) => xa::SERVER_ERROR,
            (Decision::RolledBack, _) => xa::HEURISTIC_ROLLBACK,
            (Decision::Mixed, _) => xa::HEURISTIC_MIXED,
            (Decision::Unknown, _) => xa::UNKNOWN,
        })
    }

    pub(crate) async fn roll_back(&self, xid: &Xid) -> Result<i32, Refusal> {
        Ok(match self.recorded.roll_back(&record_key(xid)).await? {
            Decision::RolledBack => xa::OK,
            Decision::Committed => xa::HEURISTIC_COMMIT,
            Decision::Mixed => xa::HEURISTIC_MIXED,
            Decision::Unknown => xa::UNKNOWN,
        })
    }

    /// A transaction that is not completed stays.
    pub(crate) async fn forget(&self, xid: &Xid) -> Result<(), CacheError> {
        self.recorded.forget(&record_key(xid)).await
    }

    pub(crate) async fn in_doubt(&self, gathering: &mut ResponseReservation) -> Result<Vec<Xid>, Refusal> {
        let (mut all, mut keys) = (self.recorded.ids(), Vec::new());
        while let Some(key) = all.next().await.transpose()? {
            if let Some(xid) = xid_from_key(&key)
                && self.recorded.is_in_doubt(&key).await?
            {
                // The id is held here, and then copied for the response.
                gathering.add(size_of::<Xid>() + 2 * key.len()).await?;
                keys.push(xid);
            }
        }
        Ok(keys)
    }

    /// Completes abandoned transactions of clients and of members.
    pub(crate) async fn reap(&self, caches: &impl FindCache) -> Result<(), CacheError> {
        self.recorded.reap(|cache| async move { caches.find_cache(&cache).await.ok() }).await
    }
}

#[cfg(test)]
pub(crate) mod tests;
