//! The writing threads of a process: at most [`THREADS_MAX`], whatever the number of stores.
//!
//! A thread runs one step of a store and puts it behind the others, so that a store's work is ordered and
//! stores take turns. Steps block: if as many disks hang as there are threads, other stores wait.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Threads mostly wait for disks; most disks reach their best throughput with 16 concurrent requests.
const THREADS_MAX: usize = 16;

/// A thread that is idle for longer ends and frees its memory. The last one stays.
const IDLE_TIME_MAX: Duration = Duration::from_secs(10);

static THREADS: LazyLock<Pool> = LazyLock::new(|| Pool::new(THREADS_MAX));

pub(super) trait Job: Send + Sync {
    fn step(&self) -> NextStep;

    /// A step has panicked; no other step follows.
    fn give_up(&self);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextStep {
    /// After one step of each other job.
    Again,
    /// After this time, or on [`Pool::run_now`].
    After(Duration),
    Rest,
}

pub(super) struct Pool {
    threads_max: usize,
    state: Mutex<State>,
    added: Condvar,
}

#[derive(Default)]
struct State {
    ready: VecDeque<Arc<dyn Job>>,
    /// Few jobs, because only failed stores wait for a time.
    later: Vec<(Instant, Arc<dyn Job>)>,
    threads: usize,
    idle: usize,
}

impl State {
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

    /// There is at least one thread from then on.
    pub(super) fn start(&'static self) -> io::Result<()> {
        let mut state = self.state();
        if state.threads == 0 { self.start_thread(&mut state) } else { Ok(()) }
    }

    pub(super) fn add(&'static self, job: Arc<dyn Job>) {
        let mut state = self.state();
        state.ready.push_back(job);
        if state.ready.len() > state.idle && state.threads < self.threads_max {
            // If no thread can be started, the job waits for the existing ones.
            if let Err(error) = self.start_thread(&mut state) {
                tracing::warn!(%error, threads = state.threads, "cannot start another thread for stores");
            }
        }
        drop(state);
        self.added.notify_one();
    }

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
                    // A thread that waits for jobs must learn of the new time.
                    self.added.notify_one();
                }
                NextStep::Rest => {
                    // Dropping the last handle may close the store.
                    drop(state);
                    drop(job);
                    state = self.state();
                }
            }
        }
    }

    fn next<'a>(&'a self, mut state: MutexGuard<'a, State>) -> (MutexGuard<'a, State>, Option<Arc<dyn Job>>) {
        let ends = Instant::now() + IDLE_TIME_MAX;
        loop {
            let now = Instant::now();
            let first = state.wake(now);
            if let Some(job) = state.ready.pop_front() {
                return (state, Some(job));
            }
            // A thread that waits for a time does not end.
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
