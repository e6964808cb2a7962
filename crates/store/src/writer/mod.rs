//! The one thread that writes to a store, and the bounded queue before it.
//!
//! Several changes of one key that wait together are stored as one, the last; changes that wait are stored many at a time,
//! so a store that makes each call safe pays for it once. Between batches the thread puts the store's files in order.
//!
//! * **Write-through**: a change's callback is called when it is stored, or could not be.
//! * **Write-behind**: the callback is called when the change is queued. What cannot be stored stays in the queue and is
//!   tried again, until the queue is full and refuses more: nothing is dropped in silence.
//!
//! Orders that concern many keys ([`Writer::clear`] and so on) wait in the same queue and are not bounded: they take some
//! words each, and whoever gives them waits for them.
//!
//! Callbacks run on the writer's thread, or on the caller's if there is nothing to wait for. They must not block
//! and must not panic, which would end the thread; all who wait are then told that the writer is closed.

mod queue;

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use self::queue::{Order, Queue, Work};
use crate::entry::{Change, Entry, Segment};
use crate::error::StoreError;
use crate::store::Store;

/// Told once how it went.
pub type Done = Box<dyn FnOnce(Result<(), Arc<StoreError>>) + Send>;

/// Something to do with a store.
pub type Task = Box<dyn FnOnce(&dyn Store) + Send>;

/// Told of errors for which nobody waits.
type Report = Box<dyn Fn(&StoreError) + Send>;

/// Bytes that the thread spends on the store's files between two batches, at least. Large enough to keep up with small
/// batches, small enough not to be felt: some milliseconds.
const MAINTAIN_BYTES: u64 = 1 << 20;

/// When a write counts as done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// When it is stored.
    #[default]
    WriteThrough,
    /// When it is queued.
    WriteBehind,
}

/// How a writer works.
#[derive(Clone, Copy, Debug)]
pub struct WriterConfig {
    /// When a write counts as done.
    pub mode: Mode,
    /// Changes that may wait. Default 65,536: what a disk that takes 100,000 a second works off in less than a second.
    pub queue_changes_max: usize,
    /// Bytes of keys and values that may wait. Default 64 MiB, for the memory. A larger change may wait alone.
    pub queue_bytes_max: usize,
    /// Changes stored at once. Default 1,024: enough for the disk's time per call not to matter.
    pub batch_changes_max: usize,
    /// Bytes of keys and values stored at once. Default 8 MiB.
    pub batch_bytes_max: usize,
    /// How long write-behind waits before it tries again what failed. Default one second.
    pub retry_after: Duration,
}

impl Default for WriterConfig {
    fn default() -> Self {
        Self {
            mode: Mode::default(),
            queue_changes_max: 65_536,
            queue_bytes_max: 64 << 20,
            batch_changes_max: 1024,
            batch_bytes_max: 8 << 20,
            retry_after: Duration::from_secs(1),
        }
    }
}

/// A change was not taken. Its callback has not been called.
pub struct Refused {
    /// The change.
    pub change: Change,
    /// Its callback.
    pub done: Done,
    /// True if the writer is closed, false if the queue is full ([`Writer::when_room`]).
    pub is_closed: bool,
}

impl std::fmt::Debug for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.is_closed { "the writer is closed" } else { "the queue is full" })
    }
}

/// How a writer ended.
#[derive(Clone, Debug, Default)]
pub struct Closed {
    /// Changes taken by write-behind that could not be stored.
    pub lost: usize,
    /// Why the store could not be closed, or else the last reason why a change is lost.
    pub error: Option<Arc<StoreError>>,
}

/// Owns a store's writes.
pub struct Writer {
    store: Arc<dyn Store>,
    shared: Arc<Shared>,
    config: WriterConfig,
    thread: Option<JoinHandle<Closed>>,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    /// There is something to do.
    work: Condvar,
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer")
            .field("store", &self.store)
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl Writer {
    /// Starts a thread that writes to this store, and reports what fails with nobody waiting for it.
    pub fn spawn(
        store: Arc<dyn Store>,
        config: WriterConfig,
        report: impl Fn(&StoreError) + Send + 'static,
    ) -> Result<Self, StoreError> {
        let shared = Arc::new(Shared::default());
        let (run_store, run_shared, report) = (Arc::clone(&store), Arc::clone(&shared), Box::new(report));
        let thread = std::thread::Builder::new()
            .name("consort-store".to_owned())
            .spawn(move || Worker { store: run_store, shared: run_shared, config, report }.run())
            .map_err(|error| StoreError::io("start", "a thread", error))?;
        Ok(Self { store, shared, config, thread: Some(thread) })
    }

    /// The store. Reads of it do not see what still waits.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Takes a change if there is room for it.
    pub fn write(&self, change: Change, done: Done) -> Result<(), Box<Refused>> {
        let mut queue = self.shared.queue();
        if queue.is_closed || !queue.has_room(&change, &self.config) {
            return Err(Box::new(Refused { change, done, is_closed: queue.is_closed }));
        }
        match self.config.mode {
            Mode::WriteThrough => queue.push(change, Some(done)),
            Mode::WriteBehind => {
                queue.push(change, None);
                drop(queue);
                done(Ok(()));
            }
        }
        self.shared.work.notify_one();
        Ok(())
    }

    /// Calls back once the queue has room: at least half of it is free. At once if it is so.
    pub fn when_room(&self, wake: Box<dyn FnOnce() + Send>) {
        let mut queue = self.shared.queue();
        if queue.is_closed || queue.is_half_free(&self.config) {
            drop(queue);
            return wake();
        }
        queue.waiting_for_room.push(wake);
    }

    /// Removes all entries of a segment, after everything that waits.
    pub fn remove_segment(&self, segment: Segment, done: Done) {
        self.order(Order::RemoveSegment(segment, done));
    }

    /// Removes all entries, after everything that waits.
    pub fn clear(&self, done: Done) {
        self.order(Order::Clear(done));
    }

    /// Calls back when everything that waits now is stored and outlives a power failure.
    pub fn flush(&self, done: Done) {
        self.order(Order::Flush(done));
    }

    /// Runs something else on the store, in the writer's thread, after everything that waits: a purge, say.
    pub fn run(&self, task: Task) {
        self.order(Order::Run(task));
    }

    /// The entry of a key, as it is once all that waits is stored.
    pub fn load(&self, segment: Segment, key: &[u8]) -> Result<Option<Entry>, StoreError> {
        match self.pending(segment, key) {
            Some(entry) => Ok(entry),
            None => self.store.load(segment, key),
        }
    }

    /// The entry that a key gets from what waits. Some(None): it is removed; None: nothing waits for it.
    pub fn pending(&self, segment: Segment, key: &[u8]) -> Option<Option<Entry>> {
        self.shared.queue().pending(segment, key)
    }

    /// Changes that wait.
    pub fn waiting(&self) -> usize {
        self.shared.queue().changes()
    }

    /// Stores all that waits, closes the store and ends the thread. What write-behind cannot store now is lost, and
    /// counted.
    pub fn close(mut self) -> Closed {
        self.end()
    }

    fn order(&self, order: Order) {
        let mut queue = self.shared.queue();
        if queue.is_closed {
            drop(queue);
            return order.fail(&Arc::new(StoreError::Closed));
        }
        queue.push_order(order);
        self.shared.work.notify_one();
    }

    fn end(&mut self) -> Closed {
        self.shared.queue().is_closed = true;
        self.shared.work.notify_one();
        // A callback that panicked has ended the thread, which has told of it by itself.
        self.thread.take().and_then(|thread| thread.join().ok()).unwrap_or_default()
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if self.thread.is_some() {
            let closed = self.end();
            if closed.lost > 0 {
                tracing::error!(lost = closed.lost, "changes could not be stored");
            }
        }
    }
}

/// What the thread owns.
struct Worker {
    store: Arc<dyn Store>,
    shared: Arc<Shared>,
    config: WriterConfig,
    report: Report,
}

impl Worker {
    fn run(self) -> Closed {
        let _refuse_when_gone = RefuseWhenGone(Arc::clone(&self.shared));
        let mut closed = Closed::default();
        let mut is_tidy = false;
        let mut is_failing = false;
        loop {
            let work = self.next(is_tidy, is_failing);
            match work {
                Some(Work::Batch(batch)) => {
                    let bytes = batch.bytes;
                    is_failing = !self.store_batch(batch, &mut closed);
                    is_tidy = is_failing || self.tidy(MAINTAIN_BYTES.max(4 * bytes as u64));
                }
                Some(Work::Order(order)) => {
                    order.carry_out(&*self.store);
                    is_tidy = false;
                }
                Some(Work::Idle) => is_tidy = self.tidy(MAINTAIN_BYTES),
                Some(Work::Again) => is_failing = false,
                None => break,
            }
            self.wake_waiting();
        }
        if let Err(error) = self.store.close() {
            closed.error = Some(Arc::new(error));
        }
        closed
    }

    /// Waits for something to do. None: closed, and nothing left.
    fn next(&self, is_tidy: bool, is_failing: bool) -> Option<Work> {
        let mut queue = self.shared.queue();
        loop {
            if is_failing && !queue.is_closed {
                let waited = self
                    .shared
                    .work
                    .wait_timeout_while(queue, self.config.retry_after, |queue| !queue.is_closed);
                drop(waited);
                return Some(Work::Again);
            }
            if let Some(work) = queue.take(&self.config) {
                return Some(work);
            }
            if queue.is_closed {
                return None;
            }
            if !is_tidy {
                return Some(Work::Idle);
            }
            queue = self.shared.work.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Stores a batch. False: something of it waits again.
    fn store_batch(&self, batch: queue::Batch, closed: &mut Closed) -> bool {
        // Asked before: what has failed and is not tried again must have been tried since.
        let is_last_try = self.shared.queue().is_closed;
        let Err(error) = self.store.store(&batch.changes) else {
            self.shared.queue().stored();
            batch.done.into_iter().flatten().for_each(|done| done(Ok(())));
            return true;
        };
        let is_single = batch.changes.len() == 1;
        let mut first = Some(error);
        let mut again = Vec::new();
        for (change, dones) in batch.changes.into_iter().zip(batch.done) {
            // One by one, so that each error is of the change that it is reported for.
            let stored = match first.take_if(|_| is_single) {
                Some(error) => Err(error),
                None => self.store.store(std::slice::from_ref(&change)),
            };
            match stored {
                Ok(()) => dones.into_iter().for_each(|done| done(Ok(()))),
                Err(error) => match self.failed(dones, error, is_last_try, closed) {
                    Retry::Yes => again.push(change),
                    Retry::No => {}
                },
            }
        }
        let is_done = again.is_empty();
        self.shared.queue().put_back(again);
        is_done
    }

    /// Tells of a change that could not be stored, and whether it is to be tried again.
    fn failed(&self, dones: Vec<Done>, error: StoreError, is_last_try: bool, closed: &mut Closed) -> Retry {
        if self.config.mode == Mode::WriteThrough {
            let error = Arc::new(error);
            dones.into_iter().for_each(|done| done(Err(Arc::clone(&error))));
            return Retry::No;
        }
        (self.report)(&error);
        let is_hopeless = matches!(
            error,
            StoreError::TooLarge { .. } | StoreError::NoSuchSegment { .. } | StoreError::Closed
        );
        if is_hopeless || is_last_try {
            closed.lost += 1;
            closed.error = Some(Arc::new(error));
            return Retry::No;
        }
        Retry::Yes
    }

    /// Puts the store's files in order. True: nothing more to do, or not now.
    fn tidy(&self, budget_bytes: u64) -> bool {
        match self.store.maintain(budget_bytes) {
            Ok(is_more) => !is_more,
            Err(error) => {
                (self.report)(&error);
                true
            }
        }
    }

    fn wake_waiting(&self) {
        let mut queue = self.shared.queue();
        if queue.waiting_for_room.is_empty() || !(queue.is_closed || queue.is_half_free(&self.config)) {
            return;
        }
        let waiting = std::mem::take(&mut queue.waiting_for_room);
        drop(queue);
        waiting.into_iter().for_each(|wake| wake());
    }
}

/// Whether a change is tried again.
enum Retry {
    Yes,
    No,
}

/// Whatever ends the thread: nobody shall wait for it.
struct RefuseWhenGone(Arc<Shared>);

impl Drop for RefuseWhenGone {
    fn drop(&mut self) {
        let mut queue = self.0.queue();
        queue.is_closed = true;
        let left = std::mem::take(&mut *queue);
        queue.is_closed = true;
        drop(queue);
        left.fail(&Arc::new(StoreError::Closed));
    }
}
