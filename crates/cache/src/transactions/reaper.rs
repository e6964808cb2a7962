//! Completion of abandoned transactions, and release of locks that no transaction needs any more.

use bytes::Bytes;
use consort_grid::Condition;

use super::locks::transaction_of;
use super::protocol::{Id, InvolvedCaches, Known, Protocol};
use super::record::{Branch, Record, Scope, State, TimeoutAction};
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
        for scope in [Scope::Local, Scope::Shared] {
            let mut keys = self.storage.keys(Space::Records(scope));
            while let Some(key) = keys.next().await.transpose()? {
                let id = Id { scope, key };
                let Some(known) = self.known(&id).await? else { continue };
                if scope == Scope::Local || members.is_first || self.has_local_part(&known.record) {
                    self.act(&id, known, members, &find).await?;
                }
            }
        }
        self.release_orphans(Scope::Local).await?;
        if members.is_first { self.release_orphans(Scope::Shared).await } else { Ok(()) }
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
        let mut action = record.timeout_action(age, |member| members.contains(member));
        let is_late = |branch: &Branch| {
            branch.scope == Scope::Local
                && branch.state == State::Committing
                && branch.server == self.storage.member()
                && age > super::limits::TAKE_OVER_AFTER
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
                let mut involved = InvolvedCaches::new();
                for branch in record.branches {
                    let found = match branch.scope {
                        // The cache was lost with its member.
                        Scope::Local if !members.contains(&branch.server) => Some(false),
                        Scope::Local if branch.server != self.storage.member() => None,
                        _ => find(branch.cache.clone()).await,
                    };
                    if let Some(exists) = found {
                        involved.insert(branch.cache, exists);
                    }
                }
                self.finish(id, &involved).await?;
            }
        }
        Ok(())
    }

    /// A transaction's record is there before its first lock. It is removed after the last one is released, or to roll the
    /// transaction back. So a lock without a record changes nothing any more.
    async fn release_orphans(&self, scope: Scope) -> Result<(), CacheError> {
        let mut locks = self.storage.keys(Space::Locks(scope));
        while let Some(lock) = locks.next().await.transpose()? {
            let Some(held) = self.storage.read(Space::Locks(scope), &lock).await? else { continue };
            let holder: Bytes = held.value;
            if let Some(id) = transaction_of(&holder)
                && self.record(&id).await?.is_none()
            {
                self.release_lock(scope, &lock, &holder).await?;
            }
        }
        Ok(())
    }
}
