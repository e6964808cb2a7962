//! The steps of clients' transactions, whose branches arrive by separate requests: prepare and commit of one cache each.

use bytes::Bytes;
use consort_grid::Lifetime;

use super::id::{Id, holder};
use super::limits::LOCK_TIME_MAX;
use super::protocol::{Claim, InvolvedCaches, Protocol, Update};
use super::record::{Branch, Decision, Record, Scope, State};
use super::storage::{Space, Storage};
use crate::error::CacheError;

/// Then a live member leaves a decided transaction to a later attempt.
const ATTEMPTS: usize = 3;

/// The state of a key that a transaction has read before it changes the key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seen {
    /// Nothing: the key is changed whatever it has.
    NotRead,
    /// The key was absent.
    Absent,
    /// The entry had this version.
    Version(u64),
}

impl Seen {
    pub(crate) fn holds(self, had: Option<u64>) -> bool {
        match self {
            Self::NotRead => true,
            Self::Absent => had.is_none(),
            Self::Version(version) => had == Some(version),
        }
    }
}

/// The state of a branch after a request to prepare it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Prepared {
    /// Another request prepares it.
    InProgress,
    /// It can be committed, or is committed if that was asked for.
    Done,
    /// Its commit is decided. Its writes will be made later, and its keys are locked until then.
    Late,
    /// It is rolled back.
    RolledBack,
    /// There are as many transactions as there may be. Nothing was changed.
    NoRoom {
        /// The maximum number.
        transactions: u64,
        /// The maximum bytes of all of them.
        bytes: u64,
    },
}

impl<S: Storage> Protocol<S> {
    /// `seen` is in the order of the branch's keys. With one phase it also commits.
    pub(crate) async fn prepare(
        &self,
        id: &Id,
        mut branch: Branch,
        seen: &[Seen],
        is_one_phase: bool,
        involved: &InvolvedCaches,
    ) -> Result<Prepared, CacheError> {
        if !self.has_room(id.scope) {
            let (transactions, bytes) = (self.limits.transactions, self.limits.bytes);
            return Ok(Prepared::NoRoom { transactions, bytes });
        }
        if let Some(state) = self.begin_branch(id, &branch).await? {
            return Ok(match state {
                State::Preparing => Prepared::InProgress,
                State::Prepared | State::Committing | State::Committed => Prepared::Done,
                State::RolledBack => Prepared::RolledBack,
            });
        }
        let claim = self.new_claim();
        let is_sound = self.lock_and_validate(&holder(id), &mut branch, seen).await;
        let is_prepared = match is_sound {
            Ok(true) => self.set_prepared(id, &branch, is_one_phase.then_some(claim)).await,
            other => other,
        };
        if let Err(error) = &is_prepared {
            tracing::debug!(%error, "cannot prepare a transaction");
        }
        if let (Ok(true), false) = (&is_prepared, is_one_phase) {
            return Ok(Prepared::Done);
        }
        // After an error it is unknown whether the record was written.
        let is_decided = matches!(is_prepared, Ok(true)) || !self.roll_back_branch(id, &branch).await?;
        if is_decided {
            let is_written = self.finish_with_retries(id, involved, None).await;
            return Ok(if is_written { Prepared::Done } else { Prepared::Late });
        }
        // Also locks that were taken after another member had decided the rollback.
        self.release_branch(id, &branch).await?;
        self.note_released(id).await?;
        Ok(Prepared::RolledBack)
    }

    pub(crate) async fn begin_branch(&self, id: &Id, branch: &Branch) -> Result<Option<State>, CacheError> {
        let mut known = None;
        let begun = |record: Option<Record>| {
            let mut record = record.unwrap_or_default();
            known = record.branch(&branch.cache).map(|branch| branch.state);
            if known.is_some() {
                return Update::Keep;
            }
            record.branches.push(branch.clone());
            Update::Set(record)
        };
        self.update(id, begun).await?;
        Ok(known)
    }

    pub(crate) async fn lock_and_validate(
        &self,
        holder: &Bytes,
        branch: &mut Branch,
        seen: &[Seen],
    ) -> Result<bool, CacheError> {
        for intent in &branch.intents {
            let place = (branch.scope, &branch.cache[..], &intent.key[..]);
            if !self.acquire(place, holder, Lifetime::FOREVER, LOCK_TIME_MAX).await? {
                return Ok(false);
            }
        }
        for (intent, seen) in branch.intents.iter_mut().zip(seen) {
            let key = Bytes::copy_from_slice(&intent.key);
            let entry = self.storage.read(Space::Cache(&branch.cache), &key).await?;
            intent.had = entry.map(|entry| entry.version.0);
            if !seen.holds(intent.had) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Committed with one phase. False if another decision came first.
    pub(crate) async fn set_prepared(
        &self,
        id: &Id,
        branch: &Branch,
        one_phase: Option<Claim>,
    ) -> Result<bool, CacheError> {
        let mut is_prepared = false;
        let prepared = |record: Option<Record>| {
            is_prepared = false;
            let Some(mut record) = record else { return Update::Keep };
            if let Some(own) = record.branch(&branch.cache)
                && own.state == State::Preparing
                && own.server == branch.server
            {
                *own = Branch { state: State::Prepared, ..branch.clone() };
                is_prepared = one_phase.is_none_or(|claim| {
                    record.commit(self.storage.member(), claim.token) == Decision::Committed
                });
            }
            Update::Set(record)
        };
        self.update(id, prepared).await?;
        Ok(is_prepared)
    }

    /// Other branches have their own requests. False if the commit is decided.
    pub(crate) async fn roll_back_branch(&self, id: &Id, branch: &Branch) -> Result<bool, CacheError> {
        let mut is_rolled_back = true;
        let rolled_back = |record: Option<Record>| {
            is_rolled_back = true;
            let Some(mut record) = record else { return Update::Keep };
            if let Some(own) = record.branch(&branch.cache) {
                match own.state {
                    State::Preparing | State::Prepared => own.state = State::RolledBack,
                    State::Committing | State::Committed => is_rolled_back = false,
                    State::RolledBack => {}
                }
            }
            Update::Set(record)
        };
        self.update(id, rolled_back).await?;
        Ok(is_rolled_back)
    }

    /// Also returns whether all decided writes are made.
    pub(crate) async fn commit(
        &self,
        id: &Id,
        involved: &InvolvedCaches,
    ) -> Result<(Decision, bool), CacheError> {
        let mut decided = Decision::Unknown;
        let claim = self.new_claim();
        let mut has_claim = false;
        let decide = |record: Option<Record>| {
            decided = Decision::Unknown;
            let Some(mut record) = record else { return Update::Keep };
            decided = record.commit(self.storage.member(), claim.token);
            has_claim = record.claim == claim.token;
            Update::Set(record)
        };
        self.update(id, decide).await?;
        // A repeated request takes over the writes of the server that was lost.
        let claim = has_claim.then_some(claim);
        Ok(match decided {
            Decision::Committed => (decided, self.finish_with_retries(id, involved, claim).await),
            Decision::Unknown => (decided, true),
            Decision::RolledBack | Decision::Mixed => {
                self.release_completed(id).await?;
                (decided, true)
            }
        })
    }

    /// False if the writes will be made later: the decision stands.
    async fn finish_with_retries(&self, id: &Id, involved: &InvolvedCaches, claim: Option<Claim>) -> bool {
        let mut claim = claim;
        for _ in 0..ATTEMPTS {
            match self.finish(id, involved, &mut claim).await {
                Ok(()) => return true,
                Err(error) => {
                    tracing::warn!(%error, "cannot complete the writes of a decided transaction; trying again");
                    if super::storage::is_uncertain(&error) {
                        break;
                    }
                }
            }
        }
        false
    }

    /// A record that is not completed stays.
    pub(crate) async fn forget(&self, id: &Id) -> Result<(), CacheError> {
        let kept = |record: Option<Record>| match record {
            Some(record) if record.branches.iter().all(|branch| branch.intents.is_empty()) => Update::Remove,
            _ => Update::Keep,
        };
        self.update(id, kept).await
    }
}

/// The branch of a request.
pub struct NewBranch {
    /// The cache.
    pub cache: String,
    /// Whether it waits for its client's recovery.
    pub is_recoverable: bool,
    /// The time after which it is rolled back if it is not decided.
    pub timeout: std::time::Duration,
    /// The changes in the order of their keys.
    pub intents: Vec<super::record::Intent>,
    /// The states of the keys that the client has read, in the same order.
    pub seen: Vec<Seen>,
}

impl NewBranch {
    pub(crate) fn begin(self, scope: Scope, member: &str) -> (Branch, Vec<Seen>) {
        let Self { cache, is_recoverable, timeout, intents, seen } = self;
        let (state, server) = (State::Preparing, member.to_owned());
        (Branch { cache, scope, state, server, is_recoverable, timeout, intents }, seen)
    }
}
