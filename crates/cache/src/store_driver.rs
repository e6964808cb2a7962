//! The driver of a store: it accepts requests in order without waiting, and collects results. The store's
//! writer writes; threads that may wait load values.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use consort_channel::DriverWaker;
use consort_grid::{CacheId, Loaded, Node, Segment, StoreFailure, StoreOrder, StoreRequest};
use consort_group::Time;
use consort_store::{Change, Done, Mode, Refused, Stats, Store, StoreError, Writer, WriterConfig};
use tokio::runtime::Handle;

use crate::persistence::{from_store_entry, to_store_entry, wall_clock};
use crate::watched_store::{StoreWatch, WatchedStore};

/// For a store that accepts nothing.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(30);

enum Completion {
    Stored(u64, Result<(), StoreFailure>),
    Loaded(u64, Result<Loaded, StoreFailure>),
    Room,
}

#[derive(Default)]
pub(crate) struct Completions {
    list: Mutex<Vec<(CacheId, Completion)>>,
    is_any: AtomicBool,
    bell: OnceLock<DriverWaker>,
}

impl Completions {
    pub(crate) fn set_bell(&self, bell: DriverWaker) {
        let _ = self.bell.set(bell);
    }

    pub(crate) fn has_any(&self) -> bool {
        self.is_any.load(Ordering::Acquire)
    }

    fn push(&self, cache: CacheId, completion: Completion) {
        self.list.lock().unwrap_or_else(PoisonError::into_inner).push((cache, completion));
        if !self.is_any.swap(true, Ordering::AcqRel)
            && let Some(bell) = self.bell.get()
        {
            bell.wake();
        }
    }

    fn take(&self) -> Vec<(CacheId, Completion)> {
        if !self.is_any.swap(false, Ordering::AcqRel) {
            return Vec::new();
        }
        std::mem::take(&mut *self.list.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

enum Task {
    Write(u64, Change),
    Order(u64, StoreOrder),
    Load(u64, Vec<(Segment, Bytes)>, usize),
}

pub(crate) struct StoreDriver {
    cache: CacheId,
    writer: Arc<Writer>,
    watch: Arc<StoreWatch>,
    is_behind: bool,
    backlog: VecDeque<Task>,
    completions: Arc<Completions>,
    runtime: Handle,
}

fn failure(error: &Arc<StoreError>) -> StoreFailure {
    error.to_string().into()
}

impl StoreDriver {
    /// Only within the runtime.
    pub(crate) fn start(
        cache: CacheId,
        name: Arc<str>,
        store: Arc<dyn Store>,
        watch: Arc<StoreWatch>,
        config: WriterConfig,
        completions: Arc<Completions>,
    ) -> Result<Self, StoreError> {
        let report = move |error: &StoreError| tracing::warn!(cache = %name, %error, "the store");
        let store = Arc::new(WatchedStore::new(store, watch.clone()));
        let writer = Arc::new(Writer::spawn(store, config, report)?);
        let is_behind = config.mode == Mode::WriteBehind;
        let (backlog, runtime) = (VecDeque::new(), Handle::current());
        Ok(Self { cache, writer, watch, is_behind, backlog, completions, runtime })
    }

    pub(crate) fn stats(&self) -> Stats {
        self.writer.store().stats()
    }

    pub(crate) fn watch(&self) -> (Arc<StoreWatch>, u64) {
        (self.watch.clone(), (self.writer.waiting() + self.backlog.len()) as u64)
    }

    fn take(&mut self, request: StoreRequest) -> Option<u64> {
        let task = match request {
            StoreRequest::Write { number, segment, key, entry } => {
                let change = match entry {
                    Some(entry) => Change::Put(to_store_entry(segment, key, entry, wall_clock())),
                    None => Change::Remove { segment: segment.0, key },
                };
                Task::Write(number, change)
            }
            StoreRequest::Order { number, order } => Task::Order(number, order),
            StoreRequest::Load { number, keys, bytes_max } => Task::Load(number, keys, bytes_max),
        };
        if self.backlog.is_empty() {
            return self.begin(task);
        }
        self.backlog.push_back(task);
        None
    }

    /// While the writer has room. Returns the numbers of requests that are complete at once.
    fn resume_queued(&mut self) -> Vec<u64> {
        let mut done = Vec::new();
        let backlog = std::mem::take(&mut self.backlog);
        for task in backlog {
            if self.backlog.is_empty() {
                done.extend(self.begin(task));
            } else {
                self.backlog.push_back(task);
            }
        }
        done
    }

    fn report_result(&self, number: u64) -> Done {
        let (completions, cache) = (self.completions.clone(), self.cache);
        Box::new(move |result| {
            let result = result.map_err(|error| failure(&error));
            completions.push(cache, Completion::Stored(number, result));
        })
    }

    fn begin(&mut self, task: Task) -> Option<u64> {
        match task {
            Task::Write(number, change) => {
                // With write-behind a change counts as complete once the writer accepts it, without a callback.
                let done: Done = if self.is_behind { Box::new(|_| {}) } else { self.report_result(number) };
                match self.writer.write(change, done) {
                    Ok(()) => return self.is_behind.then_some(number),
                    Err(refused) => {
                        let Refused { change, is_closed, .. } = *refused;
                        self.backlog.push_front(Task::Write(number, change));
                        if !is_closed {
                            let (completions, cache) = (self.completions.clone(), self.cache);
                            // Not when half of the queue is free, because a large change may need more.
                            self.writer.run(Box::new(move |_| completions.push(cache, Completion::Room)));
                        }
                    }
                }
            }
            Task::Order(number, order) => {
                let report = self.report_result(number);
                match order {
                    StoreOrder::RemoveSegment(segment) => self.writer.remove_segment(segment.0, report),
                    StoreOrder::Clear => self.writer.clear(report),
                    StoreOrder::Remember(note) => {
                        let remember =
                            move |store: &dyn Store| report(store.remember(&note).map_err(Arc::new));
                        self.writer.run(Box::new(remember));
                    }
                }
            }
            Task::Load(number, keys, bytes_max) => {
                let (writer, completions, cache) =
                    (self.writer.clone(), self.completions.clone(), self.cache);
                self.runtime.spawn_blocking(move || {
                    let loaded = load(&writer, keys, bytes_max);
                    // A loading thread should not be the last owner of the writer, if that can be avoided.
                    drop(writer);
                    completions.push(cache, Completion::Loaded(number, loaded));
                });
            }
        }
        None
    }

    /// Stores the waiting changes and closes the store on a thread that may wait. Then calls `then`.
    pub(crate) fn close(self, then: impl FnOnce() + Send + 'static) {
        let runtime = self.runtime.clone();
        runtime.spawn_blocking(move || {
            self.close_now();
            then();
        });
    }

    fn close_now(mut self) {
        while !self.backlog.is_empty() {
            let (told, room) = channel();
            self.writer.run(Box::new(move |_| {
                let _ = told.send(());
            }));
            if room.recv_timeout(CLOSE_TIME_MAX).is_err() {
                break;
            }
            self.resume_queued();
        }
        // A load may still own the writer, and ends it then.
        let Some(writer) = Arc::into_inner(self.writer) else { return };
        let closed = writer.close();
        if closed.lost > 0 || !self.backlog.is_empty() {
            let lost = closed.lost + self.backlog.len();
            let why = closed.error.map_or_else(String::new, |error| error.to_string());
            tracing::error!(lost, why, "changes could not be stored before the store was closed");
        }
    }
}

fn load(writer: &Writer, keys: Vec<(Segment, Bytes)>, bytes_max: usize) -> Result<Loaded, StoreFailure> {
    let wall = wall_clock();
    let mut loaded = Vec::with_capacity(keys.len());
    let mut bytes = 0;
    for (segment, key) in keys {
        if bytes >= bytes_max {
            break;
        }
        let found = writer.load(segment.0, &key).map_err(|error| StoreFailure::from(error.to_string()))?;
        bytes += found.as_ref().map_or(0, |entry| entry.value.len());
        loaded.push(found.map(|entry| from_store_entry(&entry, wall)));
    }
    Ok(loaded)
}

#[derive(Default)]
pub(crate) struct Stores {
    stores: Vec<StoreDriver>,
}

impl Stores {
    pub(crate) fn is_empty(&self) -> bool {
        self.stores.is_empty()
    }

    pub(crate) fn insert(&mut self, store: StoreDriver) {
        self.stores.push(store);
    }

    pub(crate) fn remove(&mut self, cache: CacheId) -> Option<StoreDriver> {
        let at = self.stores.iter().position(|store| store.cache == cache)?;
        Some(self.stores.swap_remove(at))
    }

    pub(crate) fn get_mut(&mut self, cache: CacheId) -> Option<&mut StoreDriver> {
        self.stores.iter_mut().find(|store| store.cache == cache)
    }

    /// Passes requests to the stores and results to the node, until there are neither.
    pub(crate) fn serve(&mut self, node: &mut Node, completions: &Completions, now: Time) {
        loop {
            let mut done = Vec::new();
            for (cache, completion) in completions.take() {
                match completion {
                    Completion::Stored(number, result) => node.handle_stored(now, cache, number, result),
                    Completion::Loaded(number, result) => node.handle_loaded(now, cache, number, result),
                    Completion::Room => {
                        let store = self.get_mut(cache);
                        done.extend(
                            store
                                .into_iter()
                                .flat_map(|store| store.resume_queued())
                                .map(|number| (cache, number)),
                        );
                    }
                }
            }
            while let Some((cache, request)) = node.poll_store() {
                let number = self.get_mut(cache).and_then(|store| store.take(request));
                done.extend(number.map(|number| (cache, number)));
            }
            if done.is_empty() && !completions.has_any() {
                return;
            }
            for (cache, number) in done {
                node.handle_stored(now, cache, number, Ok(()));
            }
        }
    }
}
