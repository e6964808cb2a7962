//! A transaction of a member's program, on encoded keys and values.
//!
//! Reads are kept with the versions of their entries, writes are kept until the commit. The commit locks the written keys, and the
//! keys that were absent when they were read, in their order. At this moment, the transaction takes place: then all keys that it
//! has read must have the versions that it has read, and must not be locked by others. A later transaction of the same keys finds
//! the locks or the new versions. The lock of an absent key is needed because an absent key has no version: it could have been put
//! and removed since.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use consort_encoding::{Encode, Postcard};
use consort_grid::{Change, Condition, Lifetime};

use super::branches::Seen;
use super::error::TransactionError;
use super::id::{Id, holder};
use super::limits::{DECISION_TIME_MAX, PREPARE_TIME_MAX, TRANSACTION_BYTES_MAX, TRANSACTION_KEYS_MAX};
use super::options::{Locking, TransactionOptions};
use super::protocol::{Claim, InvolvedCaches, Protocol, Update};
use super::record::{Branch, Intent, Record, Scope, State, Value};
#[cfg(test)]
use super::simulation::Bug;
use super::storage::{Space, Storage, is_uncertain, put};

/// Attempts to learn the fate of a decision whose write has an unknown result.
const ATTEMPTS: u32 = 4;

/// The pause between them.
const RESOLVE_PAUSE: Duration = Duration::from_millis(100);

#[derive(Default)]
struct Touched {
    seen: Option<Seen>,
    /// The value that was read.
    value: Option<Bytes>,
    change: Option<Change>,
    /// This transaction has the lock, or has tried to get it.
    is_locked: bool,
    /// The version at the validation.
    had: Option<u64>,
}

impl Touched {
    const fn needs_lock(&self) -> bool {
        self.change.is_some() || matches!(self.seen, Some(Seen::Absent))
    }

    fn current(&self) -> Option<Option<Bytes>> {
        match &self.change {
            Some(Change::Put { value, .. }) => Some(Some(value.clone())),
            Some(_) => Some(None),
            None => self.seen.map(|_| self.value.clone()),
        }
    }
}

/// A cache and a key.
type Place = (Arc<str>, Bytes);

pub(crate) struct Session<S> {
    pub(crate) protocol: Arc<Protocol<S>>,
    options: TransactionOptions,
    id: Option<Id>,
    touched: BTreeMap<Place, Touched>,
    bytes: usize,
    is_ended: bool,
}

/// The writes that remain to be made after a decision.
pub(crate) struct Unfinished {
    pub(super) id: Id,
    pub(super) involved: InvolvedCaches,
    pub(super) claim: Option<Claim>,
}

impl<S: Storage> Session<S> {
    pub(crate) const fn new(protocol: Arc<Protocol<S>>, options: TransactionOptions) -> Self {
        Self { protocol, options, id: None, touched: BTreeMap::new(), bytes: 0, is_ended: false }
    }

    pub(crate) const fn set_options(&mut self, options: TransactionOptions) {
        self.options = options;
    }

    /// Whether other members may know it.
    pub(crate) const fn has_begun(&self) -> bool {
        self.id.is_some() && !self.is_ended
    }

    fn scope_of(&self, cache: &str) -> Result<Scope, TransactionError> {
        self.protocol.storage.scope_of(cache).ok_or(TransactionError::Cache(crate::CacheError::Closed))
    }

    fn touch(&mut self, place: &Place) -> Result<&mut Touched, TransactionError> {
        if self.is_ended {
            return Err(TransactionError::Ended);
        }
        if !self.touched.contains_key(place) {
            if self.touched.len() >= TRANSACTION_KEYS_MAX {
                return Err(TransactionError::TooLarge);
            }
            self.add_bytes(place.1.len())?;
        }
        Ok(self.touched.entry(place.clone()).or_default())
    }

    fn add_bytes(&mut self, bytes: usize) -> Result<(), TransactionError> {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes > TRANSACTION_BYTES_MAX { Err(TransactionError::TooLarge) } else { Ok(()) }
    }

    /// Ends the transaction after an error.
    async fn ending<T>(&mut self, result: Result<T, TransactionError>) -> Result<T, TransactionError> {
        if let Err(error) = &result {
            match error {
                TransactionError::Ended => {}
                // The locks belong to the writes that may have been decided.
                TransactionError::Unknown => self.is_ended = true,
                _ => self.roll_back().await,
            }
        }
        result
    }

    pub(crate) async fn get(&mut self, place: &Place) -> Result<Option<Bytes>, TransactionError> {
        let read = self.try_get(place).await;
        self.ending(read).await
    }

    async fn try_get(&mut self, place: &Place) -> Result<Option<Bytes>, TransactionError> {
        if let Some(current) = self.touch(place)?.current() {
            return Ok(current);
        }
        let stored = self.protocol.storage.read(Space::Cache(&place.0), &place.1).await?;
        self.add_bytes(stored.as_ref().map_or(0, |stored| stored.value.len()))?;
        let touched = self.touch(place)?;
        touched.seen = Some(stored.as_ref().map_or(Seen::Absent, |stored| Seen::Version(stored.version.0)));
        touched.value = stored.map(|stored| stored.value);
        Ok(touched.value.clone())
    }

    pub(crate) async fn change(&mut self, place: &Place, change: Change) -> Result<(), TransactionError> {
        let changed = self.try_change(place, change).await;
        self.ending(changed).await
    }

    async fn try_change(&mut self, place: &Place, change: Change) -> Result<(), TransactionError> {
        self.touch(place)?;
        if let Change::Put { value, .. } = &change {
            self.add_bytes(value.len())?;
        }
        if self.options.locking == Locking::Pessimistic {
            self.try_lock(place).await?;
        }
        self.touch(place)?.change = Some(change);
        Ok(())
    }

    pub(crate) async fn lock(&mut self, place: &Place) -> Result<(), TransactionError> {
        let locked = self.try_lock(place).await;
        self.ending(locked).await
    }

    /// Locks a key now. A key that was read before must be unchanged.
    async fn try_lock(&mut self, place: &Place) -> Result<(), TransactionError> {
        if self.touch(place)?.is_locked {
            return Ok(());
        }
        let timeout = self.options.timeout.clamp(Duration::from_secs(1), DECISION_TIME_MAX);
        let scope = self.scope_of(&place.0)?;
        self.begin(scope, timeout).await?;
        self.acquire(place, scope).await?;
        if let Some(seen) = self.touch(place)?.seen {
            let stored = self.protocol.storage.read(Space::Cache(&place.0), &place.1).await?;
            if !seen.holds(stored.map(|stored| stored.version.0)) {
                return Err(TransactionError::Conflict { cache: place.0.clone() });
            }
        }
        Ok(())
    }

    async fn acquire(&mut self, place: &Place, scope: Scope) -> Result<(), TransactionError> {
        let Some(id) = &self.id else { return Err(TransactionError::Ended) };
        let (holder, wait) = (holder(id), self.options.acquire_timeout);
        // Before the attempt, so that the lock is released if its future is dropped.
        self.touch(place)?.is_locked = true;
        let to = (scope, &place.0[..], &place.1[..]);
        if self.protocol.acquire(to, &holder, Lifetime::FOREVER, wait).await? {
            return Ok(());
        }
        self.touch(place)?.is_locked = false;
        Err(TransactionError::LockTimeout { cache: place.0.clone(), after: wait })
    }

    /// Writes the record, before the first lock.
    async fn begin(&mut self, scope: Scope, timeout: Duration) -> Result<(), TransactionError> {
        if let Some(id) = &self.id {
            return match (id.scope, scope) {
                (Scope::Local, Scope::Shared) => {
                    let shared = |place: &&Place| self.scope_of(&place.0) == Ok(Scope::Shared);
                    let name = self.touched.keys().find(shared).map(|place| place.0.clone());
                    Err(TransactionError::LocalBefore(name.unwrap_or_else(|| "".into())))
                }
                _ => Ok(()),
            };
        }
        let Protocol { storage, limits, .. } = &*self.protocol;
        if !self.protocol.has_room(scope) {
            let (transactions, bytes) = (limits.transactions, limits.bytes);
            return Err(TransactionError::TooMany { transactions, bytes });
        }
        // No key of a client's transaction is like this.
        let key = [&[0, 0, 0, 0, u8::MAX][..], &storage.unique().to_be_bytes()].concat();
        let id = Id { scope, key: key.into() };
        self.id = Some(id.clone());
        let record = Record::opened(storage.member().to_owned(), timeout);
        let record = Postcard.encode(&record).map_err(crate::CacheError::from)?.into_bytes();
        let write = put(Condition::Absent, record, Lifetime::FOREVER);
        storage.write(id.space(), &id.key, write).await?;
        Ok(())
    }

    /// Commits. `None` if all writes are made; else the decision stands, and the caller must call [`Unfinished::finish`] later.
    pub(crate) async fn commit(&mut self) -> Result<Option<Unfinished>, TransactionError> {
        if self.is_ended {
            return Err(TransactionError::Ended);
        }
        let decided = self.decide().await;
        let decided = self.ending(decided).await?;
        self.is_ended = true;
        let Some((involved, claim)) = decided else { return Ok(None) };
        // Locks of keys that are only read: the validation is over.
        self.release_locks(|touched| touched.change.is_none()).await;
        let Some(id) = self.id.clone() else { return Ok(None) };
        let mut claim = Some(claim);
        match self.protocol.finish(&id, &involved, &mut claim).await {
            Ok(()) => Ok(None),
            Err(error) => {
                tracing::warn!(%error, "cannot complete the writes of a decided transaction; trying again later");
                Ok(Some(Unfinished { id, involved, claim }))
            }
        }
    }

    /// `None` if there is nothing to write.
    async fn decide(&mut self) -> Result<Option<(InvolvedCaches, Claim)>, TransactionError> {
        let has_writes = self.touched.values().any(|touched| touched.change.is_some());
        if !has_writes && self.touched.len() <= 1 {
            self.roll_back().await;
            return Ok(None);
        }
        let places: Vec<Place> = self.touched.keys().cloned().collect();
        self.lock_all(&places).await?;
        self.validate(&places).await?;
        if !has_writes {
            self.roll_back().await;
            return Ok(None);
        }
        let branches = self.branches()?;
        let involved = branches.iter().map(|branch| (branch.cache.clone(), true)).collect();
        #[cfg(test)]
        if self.protocol.has_bug(Bug::WrittenBeforeDecision) {
            for branch in &branches {
                for intent in &branch.intents {
                    let (space, key) = (Space::Cache(&branch.cache), intent.key.clone().into());
                    let (condition, change) = (intent.condition(), intent.change());
                    let write = consort_grid::Write { condition, change, wants_previous: false };
                    self.protocol.storage.write(space, &key, write).await?;
                }
            }
        }
        let claim = self.protocol.new_claim();
        self.record_decision(branches, claim).await?;
        Ok(Some((involved, claim)))
    }

    async fn lock_all(&mut self, places: &[Place]) -> Result<(), TransactionError> {
        let needs_lock = |place: &&Place| {
            let touched = &self.touched[*place];
            touched.needs_lock() && !touched.is_locked
        };
        let unlocked: Vec<&Place> = places.iter().filter(needs_lock).collect();
        let mut record_scope = Scope::Local;
        for (cache, _) in places {
            if self.scope_of(cache)? == Scope::Shared {
                record_scope = Scope::Shared;
            }
        }
        if !unlocked.is_empty() {
            self.begin(record_scope, PREPARE_TIME_MAX).await?;
        }
        for place in unlocked {
            let scope = self.scope_of(&place.0)?;
            #[cfg(test)]
            if self.protocol.has_bug(Bug::NothingLocked) {
                continue;
            }
            self.acquire(place, scope).await?;
        }
        Ok(())
    }

    async fn validate(&mut self, places: &[Place]) -> Result<(), TransactionError> {
        let holder = self.id.as_ref().map_or_else(Bytes::new, holder);
        for place in places {
            let (cache, key) = place;
            let touched = &self.touched[place];
            let is_read_only = touched.change.is_none();
            #[cfg(test)]
            if is_read_only && self.protocol.has_bug(Bug::ReadsNotValidated) {
                continue;
            }
            // The lock first: its holder writes before it releases the lock, so that then the version has changed.
            if !touched.is_locked && is_read_only {
                let lock = (self.scope_of(cache)?, &cache[..], &key[..]);
                let is_free = self.protocol.is_free(lock, &holder).await?;
                #[cfg(test)]
                let is_free = is_free || self.protocol.has_bug(Bug::LocksNotChecked);
                if !is_free {
                    return Err(TransactionError::Conflict { cache: cache.clone() });
                }
            }
            let stored = self.protocol.storage.read(Space::Cache(cache), key).await?;
            let had = stored.map(|stored| stored.version.0);
            let touched = self.touch(place)?;
            touched.had = had;
            let is_valid = touched.seen.is_none_or(|seen| seen.holds(had));
            #[cfg(test)]
            let is_valid = is_valid || self.protocol.has_bug(Bug::VersionsNotChecked);
            if !is_valid {
                return Err(TransactionError::Conflict { cache: cache.clone() });
            }
        }
        Ok(())
    }

    /// In the order of caches and keys.
    fn branches(&self) -> Result<Vec<Branch>, TransactionError> {
        let mut branches: Vec<Branch> = Vec::new();
        for ((cache, key), touched) in &self.touched {
            let value = match &touched.change {
                None => continue,
                Some(Change::Put { value, lifetime }) => {
                    let Lifetime { lifespan, max_idle } = *lifetime;
                    Some(Value { bytes: value.to_vec(), lifespan, max_idle })
                }
                Some(_) => None,
            };
            let intent = Intent { key: key.to_vec(), had: touched.had, value };
            match branches.last_mut().filter(|last| *last.cache == **cache) {
                Some(last) => last.intents.push(intent),
                None => branches.push(Branch {
                    cache: cache.to_string(),
                    scope: self.scope_of(cache)?,
                    state: State::Committing,
                    server: self.protocol.storage.member().to_owned(),
                    is_recoverable: false,
                    timeout: Duration::ZERO,
                    intents: vec![intent],
                }),
            }
        }
        Ok(branches)
    }

    /// The decision. A member that removes the record before rolls the transaction back.
    async fn record_decision(&self, branches: Vec<Branch>, claim: Claim) -> Result<(), TransactionError> {
        let Some(id) = &self.id else { return Err(TransactionError::Ended) };
        let mut is_decided = false;
        let decide = |record: Option<Record>| {
            is_decided = false;
            match record {
                Some(record) if record.is_undecided() => {
                    is_decided = true;
                    Update::Set(Record { branches: branches.clone(), claim: claim.token, ..record })
                }
                _ => Update::Keep,
            }
        };
        match self.protocol.update(id, decide).await {
            Ok(()) if is_decided => Ok(()),
            Ok(()) => Err(TransactionError::TimedOut(self.options.timeout)),
            Err(error) if is_uncertain(&error) => self.resolve(id).await,
            Err(error) => Err(error.into()),
        }
    }

    /// Learns the decision, and prevents that it is made later.
    async fn resolve(&self, id: &Id) -> Result<(), TransactionError> {
        for _ in 0..ATTEMPTS {
            let mut known = None;
            let end = |record: Option<Record>| {
                known = record.as_ref().map(|record| !record.is_undecided());
                if known == Some(false) { Update::Remove } else { Update::Keep }
            };
            match (self.protocol.update(id, end).await, known) {
                (Ok(()), Some(true)) => return Ok(()),
                (Ok(()), Some(false)) => return Err(TransactionError::TimedOut(self.options.timeout)),
                // Another member has rolled it back, or has completed it.
                (Ok(()), None) => return Err(TransactionError::Unknown),
                (Err(_), _) => self.protocol.storage.pause(RESOLVE_PAUSE).await,
            }
        }
        Err(TransactionError::Unknown)
    }

    /// If a release fails, the lock is released once the record is gone.
    async fn release_locks(&mut self, which: impl Fn(&Touched) -> bool + Send) {
        let Some(id) = &self.id else { return };
        let holder = holder(id);
        for ((cache, key), touched) in &mut self.touched {
            if touched.is_locked
                && which(touched)
                && let Some(scope) = self.protocol.storage.scope_of(cache)
            {
                touched.is_locked = false;
                if let Err(error) = self.protocol.release((scope, cache, key), &holder).await {
                    tracing::debug!(%error, "cannot unlock a key of a transaction; the lock is released later");
                }
            }
        }
    }

    /// Without its record the transaction cannot be committed. After an error the record is removed later, after its timeout.
    pub(crate) async fn roll_back(&mut self) {
        if std::mem::replace(&mut self.is_ended, true) {
            return;
        }
        if let Some(id) = self.id.clone() {
            if let Err(error) = self.protocol.roll_back(&id).await {
                tracing::debug!(%error, "cannot roll back a transaction; its timeout does it");
                return;
            }
            self.release_locks(|_| true).await;
        }
    }
}

impl Unfinished {
    pub(crate) async fn finish<S: Storage>(
        &mut self,
        protocol: &Protocol<S>,
    ) -> Result<(), crate::CacheError> {
        protocol.finish(&self.id, &self.involved, &mut self.claim).await
    }
}
