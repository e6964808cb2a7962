//! The threads on which the stores of a process write: [`THREADS_MAX`] of them at most, however many stores there are.
//!
//! A job is a store with work to do. One thread at a time has it, takes one step of its work, and puts it behind the other
//! jobs: a store's work is done in order, and stores have turns. A thread is started when a job comes and all are busy. The
//! steps block, so with as many disks that hang as there are threads the other stores wait.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Threads that write to stores, in the process. They wait for disks most of the time, so it is not a matter of CPUs: a disk
/// that is asked by 16 at the same time has its best throughput as a rule.
const THREADS_MAX: usize = 16;

/// A thread ends that had nothing to do for this time, and what it has kept of memory with it. The last one stays.
const IDLE_TIME_MAX: Duration = Duration::from_secs(10);

/// The threads of this process.
static THREADS: LazyLock<Pool> = LazyLock::new(|| Pool::new(THREADS_MAX));

/// A store with work to do.
pub(super) trait Job: Send + Sync {
    /// Does one step of the work.
    fn step(&self) -> NextStep;

    /// A step has panicked. No other one is done.
    fn give_up(&self);
}

/// When a job has its next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextStep {
    /// When the others have had one.
    Again,
    /// After this time, or when [`Pool::run_now`] says so.
    After(Duration),
    /// When it is added again.
    Rest,
}

/// Threads, and the jobs that wait for them.
pub(super) struct Pool {
    threads_max: usize,
    state: Mutex<State>,
    /// A job was added.
    added: Condvar,
}

#[derive(Default)]
struct State {
    ready: VecDeque<Arc<dyn Job>>,
    /// Those that wait for a time. They are few: stores that have failed.
    later: Vec<(Instant, Arc<dyn Job>)>,
    threads: usize,
    idle: usize,
}

impl State {
    /// Moves to those that are ready what was to wait until now, and gives the time of the first that still waits.
    fn wake(&mut self, now: Instant) -> Option<Instant> {
        let due = self.later.extract_if(.., |(at, _)| *at <= now).map(|(_, job)| job);
        self.ready.extend(due);
        self.later.iter().map(|(at, _)| *at).min()
    }
}

impl Pool {
    fn new(threads_max: usize) -> Self {
        Self { threads_max, state: Mutex::default(), added: Condvar::new() }
    }

    pub(super) fn of_process() -> &'static Self {
        &THREADS
    }

    /// Makes sure that there is a thread. From then on there always is one.
    pub(super) fn start(&'static self) -> io::Result<()> {
        let mut state = self.state();
        if state.threads == 0 { self.start_thread(&mut state) } else { Ok(()) }
    }

    /// Adds a job that is not among them.
    pub(super) fn add(&'static self, job: Arc<dyn Job>) {
        let mut state = self.state();
        state.ready.push_back(job);
        if state.ready.len() > state.idle && state.threads < self.threads_max {
            // Without another thread the job waits for those that are there.
            if let Err(error) = self.start_thread(&mut state) {
                tracing::warn!(%error, threads = state.threads, "no further thread for stores can be started");
            }
        }
        drop(state);
        self.added.notify_one();
    }

    /// A job that waits for a time waits no longer.
    pub(super) fn run_now(&self, job: &Arc<dyn Job>) {
        let mut state = self.state();
        let Some(at) = state.later.iter().position(|(_, waits)| Arc::ptr_eq(waits, job)) else { return };
        let (_, job) = state.later.swap_remove(at);
        state.ready.push_back(job);
        drop(state);
        self.added.notify_one();
    }

    fn start_thread(&'static self, state: &mut State) -> io::Result<()> {
        let thread = std::thread::Builder::new().name("consort-store".to_owned());
        thread.spawn(move || self.work())?;
        state.threads += 1;
        Ok(())
    }

    fn work(&self) {
        let mut state = self.state();
        loop {
            let (waiting, job) = self.next(state);
            state = waiting;
            let Some(job) = job else { return };
            drop(state);
            let step = catch_unwind(AssertUnwindSafe(|| job.step()));
            let next = step.unwrap_or_else(|_| {
                job.give_up();
                NextStep::Rest
            });
            state = self.state();
            match next {
                NextStep::Again => state.ready.push_back(job),
                NextStep::After(time) => {
                    state.later.push((Instant::now() + time, job));
                    // One that waits for a job has to know of the time.
                    self.added.notify_one();
                }
                NextStep::Rest => {
                    // The last to have the job may close its store.
                    drop(state);
                    drop(job);
                    state = self.state();
                }
            }
        }
    }

    /// Waits for a job. None: the thread ends.
    fn next<'a>(&'a self, mut state: MutexGuard<'a, State>) -> (MutexGuard<'a, State>, Option<Arc<dyn Job>>) {
        let ends = Instant::now() + IDLE_TIME_MAX;
        loop {
            let now = Instant::now();
            let first = state.wake(now);
            if let Some(job) = state.ready.pop_front() {
                return (state, Some(job));
            }
            // Whoever waits for a time stays for it.
            if now >= ends && state.threads > 1 && first.is_none() {
                state.threads -= 1;
                return (state, None);
            }
            let until = match first {
                Some(first) => first.saturating_duration_since(now),
                None if now < ends => ends - now,
                None => Duration::MAX,
            };
            state.idle += 1;
            state = match until {
                Duration::MAX => self.added.wait(state).unwrap_or_else(PoisonError::into_inner),
                until => self.added.wait_timeout(state, until).unwrap_or_else(PoisonError::into_inner).0,
            };
            state.idle -= 1;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
