//! Ordered writes to a store through a bounded queue, on threads shared by the process ([`pool`]).
//!
//! Queued changes of one key are merged. Changes are stored in batches, so that a durable store pays once per
//! batch; in between the writer maintains the store's files.
//!
//! * **Write-through**: a change's callback is called when it is stored or has failed.
//! * **Write-behind**: the callback is called when the change is queued. A failed change stays in the queue and
//!   is retried; once the queue is full, further changes are refused. No change is dropped silently.
//!
//! Operations on many keys ([`Writer::clear`] and others) use the same queue without a bound: they take some
//! words each, and their callers wait.
//!
//! Callbacks must not block, because the threads serve other stores, too. If one panics, its writer closes and
//! fails all pending requests.

mod callbacks;
mod pool;
mod queue;

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use self::callbacks::Callbacks;
use self::pool::{Job, NextStep, Pool};
use self::queue::{Order, Queue, Work};
use crate::entry::{Change, Entry, Segment};
use crate::error::StoreError;
use crate::store::Store;

/// Receives the outcome, once.
pub type Done = Box<dyn FnOnce(Result<(), Arc<StoreError>>) + Send>;

/// A task for a store.
pub type Task = Box<dyn FnOnce(&dyn Store) + Send>;

/// For errors without a waiting caller.
type Report = Box<dyn Fn(&StoreError) + Send>;

/// Enough to keep up with small batches, and only some milliseconds.
const MAINTAIN_BYTES: u64 = 1 << 20;

/// When a write is acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// When it is stored.
    #[default]
    WriteThrough,
    /// When it is queued.
    WriteBehind,
}

/// The configuration of a writer.
#[derive(Clone, Copy, Debug)]
pub struct WriterConfig {
    /// When a write is acknowledged.
    pub mode: Mode,
    /// Queued changes; default 65,536: less than a second at 100,000 changes per second.
    pub queue_changes_max: usize,
    /// Bytes of queued keys and values; default 64 MiB. A larger change is queued alone.
    pub queue_bytes_max: usize,
    /// Changes per batch; default 1,024, so that the cost per call is negligible.
    pub batch_changes_max: usize,
    /// Bytes of keys and values per batch; default 8 MiB.
    pub batch_bytes_max: usize,
    /// Delay before write-behind retries; default 1 s.
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

/// A refused change; its callback was not called.
pub struct Refused {
    /// The change.
    pub change: Change,
    /// Its callback.
    pub done: Done,
    /// Whether the writer is closed; else the queue is full ([`Writer::on_room`]).
    pub is_closed: bool,
}

impl std::fmt::Debug for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.is_closed { "the writer is closed" } else { "the queue is full" })
    }
}

/// The outcome of closing a writer.
#[derive(Clone, Debug, Default)]
pub struct Closed {
    /// Changes of write-behind that could not be stored.
    pub lost: usize,
    /// Why closing failed, or the last reason of a lost change.
    pub error: Option<Arc<StoreError>>,
}

/// The exclusive writer of a store.
pub struct Writer {
    worker: Arc<Worker>,
    is_ended: bool,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer")
            .field("store", &self.worker.store)
            .field("config", &self.worker.config)
            .finish_non_exhaustive()
    }
}

impl Writer {
    /// Starts writing to a store. `report` receives errors without a waiting caller.
    ///
    /// # Errors
    ///
    /// If no thread can be started.
    pub fn spawn(
        store: Arc<dyn Store>,
        config: WriterConfig,
        report: impl Fn(&StoreError) + Send + 'static,
    ) -> Result<Self, StoreError> {
        Pool::of_process().start().map_err(|error| StoreError::io("start", "a thread", error))?;
        let progress =
            Mutex::new(Progress { report: Box::new(report), is_maintained: true, is_failing: false });
        let (queue, closed, ended) = (Mutex::default(), Mutex::default(), Condvar::new());
        let worker = Arc::new(Worker { store, config, queue, progress, closed, ended });
        Ok(Self { worker, is_ended: false })
    }

    /// Returns the store, without queued changes.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.worker.store
    }

    /// Queues a change if there is room.
    pub fn write(&self, change: Change, done: Done) -> Result<(), Box<Refused>> {
        let config = &self.worker.config;
        let mut queue = self.worker.queue();
        if queue.is_closed || !queue.has_room(&change, config) {
            return Err(Box::new(Refused { change, done, is_closed: queue.is_closed }));
        }
        match config.mode {
            Mode::WriteThrough => {
                queue.push(change, Some(done));
                self.schedule(queue);
            }
            Mode::WriteBehind => {
                queue.push(change, None);
                self.schedule(queue);
                done(Ok(()));
            }
        }
        Ok(())
    }

    /// Calls back once at least half of the queue is free.
    pub fn on_room(&self, wake: Box<dyn FnOnce() + Send>) {
        let mut queue = self.worker.queue();
        if queue.is_closed || queue.is_half_free(&self.worker.config) {
            drop(queue);
            return wake();
        }
        queue.waiting_for_room.push(wake);
    }

    /// Removes a segment's entries, after everything queued.
    pub fn remove_segment(&self, segment: Segment, done: Done) {
        self.order(Order::RemoveSegment(segment, done));
    }

    /// Removes all entries, after everything queued.
    pub fn clear(&self, done: Done) {
        self.order(Order::Clear(done));
    }

    /// Calls back when everything queued now survives a power failure.
    pub fn flush(&self, done: Done) {
        self.order(Order::Flush(done));
    }

    /// Runs a task, such as a purge, on a writing thread, after everything queued.
    pub fn run(&self, task: Task) {
        self.order(Order::Run(task));
    }

    /// Loads a key's entry, including queued changes.
    pub fn load(&self, segment: Segment, key: &[u8]) -> Result<Option<Entry>, StoreError> {
        match self.pending(segment, key) {
            Some(entry) => Ok(entry),
            None => self.worker.store.load(segment, key),
        }
    }

    /// Returns a key's queued state: `Some(None)` if removed, `None` if nothing is queued.
    pub fn pending(&self, segment: Segment, key: &[u8]) -> Option<Option<Entry>> {
        self.worker.queue().pending(segment, key)
    }

    /// Returns the number of queued changes.
    pub fn waiting(&self) -> usize {
        self.worker.queue().changes()
    }

    /// Stores all queued changes and closes the store. Changes of write-behind that cannot be stored now are
    /// lost and counted.
    pub fn close(mut self) -> Closed {
        self.end()
    }

    fn order(&self, order: Order) {
        let mut queue = self.worker.queue();
        if queue.is_closed {
            drop(queue);
            return order.fail(&Arc::new(StoreError::Closed));
        }
        queue.push_order(order);
        self.schedule(queue);
    }

    fn schedule(&self, mut queue: MutexGuard<'_, Queue>) {
        let is_scheduled = std::mem::replace(&mut queue.is_scheduled, true);
        drop(queue);
        if !is_scheduled {
            Pool::of_process().add(self.worker.clone());
        }
    }

    fn end(&mut self) -> Closed {
        self.is_ended = true;
        let mut queue = self.worker.queue();
        queue.is_closed = true;
        self.schedule(queue);
        let job: Arc<dyn Job> = self.worker.clone();
        Pool::of_process().run_now(&job);
        let closed = lock(&self.worker.closed);
        let ended = self.worker.ended.wait_while(closed, |closed| !closed.has_ended);
        std::mem::take(&mut ended.unwrap_or_else(PoisonError::into_inner).result)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if !self.is_ended {
            let closed = self.end();
            if closed.lost > 0 {
                tracing::error!(lost = closed.lost, "changes were lost");
            }
        }
    }
}

struct Worker {
    store: Arc<dyn Store>,
    config: WriterConfig,
    queue: Mutex<Queue>,
    progress: Mutex<Progress>,
    closed: Mutex<CloseOutcome>,
    ended: Condvar,
}

struct Progress {
    report: Report,
    is_maintained: bool,
    is_failing: bool,
}

#[derive(Default)]
struct CloseOutcome {
    has_ended: bool,
    result: Closed,
}

enum NextWork {
    Work(Work),
    Nothing,
    End,
}

impl Job for Worker {
    fn step(&self) -> NextStep {
        let mut progress = lock(&self.progress);
        if std::mem::take(&mut progress.is_failing) && !self.queue().is_closed {
            return NextStep::After(self.config.retry_after);
        }
        let work = match self.next(progress.is_maintained) {
            NextWork::Work(work) => work,
            NextWork::Nothing => return NextStep::Rest,
            NextWork::End => return self.close(),
        };
        match work {
            Work::Batch(batch) => {
                let bytes = batch.bytes;
                progress.is_failing = !self.store_batch(batch, &progress.report);
                // Also after a failure, because maintenance frees space on a full disk. Then wait for the
                // next attempt.
                let is_maintained =
                    self.maintain_files(MAINTAIN_BYTES.max(4 * bytes as u64), &progress.report);
                progress.is_maintained = is_maintained || progress.is_failing;
            }
            Work::Order(order) => {
                order.carry_out(&*self.store);
                progress.is_maintained = false;
            }
            Work::Idle => progress.is_maintained = self.maintain_files(MAINTAIN_BYTES, &progress.report),
        }
        drop(progress);
        self.wake_waiting();
        NextStep::Again
    }

    fn give_up(&self) {
        self.refuse_queued();
        self.notify_ended(None);
    }
}

impl Worker {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        lock(&self.queue)
    }

    fn next(&self, is_maintained: bool) -> NextWork {
        let mut queue = self.queue();
        if let Some(work) = queue.take(&self.config) {
            return NextWork::Work(work);
        }
        if queue.is_closed {
            return NextWork::End;
        }
        if !is_maintained {
            return NextWork::Work(Work::Idle);
        }
        queue.is_scheduled = false;
        queue.shrink();
        NextWork::Nothing
    }

    fn close(&self) -> NextStep {
        let error = self.store.close().err().map(Arc::new);
        self.refuse_queued();
        self.notify_ended(error);
        NextStep::Rest
    }

    fn notify_ended(&self, error: Option<Arc<StoreError>>) {
        let mut closed = lock(&self.closed);
        closed.has_ended = true;
        closed.result.error = error.or(closed.result.error.take());
        drop(closed);
        self.ended.notify_all();
    }

    fn refuse_queued(&self) {
        let mut queue = self.queue();
        let left = std::mem::replace(&mut *queue, Queue::closed());
        drop(queue);
        left.fail(&Arc::new(StoreError::Closed));
    }

    /// False if a part of the batch is queued again.
    fn store_batch(&self, batch: queue::Batch, report: &Report) -> bool {
        // Read before the attempt: a change that is not retried must have been tried after the close.
        let is_last_try = self.queue().is_closed;
        let mut callbacks = Callbacks::default();
        let Err(error) = self.try_store(&batch.changes, &mut callbacks) else {
            self.queue().stored();
            callbacks.call_all(batch.done.into_iter().flatten().map(|done| || done(Ok(()))));
            callbacks.end();
            return true;
        };
        let is_single = batch.changes.len() == 1;
        let mut first = Some(error);
        let mut again = Vec::new();
        for (change, dones) in batch.changes.into_iter().zip(batch.done) {
            // Stored one by one, so that each error belongs to its change.
            let stored = match first.take_if(|_| is_single) {
                Some(error) => Err(error),
                None if callbacks.has_panicked() => Err(StoreError::Closed),
                None => self.try_store(std::slice::from_ref(&change), &mut callbacks),
            };
            match stored {
                Ok(()) => callbacks.call_all(dones.into_iter().map(|done| || done(Ok(())))),
                Err(error) => match self.failed(dones, error, is_last_try, report, &mut callbacks) {
                    Retry::Yes => again.push(change),
                    Retry::No => {}
                },
            }
        }
        let is_done = again.is_empty();
        self.queue().put_back(again);
        callbacks.end();
        is_done
    }

    /// A panicking store has stored nothing for its callers; its writer closes.
    fn try_store(&self, changes: &[Change], callbacks: &mut Callbacks) -> Result<(), StoreError> {
        callbacks.call(|| self.store.store(changes)).unwrap_or(Err(StoreError::Closed))
    }

    fn failed(
        &self,
        dones: Vec<Done>,
        error: StoreError,
        is_last_try: bool,
        report: &Report,
        callbacks: &mut Callbacks,
    ) -> Retry {
        if self.config.mode == Mode::WriteThrough {
            let error = Arc::new(error);
            callbacks.call_all(dones.into_iter().map(|done| || done(Err(Arc::clone(&error)))));
            return Retry::No;
        }
        callbacks.call(|| report(&error));
        let is_hopeless = matches!(
            error,
            StoreError::TooLarge { .. } | StoreError::NoSuchSegment { .. } | StoreError::Closed
        );
        if is_hopeless || is_last_try {
            let mut closed = lock(&self.closed);
            closed.result.lost += 1;
            closed.result.error = Some(Arc::new(error));
            return Retry::No;
        }
        Retry::Yes
    }

    fn maintain_files(&self, budget_bytes: u64, report: &Report) -> bool {
        match self.store.maintain(budget_bytes) {
            Ok(is_more) => !is_more,
            Err(error) => {
                report(&error);
                true
            }
        }
    }

    fn wake_waiting(&self) {
        let mut queue = self.queue();
        if queue.waiting_for_room.is_empty() || !(queue.is_closed || queue.is_half_free(&self.config)) {
            return;
        }
        let waiting = std::mem::take(&mut queue.waiting_for_room);
        drop(queue);
        let mut callbacks = Callbacks::default();
        callbacks.call_all(waiting);
        callbacks.end();
    }
}

enum Retry {
    Yes,
    No,
}

// A panic with one of these locks held closes the writer.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
