//! Caches in virtual time. Each operation takes effect at a moment that the seed chooses. Its caller may not learn the result, or
//! may be lost; then it takes effect later, within [`DELAY_MAX`], or never.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use consort_encoding::{Decode, Postcard};
use consort_grid::{Change, Condition, Lifetime, OperationError, Stored, Version, Write, Written};

use super::super::record::{Intent, Record, Scope, State};
use super::super::storage::{Keys, Space, Storage};
use crate::error::CacheError;

/// The longest time that an operation takes, also one of a lost member.
pub(super) const DELAY_MAX: Duration = Duration::from_secs(9);

/// A cache of this name is local.
pub(super) const LOCAL: &str = "local";

pub(super) struct Rng(pub(super) u64);

impl Rng {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub(super) fn is_one_in(&mut self, chance: u64) -> bool {
        self.below(chance) == 0
    }
}

#[derive(Clone, Debug)]
struct Entry {
    value: Bytes,
    version: u64,
    written: Duration,
    lifetime: Lifetime,
}

#[derive(Clone)]
enum Action {
    Read,
    Write(Write),
    Keys,
}

enum Reply {
    Read(Option<Stored>),
    Written(Written),
    Keys(Vec<Bytes>),
}

struct Operation {
    number: u64,
    member: String,
    space: String,
    key: Bytes,
    action: Action,
    /// Not before, for a slow operation.
    from: Duration,
    until: Duration,
    /// The caller does not learn the result.
    is_forgotten: bool,
}

/// A change of a key of a program's cache.
#[derive(Clone, Debug)]
pub(super) struct Applied {
    pub(super) space: String,
    pub(super) key: Bytes,
    pub(super) value: Option<Bytes>,
    /// The transaction that has removed the key.
    pub(super) by: Option<u64>,
    pub(super) at: Duration,
}

pub(super) struct World {
    pub(super) rng: Rng,
    pub(super) now: Duration,
    pub(super) view: Vec<String>,
    pub(super) log: Vec<Applied>,
    pub(super) has_faults: bool,
    spaces: BTreeMap<String, BTreeMap<Bytes, Entry>>,
    pending: Vec<Operation>,
    replies: BTreeMap<u64, Result<Reply, CacheError>>,
    timers: Vec<Duration>,
    count: u64,
}

pub(super) type SharedWorld = Arc<Mutex<World>>;

impl World {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            rng: Rng(seed),
            now: Duration::from_secs(1),
            view: Vec::new(),
            log: Vec::new(),
            has_faults: true,
            spaces: BTreeMap::new(),
            pending: Vec::new(),
            replies: BTreeMap::new(),
            timers: Vec::new(),
            count: 0,
        }
    }

    fn unique(&mut self) -> u64 {
        self.count += 1;
        self.count
    }

    pub(super) fn wake_at(&mut self, time: Duration) {
        self.timers.push(time);
    }

    /// Takes effect here and now.
    fn apply(&mut self, space: &str, key: &Bytes, action: &Action) -> Reply {
        let now = self.now;
        let version = self.unique();
        let entries = self.spaces.entry(space.to_owned()).or_default();
        let is_over = |entry: &Entry| {
            entry.lifetime.lifespan.is_some_and(|lifespan| now.saturating_sub(entry.written) >= lifespan)
        };
        if entries.get(key).is_some_and(is_over) {
            entries.remove(key);
        }
        let stored = |entry: &Entry| Stored {
            value: entry.value.clone(),
            version: Version(entry.version),
            lifetime: entry.lifetime,
            age: now.saturating_sub(entry.written),
            idle: Duration::ZERO,
        };
        let current = entries.get(key).map(stored);
        let Write { condition, change, wants_previous } = match action {
            Action::Read => return Reply::Read(current),
            Action::Keys => return Reply::Keys(entries.keys().cloned().collect()),
            Action::Write(write) => write.clone(),
        };
        let is_done = match &condition {
            Condition::Always => true,
            Condition::Absent => current.is_none(),
            Condition::Present => current.is_some(),
            Condition::Value(value) => current.as_ref().is_some_and(|current| current.value == value),
            Condition::Version(version) => {
                current.as_ref().is_some_and(|current| current.version == *version)
            }
        };
        let was_present = current.is_some();
        if is_done {
            let value = match change {
                Change::Put { value, lifetime } => {
                    let entry = Entry { value: value.clone(), version, written: now, lifetime };
                    entries.insert(key.clone(), entry);
                    Some(value)
                }
                Change::Remove | Change::Clear => {
                    entries.remove(key);
                    None
                }
            };
            if !space.starts_with(['R', 'L']) && (was_present || value.is_some()) {
                let by = if value.is_none() { self.remover(space, key, &condition) } else { None };
                self.log.push(Applied { space: space.to_owned(), key: key.clone(), value, by, at: now });
            }
        }
        Reply::Written(Written {
            is_done,
            was_present,
            version: Version(version),
            previous: current.filter(|_| wants_previous),
        })
    }

    /// The transaction whose record has decided this removal.
    fn remover(&self, space: &str, key: &Bytes, condition: &Condition) -> Option<u64> {
        let Condition::Version(Version(version)) = condition else { return None };
        let is_removal =
            |intent: &Intent| intent.key == *key && intent.had == Some(*version) && intent.value.is_none();
        let decides = |record: &Record| {
            let mut branches = record.branches.iter().filter(|branch| space.starts_with(&branch.cache));
            branches.any(|branch| branch.state == State::Committing && branch.intents.iter().any(is_removal))
        };
        let mut records =
            self.spaces.iter().filter(|(space, _)| space.starts_with('R')).flat_map(|(_, records)| records);
        let (id, _) = records.find(|(_, entry)| {
            let record: Record = Postcard.decode(entry.value.clone()).expect("a record");
            decides(&record)
        })?;
        Some(u64::from_be_bytes(id[5..13].try_into().expect("an id with the number of its transaction")))
    }

    /// One operation, or a step of time. False if nothing can happen.
    pub(super) fn step(&mut self) -> bool {
        self.now += Duration::from_micros(self.rng.below(2_000));
        let now = self.now;
        if let Some(due) = self.pending.iter().position(|operation| operation.until <= now) {
            self.execute(due);
            return true;
        }
        let ready = self.pending.iter().enumerate().filter(|(_, operation)| operation.from <= now);
        let ready: Vec<usize> = ready.map(|(place, _)| place).collect();
        if !ready.is_empty() && !self.rng.is_one_in(12) {
            let chosen = self.rng.below(ready.len() as u64) as usize;
            self.execute(ready[chosen]);
            return true;
        }
        let before = self.timers.len();
        self.timers.retain(|at| *at > now);
        if self.timers.len() < before {
            return true;
        }
        let is_later = |time: &Duration| *time > now;
        let ends = self.pending.iter().flat_map(|operation| [operation.from, operation.until]);
        let Some(next) = ends.chain(self.timers.iter().copied()).filter(is_later).min() else {
            return !self.pending.is_empty();
        };
        self.now = next.max(self.now);
        true
    }

    fn execute(&mut self, place: usize) {
        let operation = &self.pending[place];
        if self.has_faults && !operation.is_forgotten && self.rng.is_one_in(60) {
            // The caller's timeout; the operation itself goes on, or is lost.
            let error = CacheError::Operation(OperationError::TimedOut(DELAY_MAX));
            self.replies.insert(operation.number, Err(error));
            self.pending[place].is_forgotten = true;
            if self.rng.is_one_in(3) {
                self.pending.swap_remove(place);
            }
            return;
        }
        let Operation { number, space, key, action, is_forgotten, .. } = self.pending.swap_remove(place);
        let reply = self.apply(&space, &key, &action);
        if !is_forgotten {
            self.replies.insert(number, Ok(reply));
        }
    }

    /// Its local caches are lost, and its operations take effect later, or never.
    pub(super) fn crash(&mut self, member: &str) {
        let local = format!("@{member}");
        self.spaces.retain(|space, _| !space.ends_with(&local));
        let mut pending = std::mem::take(&mut self.pending);
        pending.retain_mut(|operation| {
            let is_lost = operation.member == member;
            operation.is_forgotten |= is_lost;
            !is_lost || (!operation.space.ends_with(&local) && self.rng.is_one_in(2))
        });
        self.pending = pending;
    }

    /// Locks and records that remain.
    pub(super) fn remains(&self) -> Vec<String> {
        let internal = self.spaces.iter().filter(|(space, _)| space.starts_with(['R', 'L']));
        let of = |(space, entries): (&String, &BTreeMap<Bytes, Entry>)| {
            entries.keys().map(|key| format!("{space} {key:?}")).collect::<Vec<_>>()
        };
        internal.flat_map(of).collect()
    }

    pub(super) fn values(&self, space: &str) -> Vec<(Bytes, Bytes)> {
        let entries = self.spaces.get(space).into_iter().flatten();
        entries.map(|(key, entry)| (key.clone(), entry.value.clone())).collect()
    }

    pub(super) fn put(&mut self, space: &str, key: Bytes, value: Bytes) {
        let change = Change::Put { value, lifetime: Lifetime::FOREVER };
        let write = Write { condition: Condition::Always, change, wants_previous: false };
        self.apply(space, &key, &Action::Write(write));
    }
}

pub(super) fn lock(world: &SharedWorld) -> MutexGuard<'_, World> {
    world.lock().expect("no thread has panicked")
}

/// A member's access to the world.
#[derive(Clone)]
pub(super) struct SimulatedStorage {
    pub(super) world: SharedWorld,
    pub(super) member: String,
    /// The number of a transaction, which its record's id has.
    pub(super) number: u64,
}

impl SimulatedStorage {
    pub(super) fn space(&self, space: Space<'_>) -> String {
        match space {
            Space::Records(Scope::Shared) => "R".to_owned(),
            Space::Locks(Scope::Shared) => "L".to_owned(),
            Space::Records(Scope::Local) => format!("R@{}", self.member),
            Space::Locks(Scope::Local) => format!("L@{}", self.member),
            Space::Cache(LOCAL) => format!("{LOCAL}@{}", self.member),
            Space::Cache(name) => name.to_owned(),
        }
    }

    async fn execute(&self, space: Space<'_>, key: Bytes, action: Action) -> Result<Reply, CacheError> {
        let number = {
            let mut world = lock(&self.world);
            let (number, until) = (world.unique(), world.now + DELAY_MAX);
            let slow = if world.rng.is_one_in(8) { world.rng.below(400) } else { 0 };
            let from = world.now + Duration::from_millis(slow);
            let (member, space, is_forgotten) = (self.member.clone(), self.space(space), false);
            world.pending.push(Operation { number, member, space, key, action, from, until, is_forgotten });
            number
        };
        std::future::poll_fn(|_| match lock(&self.world).replies.remove(&number) {
            Some(reply) => Poll::Ready(reply),
            None => Poll::Pending,
        })
        .await
    }
}

pub(super) struct SimulatedKeys {
    storage: SimulatedStorage,
    space: Space<'static>,
    keys: Option<std::vec::IntoIter<Bytes>>,
}

impl Keys for SimulatedKeys {
    async fn next(&mut self) -> Option<Result<Bytes, CacheError>> {
        if self.keys.is_none() {
            match self.storage.execute(self.space, Bytes::new(), Action::Keys).await {
                Ok(Reply::Keys(keys)) => self.keys = Some(keys.into_iter()),
                Ok(_) => return None,
                Err(error) => return Some(Err(error)),
            }
        }
        self.keys.as_mut()?.next().map(Ok)
    }
}

impl Storage for SimulatedStorage {
    type Keys = SimulatedKeys;

    async fn read(&self, space: Space<'_>, key: &Bytes) -> Result<Option<Stored>, CacheError> {
        match self.execute(space, key.clone(), Action::Read).await? {
            Reply::Read(stored) => Ok(stored),
            _ => Err(CacheError::Closed),
        }
    }

    async fn write(&self, space: Space<'_>, key: &Bytes, write: Write) -> Result<Written, CacheError> {
        match self.execute(space, key.clone(), Action::Write(write)).await? {
            Reply::Written(written) => Ok(written),
            _ => Err(CacheError::Closed),
        }
    }

    fn keys(&self, space: Space<'_>) -> SimulatedKeys {
        let space = match space {
            Space::Records(scope) => Space::Records(scope),
            Space::Locks(scope) => Space::Locks(scope),
            Space::Cache(_) => unreachable!("the protocol iterates over records and locks"),
        };
        SimulatedKeys { storage: self.clone(), space, keys: None }
    }

    async fn pause(&self, time: Duration) {
        let until = {
            let mut world = lock(&self.world);
            let until = world.now + time;
            world.timers.push(until);
            until
        };
        std::future::poll_fn(
            |_| if lock(&self.world).now >= until { Poll::Ready(()) } else { Poll::Pending },
        )
        .await;
    }

    fn now(&self) -> Duration {
        lock(&self.world).now
    }

    fn member(&self) -> &str {
        &self.member
    }

    fn unique(&self) -> u128 {
        u128::from(self.number) << 64 | u128::from(lock(&self.world).unique())
    }

    fn scope_of(&self, cache: &str) -> Option<Scope> {
        Some(if cache == LOCAL { Scope::Local } else { Scope::Shared })
    }

    fn members_of(&self, _: &str) -> Option<Vec<String>> {
        Some(lock(&self.world).view.clone())
    }

    fn usage(&self, _: Scope) -> (u64, u64) {
        (0, 0)
    }
}
