//! A store beside a simulated member: requests are carried out one after the other, each after a while.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use consort_grid::{
    Backing, CacheId, Container, ContainerSettings, Entry, Lifetime, MemoryBound, Node, Remembered, Segment,
    StoreFailure, StoreOrder, StoreRequest, Stored, Version,
};
use consort_group::Time;
use consort_store::{Change, Part, Store, StoreError, Times};

/// A member's store.
pub(crate) struct Beside {
    pub(crate) store: Arc<dyn Store>,
    /// How long a request takes at most.
    pub(crate) delay_max: Duration,
    pub(crate) busy_until: Time,
    /// Entries loaded so far.
    pub(crate) loads: u64,
}

fn millis(time: Time) -> u64 {
    time.0 / 1_000_000
}

fn written(now: Time, segment: Segment, key: Bytes, stored: Stored) -> consort_store::Entry {
    let ago = |span: Duration| millis(now).saturating_sub(span.as_millis() as u64);
    let in_millis = |span: Option<Duration>| span.map(|span| span.as_millis() as u64);
    let times = Times {
        created: ago(stored.age),
        used: ago(stored.idle),
        lifespan: in_millis(stored.lifetime.lifespan),
        max_idle: in_millis(stored.lifetime.max_idle),
    };
    consort_store::Entry { segment: segment.0, key, value: stored.value, version: stored.version.0, times }
}

fn read(now: Time, entry: &consort_store::Entry) -> Stored {
    let since = |at: u64| Duration::from_millis(millis(now).saturating_sub(at));
    let span = |millis: Option<u64>| millis.map(Duration::from_millis);
    Stored {
        value: entry.value.clone(),
        version: Version(entry.version),
        lifetime: Lifetime { lifespan: span(entry.times.lifespan), max_idle: span(entry.times.max_idle) },
        age: since(entry.times.created),
        idle: since(entry.times.used),
    }
}

impl Beside {
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        Self { store, delay_max: Duration::from_millis(2), busy_until: Time::ZERO, loads: 0 }
    }

    pub(crate) fn carry_out(&mut self, node: &mut Node, now: Time, cache: CacheId, request: StoreRequest) {
        let told =
            |result: Result<(), StoreError>| result.map_err(|error| StoreFailure::from(error.to_string()));
        match request {
            StoreRequest::Write { number, segment, key, entry } => {
                let change = match entry {
                    Some(stored) => Change::Put(written(now, segment, key, stored)),
                    None => Change::Remove { segment: segment.0, key },
                };
                let result = self.store.store(&[change]);
                node.handle_stored(now, cache, number, told(result));
            }
            StoreRequest::Order { number, order } => {
                let result = match order {
                    StoreOrder::RemoveSegment(segment) => self.store.remove_segment(segment.0),
                    StoreOrder::Clear => self.store.clear(),
                    StoreOrder::Remember(note) => self.store.remember(&note),
                };
                node.handle_stored(now, cache, number, told(result));
            }
            StoreRequest::Load { number, keys, bytes_max } => {
                let mut found = Vec::new();
                let mut bytes = 0;
                for (segment, key) in keys {
                    if bytes >= bytes_max {
                        break;
                    }
                    match self.store.load(segment.0, &key) {
                        Ok(entry) => found.push(entry.map(|entry| read(now, &entry))),
                        Err(error) => {
                            let why = error.to_string().into();
                            return node.handle_loaded(now, cache, number, Err(why));
                        }
                    }
                    self.loads += 1;
                    bytes += found.last().and_then(Option::as_ref).map_or(0, |one| one.value.len());
                }
                node.handle_loaded(now, cache, number, Ok(found));
            }
        }
    }
}

/// What a member begins with that has this store.
pub(crate) fn begin(
    store: &Arc<dyn Store>,
    now: Time,
    bound: Option<MemoryBound>,
    passivation: bool,
) -> (Arc<Container>, Backing) {
    let segment_count = store.segments();
    let container =
        Container::new(&ContainerSettings { segment_count, bound, is_backed: true, is_shared: true }, 1);
    let note = store.recall().expect("a note");
    let remembered = note.map(|note| Remembered::decode(note).expect("a good note"));
    if remembered.as_ref().is_some_and(|remembered| remembered.is_void) {
        store.clear().expect("a store that can be cleared");
    }
    for segment in (0..segment_count).map(Segment) {
        container.receive(segment);
        for entry in store.entries(segment.0, Part::Keys).expect("keys") {
            let entry = entry.expect("a key");
            let stored = read(now, &entry);
            let ago = |span: Duration| Time(now.0.saturating_sub(span.as_nanos() as u64));
            let grids = Entry {
                created: ago(stored.age),
                last_used: ago(stored.idle),
                value: stored.value,
                version: stored.version,
                lifetime: stored.lifetime,
            };
            container.put(segment, &entry.key, grids.passivated(), now).expect("keys always fit");
        }
    }
    (Arc::new(container), Backing { passivation, remembered })
}
