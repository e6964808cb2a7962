//! The store of a simulated member carries out requests one after the other, each after a delay, as the one
//! thread of a store does.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use consort_grid::{
    CacheId, Container, ContainerSettings, CorruptPersistedState, Lifetime, Loaded, MemoryBound, Node,
    PersistedState, Segment, StoreFailure, StoreOrder, StoreRequest, StoreSettings, Stored, Version,
};
use consort_group::{Rng, Time};
use consort_store::{Change, Part, Store, StoreError, Times};

const DELAY_MAX: Duration = Duration::from_millis(2);

/// Requests after which the store compacts its files once, as a writer does between its batches.
const MAINTAIN_EVERY: u64 = 16;

const MAINTAIN_BYTES: u64 = 64 * 1024;

/// One moment as two clocks show it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Clocks {
    /// The member's, which begins with the member.
    pub own: Time,
    /// The world's: stored times must mean the same in a later life.
    pub world: Time,
}

impl Clocks {
    /// The member's clock is the world's.
    pub fn same(now: Time) -> Self {
        Self { own: now, world: now }
    }
}

/// A store's faults, in spells in which it refuses some requests and is slow with all.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct StoreFaults {
    /// The probability that a request begins a spell.
    pub begins: f64,
    /// A spell's longest duration.
    pub spell_max: Duration,
    /// The probability that a write or load is refused in a spell. Requests to remember the cluster's state are
    /// not refused, because a member that is killed before it has kept its state loses data by right.
    pub refused: f64,
    /// The factor by which requests of a spell take longer.
    pub slowness: u32,
}

#[derive(Debug)]
struct FaultySpell {
    faults: StoreFaults,
    until: Time,
    refused: u64,
}

impl FaultySpell {
    fn next(&mut self, now: Time, request: &StoreRequest, rng: &mut Rng) -> (u32, bool) {
        let StoreFaults { begins, spell_max, refused, slowness } = self.faults;
        if now >= self.until {
            if !rng.chance(begins) {
                return (1, false);
            }
            self.until = now + rng.duration(Duration::ZERO, spell_max);
        }
        let is_refused = !matches!(request, StoreRequest::Order { .. }) && rng.chance(refused);
        self.refused += u64::from(is_refused);
        (slowness, is_refused)
    }
}

/// A member's store, and its waiting requests.
#[derive(Debug)]
pub struct SimStore {
    store: Arc<dyn Store>,
    delay_max: Duration,
    is_write_behind: bool,
    spell: Option<FaultySpell>,
    busy_until: Time,
    waiting: VecDeque<PendingRequest>,
    carried_out: u64,
    loads: u64,
}

#[derive(Debug)]
struct PendingRequest {
    cache: CacheId,
    request: StoreRequest,
    is_refused: bool,
    /// A write carries the age that its entry had at the request.
    asked: Time,
}

enum Answer {
    Stored(u64, Result<(), StoreFailure>),
    Loaded(u64, Result<Loaded, StoreFailure>),
}

/// How a member keeps its cache.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct StorageSettings {
    /// Memory's bound.
    pub bound: Option<MemoryBound>,
    /// The store has only the entries for which memory has no room.
    pub passivation: bool,
    /// Whether values, and not only keys, are loaded at the start.
    pub preload: bool,
    /// As [`ContainerSettings::is_shared`].
    pub is_shared: bool,
    /// The seed of the container's hash.
    pub hash_seed: u64,
}

impl Default for StorageSettings {
    /// Unbounded memory, a shared cache, and only keys loaded at the start.
    fn default() -> Self {
        Self { bound: None, passivation: false, preload: false, is_shared: true, hash_seed: 1 }
    }
}

/// A failure to begin with a store.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The store cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The remembered cluster state is damaged.
    #[error(transparent)]
    Note(#[from] CorruptPersistedState),
    /// The store has entries but no cluster state.
    #[error("{entries} entries of which the store does not know where they come from")]
    Foreign {
        /// The number of entries.
        entries: u64,
    },
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

fn to_entry(world: Time, segment: Segment, key: Bytes, stored: Stored) -> consort_store::Entry {
    let ago = |span| (world.0 / 1_000_000).saturating_sub(millis(span));
    let times = Times {
        created: ago(stored.age),
        used: ago(stored.idle),
        lifespan: stored.lifetime.lifespan.map(millis),
        max_idle: stored.lifetime.max_idle.map(millis),
    };
    consort_store::Entry { segment: segment.0, key, value: stored.value, version: stored.version.0, times }
}

fn stored(world: Time, entry: &consort_store::Entry) -> Stored {
    let since = |at: u64| Duration::from_millis((world.0 / 1_000_000).saturating_sub(at));
    let span = |millis: Option<u64>| millis.map(Duration::from_millis);
    Stored {
        value: entry.value.clone(),
        version: Version(entry.version),
        lifetime: Lifetime { lifespan: span(entry.times.lifespan), max_idle: span(entry.times.max_idle) },
        age: since(entry.times.created),
        idle: since(entry.times.used),
    }
}

impl SimStore {
    /// A write-through store; a request takes at most 2 ms.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            delay_max: DELAY_MAX,
            is_write_behind: false,
            spell: None,
            busy_until: Time::ZERO,
            waiting: VecDeque::new(),
            carried_out: 0,
            loads: 0,
        }
    }

    /// Sets the longest delay of a request.
    #[must_use]
    pub fn with_delay(mut self, delay_max: Duration) -> Self {
        self.delay_max = delay_max;
        self
    }

    /// Makes the store write-behind: a write counts as stored once it is queued.
    #[must_use]
    pub fn write_behind(mut self) -> Self {
        self.is_write_behind = true;
        self
    }

    /// Adds faults. A write-behind store has none, because no caller would get the errors.
    #[must_use]
    pub fn with_faults(mut self, faults: StoreFaults) -> Self {
        self.spell = Some(FaultySpell { faults, until: Time::ZERO, refused: 0 });
        self
    }

    /// Ends the faults: the store accepts the waiting and all following requests.
    pub fn heal(&mut self) {
        self.spell = None;
        self.waiting.iter_mut().for_each(|waiting| waiting.is_refused = false);
    }

    /// Returns the requests refused before [`SimStore::heal`].
    pub fn refused(&self) -> u64 {
        self.spell.as_ref().map_or(0, |spell| spell.refused)
    }

    /// Returns the store.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Returns the number of loaded keys.
    pub fn loads(&self) -> u64 {
        self.loads
    }

    /// Whether a waiting request changes entries.
    pub fn owes_writes(&self) -> bool {
        let is_change = |request: &StoreRequest| match request {
            StoreRequest::Write { .. } => true,
            StoreRequest::Order { order, .. } => !matches!(order, StoreOrder::Remember(_)),
            StoreRequest::Load { .. } => false,
        };
        self.waiting.iter().any(|waiting| is_change(&waiting.request))
    }

    /// Takes the member's requests. Call [`SimStore::carry_out`] at each of the returned times of the world.
    pub fn take(&mut self, node: &mut Node, now: Clocks, rng: &mut Rng) -> Vec<Time> {
        let mut ready = Vec::new();
        while let Some((cache, request)) = node.poll_store() {
            let after = rng.duration(Duration::ZERO, self.delay_max);
            let spell = self.spell.as_mut().filter(|_| !self.is_write_behind);
            let (slowness, is_refused) =
                spell.map_or((1, false), |spell| spell.next(now.world, &request, rng));
            let after = after * slowness;
            self.busy_until = (now.world + after).max(self.busy_until);
            ready.push(self.busy_until);
            let taken = match &request {
                StoreRequest::Write { number, .. } if self.is_write_behind => Some(*number),
                _ => None,
            };
            self.waiting.push_back(PendingRequest { cache, request, is_refused, asked: now.world });
            if let Some(number) = taken {
                node.handle_stored(now.own, cache, number, Ok(()));
            }
        }
        ready
    }

    /// Carries out the next request and passes its outcome to the member.
    pub fn carry_out(&mut self, node: &mut Node, now: Clocks) {
        let Some(PendingRequest { cache, request, is_refused, asked }) = self.waiting.pop_front() else {
            return;
        };
        let is_acknowledged = self.is_write_behind && matches!(request, StoreRequest::Write { .. });
        let answer = if is_refused { refusal(&request) } else { self.perform(now.world, asked, request) };
        match answer {
            Answer::Stored(..) if is_acknowledged => {}
            Answer::Stored(number, result) => node.handle_stored(now.own, cache, number, result),
            Answer::Loaded(number, result) => node.handle_loaded(now.own, cache, number, result),
        }
    }

    /// Stops the store as its member crashes during the next request: that request is carried out without an
    /// outcome, and all other waiting requests are lost.
    pub fn interrupt(mut self, now: Time) {
        if let Some(PendingRequest { request, asked, is_refused: false, .. }) = self.waiting.pop_front() {
            self.perform(now, asked, request);
        }
    }

    /// Carries out the waiting requests and closes the store, after the member has closed its cache.
    ///
    /// # Errors
    ///
    /// The first refused request. All others were made, and the store is closed.
    pub fn close(mut self, now: Time) -> Result<(), StoreFailure> {
        let mut all = Ok(());
        while let Some(PendingRequest { request, asked, .. }) = self.waiting.pop_front() {
            if let Answer::Stored(_, result) = self.perform(now, asked, request) {
                all = all.and(result);
            }
        }
        all.and(self.store.close().map_err(|error| error.to_string().into()))
    }

    fn perform(&mut self, now: Time, asked: Time, request: StoreRequest) -> Answer {
        let to_failure = |result: Result<(), StoreError>| result.map_err(|error| error.to_string().into());
        let answer = match request {
            StoreRequest::Write { number, segment, key, entry } => {
                let change = match entry {
                    Some(stored) => Change::Put(to_entry(asked, segment, key, stored)),
                    None => Change::Remove { segment: segment.0, key },
                };
                Answer::Stored(number, to_failure(self.store.store(&[change])))
            }
            StoreRequest::Order { number, order } => {
                let result = match order {
                    StoreOrder::RemoveSegment(segment) => self.store.remove_segment(segment.0),
                    StoreOrder::Clear => self.store.clear(),
                    StoreOrder::Remember(note) => self.store.remember(&note),
                };
                Answer::Stored(number, to_failure(result))
            }
            StoreRequest::Load { number, keys, bytes_max } => {
                Answer::Loaded(number, self.load(now, keys, bytes_max))
            }
        };
        self.carried_out += 1;
        if self.carried_out.is_multiple_of(MAINTAIN_EVERY) {
            // A failure here repeats in a request whose caller gets the error.
            let _ = self.store.maintain(MAINTAIN_BYTES);
        }
        answer
    }

    fn load(
        &mut self,
        now: Time,
        keys: Vec<(Segment, Bytes)>,
        bytes_max: usize,
    ) -> Result<Loaded, StoreFailure> {
        let mut found = Vec::new();
        let mut bytes = 0;
        for (segment, key) in keys {
            if bytes >= bytes_max {
                break;
            }
            let entry =
                self.store.load(segment.0, &key).map_err(|error| StoreFailure::from(error.to_string()))?;
            self.loads += 1;
            bytes += entry.as_ref().map_or(0, |entry| entry.value.len());
            found.push(entry.map(|entry| stored(now, &entry)));
        }
        Ok(found)
    }
}

fn refusal(request: &StoreRequest) -> Answer {
    let why = || StoreFailure::from("the store has trouble");
    match request {
        StoreRequest::Write { number, .. } | StoreRequest::Order { number, .. } => {
            Answer::Stored(*number, Err(why()))
        }
        StoreRequest::Load { number, .. } => Answer::Loaded(*number, Err(why())),
    }
}

/// Opens the state with which a member that has this store begins.
///
/// # Errors
///
/// [`RestoreError`]. The store stays as it was, except for entries that it reports as void.
pub fn restore_container(
    store: &Arc<dyn Store>,
    now: Clocks,
    storage: &StorageSettings,
) -> Result<(Arc<Container>, StoreSettings), RestoreError> {
    let segment_count = store.segments();
    let settings = ContainerSettings {
        segment_count,
        bound: storage.bound,
        is_backed: true,
        is_shared: storage.is_shared,
    };
    let container = Container::new(&settings, storage.hash_seed);
    let remembered = store.recall()?.map(PersistedState::decode).transpose()?;
    if remembered.as_ref().is_some_and(|remembered| remembered.is_void) {
        store.clear()?;
    }
    let part = if storage.preload { Part::Whole } else { Part::Keys };
    let mut entries = 0;
    for segment in (0..segment_count).map(Segment) {
        container.receive(segment);
        for found in store.entries(segment.0, part)? {
            let found = found?;
            entries += 1;
            let entry = stored(now.world, &found).into_entry(now.own);
            let passive = entry.clone().passivated();
            if !storage.preload || container.put(segment, &found.key, entry, now.own).is_err() {
                // Keys always fit.
                let _ = container.put(segment, &found.key, passive, now.own);
            }
        }
    }
    if remembered.is_none() && entries > 0 {
        return Err(RestoreError::Foreign { entries });
    }
    Ok((Arc::new(container), StoreSettings { passivation: storage.passivation, remembered }))
}
