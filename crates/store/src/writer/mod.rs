//! Writes to a store in order, and the bounded queue before it. The threads that do so are the process's ([`pool`]).
//!
//! Several changes of one key that wait together are stored as one, the last; changes that wait are stored many at a time,
//! so a store that makes each call safe pays for it once. Between batches the writer puts the store's files in order.
//!
//! * **Write-through**: a change's callback is called when it is stored, or could not be.
//! * **Write-behind**: the callback is called when the change is queued. What cannot be stored stays in the queue and is
//!   tried again, until the queue is full and refuses more: nothing is dropped in silence.
//!
//! Orders that concern many keys ([`Writer::clear`] and so on) wait in the same queue and are not bounded: they take some
//! words each, and their callers wait for them.
//!
//! Callbacks run on a writing thread, or on the caller's if there is nothing to wait for. They must not block, as the threads
//! write for other stores, too. If one panics, its writer closes and
//! fails all requests that still wait; the other callbacks of the same batch are called as usual.

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

/// Told once how it went.
pub type Done = Box<dyn FnOnce(Result<(), Arc<StoreError>>) + Send>;

/// Something to do with a store.
pub type Task = Box<dyn FnOnce(&dyn Store) + Send>;

/// Told of errors for which nobody waits.
type Report = Box<dyn Fn(&StoreError) + Send>;

/// Bytes that the writer spends on the store's files between two batches, at least. Large enough to keep up with small
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
    /// True if the writer is closed, false if the queue is full ([`Writer::on_room`]).
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
    /// Begins to write to this store, and reports what fails with no caller waiting for it.
    ///
    /// # Errors
    ///
    /// If the process has no thread for it and none can be started.
    pub fn spawn(
        store: Arc<dyn Store>,
        config: WriterConfig,
        report: impl Fn(&StoreError) + Send + 'static,
    ) -> Result<Self, StoreError> {
        Pool::of_process().start().map_err(|error| StoreError::io("start", "a thread", error))?;
        let progress = Mutex::new(Progress { report: Box::new(report), is_maintained: true, is_failing: false });
        let (queue, closed, ended) = (Mutex::default(), Mutex::default(), Condvar::new());
        let worker = Arc::new(Worker { store, config, queue, progress, closed, ended });
        Ok(Self { worker, is_ended: false })
    }

    /// The store. Reads of it do not see what still waits.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.worker.store
    }

    /// Takes a change if there is room for it.
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

    /// Calls back once the queue has room: at least half of it is free. At once if it is so.
    pub fn on_room(&self, wake: Box<dyn FnOnce() + Send>) {
        let mut queue = self.worker.queue();
        if queue.is_closed || queue.is_half_free(&self.worker.config) {
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

    /// Runs something else on the store, on a writing thread, after everything that waits: a purge, say.
    pub fn run(&self, task: Task) {
        self.order(Order::Run(task));
    }

    /// The entry of a key, as it is once all that waits is stored.
    pub fn load(&self, segment: Segment, key: &[u8]) -> Result<Option<Entry>, StoreError> {
        match self.pending(segment, key) {
            Some(entry) => Ok(entry),
            None => self.worker.store.load(segment, key),
        }
    }

    /// The entry that a key gets from what waits. Some(None): it is removed; None: nothing waits for it.
    pub fn pending(&self, segment: Segment, key: &[u8]) -> Option<Option<Entry>> {
        self.worker.queue().pending(segment, key)
    }

    /// Changes that wait.
    pub fn waiting(&self) -> usize {
        self.worker.queue().changes()
    }

    /// Stores all that waits and closes the store. What write-behind cannot store now is lost, and
    /// counted.
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

    /// Has a thread come to the queue, unless one will anyway.
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
                tracing::error!(lost = closed.lost, "changes could not be stored");
            }
        }
    }
}

/// What threads that write for this store share with its callers.
struct Worker {
    store: Arc<dyn Store>,
    config: WriterConfig,
    queue: Mutex<Queue>,
    /// For the thread that has the job: one at a time.
    progress: Mutex<Progress>,
    closed: Mutex<CloseOutcome>,
    ended: Condvar,
}

struct Progress {
    report: Report,
    /// The store's files are in order.
    is_maintained: bool,
    /// What was to be stored waits again.
    is_failing: bool,
}

/// What has been lost so far, and whether there is nothing more to come.
#[derive(Default)]
struct CloseOutcome {
    has_ended: bool,
    result: Closed,
}

/// What is to be done for a store.
enum NextWork {
    Work(Work),
    /// Nothing, and no thread will look until one is scheduled.
    Nothing,
    /// Nothing more.
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
                // Also if something has failed: on a full disk this is what makes room. Then it waits for the next try.
                let is_maintained = self.maintain_files(MAINTAIN_BYTES.max(4 * bytes as u64), &progress.report);
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

    /// Nothing more is done: callers do not wait for it.
    fn refuse_queued(&self) {
        let mut queue = self.queue();
        let left = std::mem::replace(&mut *queue, Queue::closed());
        drop(queue);
        left.fail(&Arc::new(StoreError::Closed));
    }

    /// Stores a batch. False: something of it waits again.
    fn store_batch(&self, batch: queue::Batch, report: &Report) -> bool {
        // Asked before: what has failed and is not tried again must have been tried since.
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
            // One by one, so that each error is of the change that it is reported for.
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

    /// A store that panics has stored nothing, as far as its callers are told; its writer closes.
    fn try_store(&self, changes: &[Change], callbacks: &mut Callbacks) -> Result<(), StoreError> {
        callbacks.call(|| self.store.store(changes)).unwrap_or(Err(StoreError::Closed))
    }

    /// Tells of a change that could not be stored, and whether it is to be tried again.
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

    /// Puts the store's files in order. True: nothing more to do, or not now.
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

/// Whether a change is tried again.
enum Retry {
    Yes,
    No,
}

// A panic while one of these is held closes the writer.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
