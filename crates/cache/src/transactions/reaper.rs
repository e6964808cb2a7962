//! Completion of abandoned transactions, and release of locks that no transaction needs any more.

use std::collections::BTreeSet;
use std::sync::PoisonError;
use std::time::Duration;

use bytes::Bytes;
use consort_grid::{Condition, Version};

use super::id::{Id, transaction_of};
use super::limits::{DECISION_TIME_MAX, TAKE_OVER_AFTER};
use super::protocol::{InvolvedCaches, Known, Protocol};
use super::record::{Branch, Record, Scope, State, TimeoutAction};
#[cfg(test)]
use super::simulation::Bug;
use super::storage::{Keys, Space, Storage, removal};
use crate::error::CacheError;

/// The members as the reaper sees them.
pub(crate) struct Members<'a> {
    /// The members that can complete transactions.
    pub(crate) all: &'a [String],
    /// Whether this member completes shared transactions for others.
    pub(crate) is_first: bool,
}

impl Members<'_> {
    fn contains(&self, member: &str) -> bool {
        self.all.iter().any(|one| one == member)
    }
}

impl<S: Storage> Protocol<S> {
    /// `find` says whether a cache exists; `None` if its writes cannot be made here.
    pub(crate) async fn reap<F>(
        &self,
        members: &Members<'_>,
        find: impl Fn(String) -> F + Send + Sync,
    ) -> Result<(), CacheError>
    where
        F: Future<Output = Option<bool>> + Send,
    {
        let mut named = BTreeSet::new();
        for scope in [Scope::Local, Scope::Shared] {
            let mut keys = self.storage.keys(Space::Records(scope));
            while let Some(key) = keys.next().await.transpose()? {
                let id = Id { scope, key };
                let Some(known) = self.known(&id).await? else { continue };
                named.extend(known.record.branches.iter().map(|branch| branch.server.clone()));
                if scope == Scope::Local
                    || self.is_responsible(members, &known.record)
                    || self.has_local_part(&known.record)
                {
                    self.act(&id, known, members, &find).await?;
                }
            }
        }
        self.forget_lost(members, &named);
        self.release_orphans(Scope::Local).await?;
        if members.is_first { self.release_orphans(Scope::Shared).await } else { Ok(()) }
    }

    /// The time since this member noticed that another one is lost; `None` for a member. The first call notices.
    fn missing_for(&self, members: &Members<'_>, member: &str) -> Option<Duration> {
        if members.contains(member) {
            return None;
        }
        #[cfg(test)]
        if self.has_bug(Bug::TakenOverAtOnce) {
            return Some(Duration::MAX);
        }
        let now = self.storage.now();
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        Some(now.saturating_sub(*lost.entry(member.to_owned()).or_insert(now)))
    }

    /// Members that have returned, or that no record names any more.
    fn forget_lost(&self, members: &Members<'_>, named: &BTreeSet<String>) {
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        lost.retain(|member, _| named.contains(member) && !members.contains(member));
    }

    /// The first member that has all caches of a transaction completes it.
    fn is_responsible(&self, members: &Members<'_>, record: &Record) -> bool {
        let shared = record.branches.iter().filter(|branch| branch.scope == Scope::Shared);
        let owners: Vec<_> = shared.filter_map(|branch| self.storage.members_of(&branch.cache)).collect();
        let mut able =
            members.all.iter().filter(|member| owners.iter().all(|owners| owners.contains(member)));
        able.next().is_some_and(|first| first == self.storage.member())
    }

    /// A local cache's part can be completed by its member only.
    fn has_local_part(&self, record: &Record) -> bool {
        let own = self.storage.member();
        record.branches.iter().any(|branch| branch.scope == Scope::Local && branch.server == own)
    }

    async fn act<F>(
        &self,
        id: &Id,
        known: Known,
        members: &Members<'_>,
        find: impl Fn(String) -> F,
    ) -> Result<(), CacheError>
    where
        F: Future<Output = Option<bool>> + Send,
    {
        let Known { record, version, age } = known;
        let mut action = record.timeout_action(age, |member| self.missing_for(members, member));
        let is_late = |branch: &Branch| {
            branch.scope == Scope::Local
                && branch.state == State::Committing
                && branch.server == self.storage.member()
                && age > TAKE_OVER_AFTER
        };
        // Another member has decided.
        if record.branches.iter().any(is_late) {
            action = TimeoutAction::Finish;
        }
        match action {
            TimeoutAction::Nothing => {}
            TimeoutAction::Forget => {
                self.storage.write(id.space(), &id.key, removal(Condition::Version(version))).await?;
            }
            TimeoutAction::Release => self.release_completed(id).await?,
            TimeoutAction::RollBack => {
                tracing::info!("rolling back an undecided transaction after its timeout");
                self.roll_back(id).await?;
            }
            TimeoutAction::Finish => {
                tracing::info!("completing the commit of a transaction for the member that began it");
                self.take_over(id, &record, version, members, find).await?;
            }
        }
        Ok(())
    }

    /// Makes the writes that can be made here. A local cache can be written by its member only, which may only be suspended; if it
    /// does not return, its cache is lost.
    async fn take_over<F>(
        &self,
        id: &Id,
        record: &Record,
        version: Version,
        members: &Members<'_>,
        find: impl Fn(String) -> F,
    ) -> Result<(), CacheError>
    where
        F: Future<Output = Option<bool>> + Send,
    {
        let mut involved = InvolvedCaches::new();
        let mut are_lost = true;
        for branch in record.branches.iter().filter(|branch| branch.state == State::Committing) {
            let is_elsewhere = branch.scope == Scope::Local && branch.server != self.storage.member();
            are_lost &= is_elsewhere
                && self.missing_for(members, &branch.server).is_some_and(|time| time > DECISION_TIME_MAX);
            let found = if is_elsewhere { None } else { find(branch.cache.clone()).await };
            if let Some(exists) = found {
                involved.insert(branch.cache.clone(), exists);
            }
        }
        if are_lost {
            self.storage.write(id.space(), &id.key, removal(Condition::Version(version))).await?;
        } else if !involved.is_empty() {
            // A claim without writes would take them from another member.
            self.finish(id, &involved, &mut None).await?;
        }
        Ok(())
    }

    async fn is_over(&self, id: &Id) -> Result<bool, CacheError> {
        let record = self.record(id).await?;
        #[cfg(test)]
        if self.has_bug(Bug::RecordIgnored) {
            return Ok(record.is_none_or(|record| record.is_undecided()));
        }
        Ok(record.is_none())
    }

    /// A transaction's record is there before its first lock. It is removed after the last one is released, or to roll the
    /// transaction back. So a lock without a record changes nothing any more.
    async fn release_orphans(&self, scope: Scope) -> Result<(), CacheError> {
        let mut locks = self.storage.keys(Space::Locks(scope));
        while let Some(lock) = locks.next().await.transpose()? {
            let Some(held) = self.storage.read(Space::Locks(scope), &lock).await? else { continue };
            let holder: Bytes = held.value;
            #[cfg(test)]
            if self.has_bug(Bug::OrphansKept) {
                continue;
            }
            if let Some(id) = transaction_of(&holder)
                && self.is_over(&id).await?
            {
                self.release_lock(scope, &lock, &holder).await?;
            }
        }
        Ok(())
    }
}
