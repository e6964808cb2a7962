//! The records of transactions: how they begin, are decided, completed and removed.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use bytes::Bytes;
use consort_encoding::{Contention, Decode, Encode, Postcard, optimistic_update};
use consort_grid::{Condition, Lifetime, Version};

use super::id::{Id, holder};
use super::limits::{CLAIM_TIME, TRANSACTIONS_BYTES_MAX, TRANSACTIONS_MAX};
use super::record::{Branch, Decision, Intent, Record, Scope, State};
#[cfg(test)]
use super::simulation::Bug;
use super::storage::{Space, Storage, put, removal};
use crate::error::CacheError;

/// The caches of a transaction that can be written here, and whether they exist. Writes to a removed cache are dropped.
pub type InvolvedCaches = BTreeMap<String, bool>;

/// The right to make the writes of a decided transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Claim {
    pub(crate) token: u64,
    since: Duration,
}

impl Claim {
    fn is_valid(&self, storage: &impl Storage) -> bool {
        storage.now() < self.since + CLAIM_TIME
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) transactions: u64,
    pub(crate) bytes: u64,
}

/// The change of a record.
pub(crate) enum Update {
    Keep,
    Set(Record),
    Remove,
}

/// A record with its version and the time since its last change.
pub(crate) struct Known {
    pub(crate) record: Record,
    pub(crate) version: Version,
    pub(crate) age: Duration,
}

pub(crate) struct Protocol<S> {
    pub(crate) storage: S,
    pub(crate) limits: Limits,
    /// Since when members in records are known to be lost.
    pub(super) lost: Mutex<BTreeMap<String, Duration>>,
    #[cfg(test)]
    pub(crate) bug: Option<Bug>,
}

impl<S: Storage> Protocol<S> {
    pub(crate) const fn new(storage: S) -> Self {
        let limits = Limits { transactions: TRANSACTIONS_MAX, bytes: TRANSACTIONS_BYTES_MAX };
        Self {
            storage,
            limits,
            lost: Mutex::new(BTreeMap::new()),
            #[cfg(test)]
            bug: None,
        }
    }

    #[cfg(test)]
    pub(super) fn has_bug(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    pub(crate) async fn known(&self, id: &Id) -> Result<Option<Known>, CacheError> {
        let Some(stored) = self.storage.read(id.space(), &id.key).await? else { return Ok(None) };
        let record = Postcard.decode(stored.value)?;
        Ok(Some(Known { record, version: stored.version, age: stored.age }))
    }

    pub(crate) async fn record(&self, id: &Id) -> Result<Option<Record>, CacheError> {
        Ok(self.known(id).await?.map(|known| known.record))
    }

    /// Changes a record unless it has changed since it was read; else calls `change` again.
    pub(crate) async fn update(
        &self,
        id: &Id,
        mut change: impl FnMut(Option<Record>) -> Update + Send,
    ) -> Result<(), CacheError> {
        for _ in 0..optimistic_update::ATTEMPTS {
            let (record, condition) = match self.known(id).await? {
                Some(Known { record, version, .. }) => (Some(record), Condition::Version(version)),
                None => (None, Condition::Absent),
            };
            let write = match change(record) {
                Update::Keep => return Ok(()),
                Update::Remove => removal(condition),
                Update::Set(record) => {
                    put(condition, Postcard.encode(&record)?.into_bytes(), Lifetime::FOREVER)
                }
            };
            if self.storage.write(id.space(), &id.key, write).await?.is_done {
                return Ok(());
            }
        }
        Err(Contention { attempts: optimistic_update::ATTEMPTS }.into())
    }

    /// Whether there may be another transaction.
    pub(crate) fn has_room(&self, scope: Scope) -> bool {
        let (transactions, bytes) = self.storage.usage(scope);
        transactions < self.limits.transactions && bytes <= self.limits.bytes
    }

    /// Whether the lock and the entries of a branch can be reached here.
    fn is_reachable(&self, branch: &Branch) -> bool {
        branch.scope == Scope::Shared || branch.server == self.storage.member()
    }

    /// A claim from now on, to be written into the record.
    pub(crate) fn new_claim(&self) -> Claim {
        Claim { token: self.storage.unique() as u64, since: self.storage.now() }
    }

    /// Renews this claim, or replaces any. Returns the record; `None` if it has another claim or there is nothing to write. Each
    /// renewal writes the record, so that it fails if another member has replaced the claim meanwhile.
    async fn claim(&self, id: &Id, known: Option<Claim>) -> Result<Option<(Record, Claim)>, CacheError> {
        let mut claim = self.new_claim();
        if let Some(known) = known {
            claim.token = known.token;
        }
        let mut claimed = None;
        let take = |record: Option<Record>| {
            claimed = None;
            let Some(mut record) = record else { return Update::Keep };
            let is_due = record.branches.iter().any(|branch| branch.state == State::Committing);
            if !is_due || known.is_some_and(|known| known.token != record.claim) {
                return Update::Keep;
            }
            record.claim = claim.token;
            for branch in record.branches.iter_mut().filter(|branch| branch.scope == Scope::Shared) {
                self.storage.member().clone_into(&mut branch.server);
            }
            claimed = Some(record.clone());
            Update::Set(record)
        };
        self.update(id, take).await?;
        Ok(claimed.map(|record| (record, claim)))
    }

    /// Makes the decided writes of caches that can be written here. The claim is that of the decision; without one, it takes over.
    pub(crate) async fn finish(
        &self,
        id: &Id,
        involved: &InvolvedCaches,
        known: &mut Option<Claim>,
    ) -> Result<(), CacheError> {
        let (record, claim) = match *known {
            Some(claim) if claim.is_valid(&self.storage) => match self.record(id).await? {
                Some(record) if record.claim == claim.token => (record, claim),
                _ => return Ok(()),
            },
            known => match self.claim(id, known).await? {
                Some(claimed) => claimed,
                None if known.is_some() => return Ok(()),
                None => return self.release_completed(id).await,
            },
        };
        let (claim, mut written) = (known.insert(claim), Vec::new());
        for branch in record.branches.iter().filter(|branch| branch.state == State::Committing) {
            // A branch that is unknown here was added since, and belongs to its own request.
            let Some(exists) = involved.get(&branch.cache) else { continue };
            if *exists {
                for intent in &branch.intents {
                    if !self.write_intent(id, claim, &branch.cache, intent).await? {
                        return Ok(());
                    }
                }
            }
            written.push(&branch.cache);
        }
        #[cfg(test)]
        if self.has_bug(Bug::UnlockedBeforeMark) {
            for branch in &record.branches {
                self.release_branch(id, branch).await?;
            }
        }
        let done = |now: Option<Record>| {
            let Some(mut now) = now else { return Update::Keep };
            for cache in &written {
                if let Some(own) = now.branch(cache) {
                    own.state = State::Committed;
                }
            }
            Update::Set(now)
        };
        if !written.is_empty() {
            self.update(id, done).await?;
        }
        self.release_completed(id).await
    }

    /// Writes a key as decided, unless the write is made already. False if another member makes the writes.
    pub(crate) async fn write_intent(
        &self,
        id: &Id,
        claim: &mut Claim,
        cache: &str,
        intent: &Intent,
    ) -> Result<bool, CacheError> {
        if intent.had.is_none() && intent.value.is_none() {
            return Ok(true);
        }
        if !self.keep(id, claim).await? {
            return Ok(false);
        }
        let (space, key) = (Space::Cache(cache), Bytes::copy_from_slice(&intent.key));
        let write =
            |condition| consort_grid::Write { condition, change: intent.change(), wants_previous: false };
        let written = self.storage.write(space, &key, write(intent.condition())).await?;
        // The key's previous entry may have expired meanwhile.
        if !written.is_done && !written.was_present && intent.value.is_some() {
            if !self.keep(id, claim).await? {
                return Ok(false);
            }
            self.storage.write(space, &key, write(Condition::Absent)).await?;
        }
        Ok(true)
    }

    /// Renews the claim in time for another write. A key that was absent has no version that a late write would miss.
    async fn keep(&self, id: &Id, claim: &mut Claim) -> Result<bool, CacheError> {
        #[cfg(test)]
        if self.has_bug(Bug::ClaimKept) {
            return Ok(true);
        }
        while !claim.is_valid(&self.storage) {
            let Some((_, renewed)) = self.claim(id, Some(*claim)).await? else { return Ok(false) };
            *claim = renewed;
        }
        Ok(true)
    }

    /// Unlocks the keys of completed branches. Then a record of a member's program is removed, and that of a client remembers
    /// that its keys are unlocked.
    pub(crate) async fn release_completed(&self, id: &Id) -> Result<(), CacheError> {
        let Some(record) = self.record(id).await? else { return Ok(()) };
        let is_over = |branch: &&Branch| matches!(branch.state, State::Committed | State::RolledBack);
        for branch in record.branches.iter().filter(is_over).filter(|branch| self.is_reachable(branch)) {
            self.release_branch(id, branch).await?;
        }
        self.note_released(id).await
    }

    pub(crate) async fn release_branch(&self, id: &Id, branch: &Branch) -> Result<(), CacheError> {
        let holder = holder(id);
        for intent in &branch.intents {
            self.release((branch.scope, &branch.cache, &intent.key), &holder).await?;
        }
        Ok(())
    }

    pub(crate) async fn note_released(&self, id: &Id) -> Result<(), CacheError> {
        let released = |record: Option<Record>| {
            let Some(mut record) = record else { return Update::Keep };
            if record.opened.is_some() && record.is_completed() {
                return Update::Remove;
            }
            let is_over = |branch: &&mut Branch| {
                matches!(branch.state, State::Committed | State::RolledBack) && self.is_reachable(branch)
            };
            let mut is_changed = false;
            for branch in record.branches.iter_mut().filter(is_over) {
                is_changed |= !std::mem::take(&mut branch.intents).is_empty();
            }
            // A record's age counts from its last change.
            if is_changed { Update::Set(record) } else { Update::Keep }
        };
        self.update(id, released).await
    }

    /// Decides the rollback where still possible, and unlocks the keys.
    pub(crate) async fn roll_back(&self, id: &Id) -> Result<Decision, CacheError> {
        let mut decided = Decision::Unknown;
        let decide = |record: Option<Record>| {
            decided = Decision::Unknown;
            let Some(mut record) = record else { return Update::Keep };
            if record.is_undecided() {
                // Without its record it cannot be committed any more.
                decided = Decision::RolledBack;
                return Update::Remove;
            }
            decided = record.roll_back();
            Update::Set(record)
        };
        self.update(id, decide).await?;
        if decided != Decision::Unknown {
            self.release_completed(id).await?;
        }
        Ok(decided)
    }
}
