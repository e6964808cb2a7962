//! Functions of iterations that may take long with an entry: they are applied outside the node, in steps. The
//! host runs a [`Computation`] with its present entries on any thread for as long as it wants, and returns
//! the result. The reader requests the entries that a step has not reached again, as after any incomplete
//! answer.

use bytes::Bytes;

use crate::catch_panic::{Panicked, catch_panic};
use crate::command::{Applied, Fetch, Fetched, Part, PartEnd};
use crate::container::{Cursor, IndexLookup};
use crate::cx::Cx;
use crate::cx::NodeEvent;
use crate::cx::computations::Key;
use crate::publication::{FETCH_BYTES, Projection};
use crate::replica::Shared;
use crate::replica::iterate::Iterations;
use crate::replica::iterate::batch_builder::{BatchBuilder, Value};
use crate::replica::iterate::publisher::{Function, LOOKS_MAX, is_published, queue_computation};
use crate::replica::store::Place;
use crate::replica::store::Store;
use crate::replica::store::loads::{AwaitingLoad, Found, LOAD_KEYS};
use crate::{Entry, Segment, Version};

/// The limit in bytes of a step's keys and values; a single entry may have more. Small values are copied,
/// large ones are shared with the container.
const STEP_BYTES: usize = 1024 * 1024;

/// A step of an iteration whose function takes long.
pub struct Computation {
    key: Key,
    topology: u32,
    fetch: Fetch,
    function: Function,
    gathered: Vec<LocalBatch>,
    answer: BatchBuilder,
}

/// A step's result, for [`crate::Node::finish_computation`].
pub struct Computed {
    pub(crate) key: Key,
    topology: u32,
    fetch: Fetch,
    fetched: Fetched,
    answer: BatchBuilder,
}

struct LocalBatch {
    segment: Segment,
    entries: Vec<(Cursor, Bytes, Entry)>,
    end: PartEnd,
    next: Option<Cursor>,
}

enum Gathering {
    Done(Vec<LocalBatch>),
    Missing(Vec<(Place, Version)>),
}

impl Computation {
    /// Applies the function to at least one entry, and calls `may_go_on` after each.
    pub fn run(self, mut may_go_on: impl FnMut() -> bool) -> Computed {
        let Self { key, topology, fetch, function, gathered, mut answer } = self;
        let mut fetched = Fetched::nothing(fetch.iteration, fetch.nth);
        let (mut bytes, mut looks) = (0, 0_usize);
        for LocalBatch { segment, entries, end, next } in gathered {
            let (mut count, mut reduced) = (0, Vec::new());
            let mut stopped_at = None;
            for (at, entry_key, entry) in entries {
                let is_full =
                    answer.len() >= fetch.items_max as usize || bytes + reduced.len() >= FETCH_BYTES;
                if is_full || looks > 0 && !may_go_on() {
                    stopped_at = Some(at);
                    break;
                }
                looks += 1;
                let made = catch_panic(|| match &function {
                    Function::Transform(function, arguments) => function(&entry_key, &entry, arguments),
                    Function::Reduction(function, arguments) => {
                        function(&mut reduced, &entry_key, &entry, arguments);
                        None
                    }
                    Function::Nothing => None,
                });
                match made {
                    Ok(Some(made)) => {
                        bytes += entry_key.len() + made.len();
                        count += 1;
                        if fetch.projection != Projection::Count {
                            answer.push(&entry_key, Value::Made(made), entry.version);
                        }
                    }
                    Ok(None) => {}
                    Err(Panicked) => {
                        fetched.applied = Applied::Panicked;
                        return Computed { key, topology, fetch, fetched, answer };
                    }
                }
            }
            let (end, next) = match stopped_at {
                Some(at) => (PartEnd::More, Some(at)),
                None => (end, next),
            };
            if !reduced.is_empty() {
                bytes += reduced.len();
                count = 1;
                answer.push(&[], Value::Made(reduced.into()), Version::NONE);
            }
            fetched.parts.push(Part { segment, count, end });
            if end == PartEnd::More {
                fetched.cursor = next.map(<(u64, u64)>::from);
                break;
            }
        }
        Computed { key, topology, fetch, fetched, answer }
    }
}

impl Iterations {
    pub(crate) fn is_costly(&self, fetch: &Fetch) -> bool {
        let is_costly = |name| self.costly.contains(name);
        fetch.transform.as_ref().is_some_and(|transform| is_costly(&transform.name))
    }

    /// None if the request was answered or waits for values.
    pub(crate) fn computation(
        &self,
        shared: &Shared,
        store: &mut Store,
        cx: &mut Cx,
        key: Key,
        fetch: Fetch,
        loaded: Found,
    ) -> Option<Computation> {
        let from = key.1.clone();
        let Some(function) = self.function(fetch.projection, fetch.transform.clone()) else {
            cx.computations.end(&key);
            let mut fetched = Fetched::nothing(fetch.iteration, fetch.nth);
            fetched.applied = Applied::Unknown;
            BatchBuilder::here(0, false).send(shared, cx, &from, fetched);
            return None;
        };
        let indexes = shared.container.indexes();
        let lookup =
            fetch.transform.as_ref().and_then(|function| indexes.lookup(&function.name, &function.arguments));
        match StepWalk::new(shared, store, cx, &loaded, lookup).gather(&fetch) {
            Gathering::Missing(missing) => {
                cx.computations.end(&key);
                store.load(shared, cx, missing, AwaitingLoad::Fetch { from, fetch });
                None
            }
            Gathering::Done(gathered) => {
                let answer = if from == cx.local {
                    BatchBuilder::here(0, false)
                } else {
                    BatchBuilder::elsewhere(shared, 0)
                };
                Some(Computation { key, topology: shared.topology_id(), fetch, function, gathered, answer })
            }
        }
    }
}

pub(crate) fn finish_computation(shared: &Shared, cx: &mut Cx, computed: Computed) {
    let Computed { key, topology, fetch, fetched, answer } = computed;
    let from = key.1;
    // Segments may have been dropped during the step: it is repeated with the present ones.
    if topology != shared.topology_id() {
        return queue_computation(shared, cx, &from, fetch, Found::new());
    }
    answer.send(shared, cx, &from, fetched);
    if fetch.is_only && from != cx.local {
        cx.events.push_back(NodeEvent::Expecting);
    }
}

struct StepWalk<'a> {
    shared: &'a Shared,
    store: &'a Store,
    cx: &'a Cx,
    loaded: &'a Found,
    bytes: usize,
    looks: usize,
    missing: Vec<(Place, Version)>,
    lookup: Option<IndexLookup>,
}

impl<'a> StepWalk<'a> {
    fn new(
        shared: &'a Shared,
        store: &'a Store,
        cx: &'a Cx,
        loaded: &'a Found,
        lookup: Option<IndexLookup>,
    ) -> Self {
        Self { shared, store, cx, loaded, bytes: 0, looks: 0, missing: Vec::new(), lookup }
    }

    fn gather(mut self, fetch: &Fetch) -> Gathering {
        let mut gathered: Vec<LocalBatch> = Vec::new();
        let mut cursor = fetch.cursor.map(Cursor::from);
        for &segment in &fetch.segments {
            let at = cursor.take().unwrap_or(Cursor::START);
            let mut of_segment =
                LocalBatch { segment, entries: Vec::new(), end: PartEnd::Refused, next: None };
            if is_published(self.shared, self.cx, segment) {
                self.gather_segment(at, &mut of_segment);
            }
            let is_over = of_segment.end == PartEnd::More;
            let is_any = !of_segment.entries.is_empty() || gathered.iter().any(|one| !one.entries.is_empty());
            if !self.missing.is_empty() && !is_any {
                return Gathering::Missing(self.missing);
            }
            gathered.push(of_segment);
            if is_over {
                break;
            }
        }
        Gathering::Done(gathered)
    }

    fn gather_segment(&mut self, mut at: Cursor, gathered: &mut LocalBatch) {
        let segment = gathered.segment;
        let container = &self.shared.container;
        let Ok(mut walk) = container.begin_walk(segment, &mut at, self.lookup.as_ref()) else { return };
        gathered.end = PartEnd::More;
        while self.looks < LOOKS_MAX && self.bytes < STEP_BYTES && self.missing.len() < LOAD_KEYS {
            if self.missing.is_empty() {
                gathered.next = Some(at);
            }
            let mut found = None;
            let next = container.walk_on(segment, at, &mut walk, self.cx.now, |visited| {
                found = Some((Bytes::copy_from_slice(visited.key()), visited.entry()));
            });
            if let Some(found) = found {
                self.looks += 1;
                let mut one = [found];
                let unknown = self.store.fill(segment, &mut one, self.loaded);
                self.missing.extend(unknown.into_iter().map(|(_, place, version)| (place, version)));
                let [(key, entry)] = one;
                if self.missing.is_empty() {
                    self.bytes += key.len() + entry.value.len();
                    gathered.entries.push((at, key, entry));
                }
            }
            match next {
                Ok(Some(next)) => at = next,
                Ok(None) if self.missing.is_empty() => {
                    (gathered.end, gathered.next) = (PartEnd::Complete, None);
                    return;
                }
                Ok(None) => return,
                Err(_) => {
                    self.missing.clear();
                    gathered.entries.clear();
                    (gathered.end, gathered.next) = (PartEnd::Refused, None);
                    return;
                }
            }
        }
        if self.missing.is_empty() {
            gathered.next = Some(at);
        }
    }
}
