//! The clients of one member, which judge every response.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use consort_cache::{CacheError, OperationError, RawCache};
use consort_group::Rng;
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use super::ledger::Ledger;
use crate::perf::grid::key;

/// Calls after which a client yields even if it never had to wait.
const TURN: u32 = 64;

/// Tolerance beyond a call's timeout: the grid checks calls four times a second, and two cores run four members.
const LATE_AFTER: Duration = Duration::from_secs(2);

const BEAT: Duration = Duration::from_millis(100);

/// A longer time without a completed operation is an interruption.
const STOPPED: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) clients: u32,
    pub(crate) size: usize,
    pub(crate) reads: f64,
    pub(crate) timeout: Duration,
}

#[derive(Clone, Default, Debug, Serialize, Deserialize)]
pub(crate) struct Tally {
    pub(crate) reads: u64,
    pub(crate) writes: u64,
    pub(crate) failed: BTreeMap<String, u64>,
    /// Reads of a value older than the one acknowledged before they began.
    pub(crate) stale: u64,
    pub(crate) wrong: u64,
    pub(crate) hung: u64,
    pub(crate) pause_ms: u64,
    pub(crate) stopped_ms: u64,
}

impl Tally {
    pub(crate) fn add(&mut self, other: &Self) {
        self.reads += other.reads;
        self.writes += other.writes;
        for (kind, count) in &other.failed {
            *self.failed.entry(kind.clone()).or_default() += count;
        }
        self.stale += other.stale;
        self.wrong += other.wrong;
        self.hung += other.hung;
        self.pause_ms = self.pause_ms.max(other.pause_ms);
        self.stopped_ms += other.stopped_ms;
    }
}

pub(crate) struct Clients {
    tasks: JoinSet<Tally>,
    shared: Rc<Shared>,
    beat: tokio::task::JoinHandle<()>,
    timeout: Duration,
}

struct Shared {
    is_over: Cell<bool>,
    beat: Cell<Instant>,
    stopped: Cell<Duration>,
}

impl Shared {
    fn stopped(&self) -> Duration {
        let now = Instant::now();
        let silence = now - self.beat.get();
        if silence > STOPPED {
            self.stopped.set(self.stopped.get() + silence);
            self.beat.set(now);
        }
        self.stopped.get()
    }
}

impl Clients {
    /// Needs a [`tokio::task::LocalSet`].
    pub(crate) fn start(cache: &RawCache, ledger: &Rc<Ledger>, place: usize, load: Load) -> Self {
        let shared = Rc::new(Shared {
            is_over: Cell::new(false),
            beat: Cell::new(Instant::now()),
            stopped: Cell::default(),
        });
        let beating = shared.clone();
        let beat = tokio::task::spawn_local(async move {
            loop {
                tokio::time::sleep(BEAT).await;
                beating.stopped();
                beating.beat.set(Instant::now());
            }
        });
        let mut tasks = JoinSet::new();
        let seed = Rng::new(std::process::id().into()).next_u64();
        for nth in 0..load.clients {
            let own: Vec<u32> =
                ledger.keys_of(place).filter(|key| key % load.clients == nth % load.clients).collect();
            let client = Client {
                cache: cache.with_timeout(load.timeout),
                ledger: ledger.clone(),
                shared: shared.clone(),
                own,
                doubtful: BTreeSet::new(),
                load,
                rng: Rng::new(seed ^ u64::from(nth)),
                tally: Tally::default(),
            };
            tasks.spawn_local(client.work());
        }
        Self { tasks, shared, beat, timeout: load.timeout }
    }

    pub(crate) async fn stop(mut self) -> Tally {
        self.shared.is_over.set(true);
        let mut all = Tally::default();
        let until = tokio::time::Instant::now() + self.timeout + LATE_AFTER;
        loop {
            match tokio::time::timeout_at(until, self.tasks.join_next()).await {
                Ok(Some(Ok(one))) => all.add(&one),
                Ok(Some(Err(error))) => *all.failed.entry(error.to_string()).or_default() += 1,
                Ok(None) => break,
                Err(_) => {
                    all.hung += self.tasks.len() as u64;
                    break;
                }
            }
        }
        all.stopped_ms = self.shared.stopped().as_millis() as u64;
        self.beat.abort();
        all
    }
}

struct Client {
    cache: RawCache,
    ledger: Rc<Ledger>,
    shared: Rc<Shared>,
    own: Vec<u32>,
    /// With an unfinished write, which a later one could overtake.
    doubtful: BTreeSet<u32>,
    load: Load,
    rng: Rng,
    tally: Tally,
}

impl Client {
    async fn work(mut self) -> Tally {
        let (mut success, mut stopped) = (Instant::now(), self.shared.stopped());
        let mut in_a_row = 0;
        while !self.shared.is_over.get() {
            let begin = Instant::now();
            let stopped_before = self.shared.stopped();
            let outcome = if self.own.is_empty() || self.rng.chance(self.load.reads) {
                self.read().await
            } else {
                self.write().await
            };
            let now = Instant::now();
            let stopped_now = self.shared.stopped();
            let ran = (now - begin).saturating_sub(stopped_now - stopped_before);
            self.tally.hung += u64::from(ran > self.load.timeout + LATE_AFTER);
            match outcome {
                Ok(()) => {
                    let pause = (now - success).saturating_sub(stopped_now - stopped);
                    self.tally.pause_ms = self.tally.pause_ms.max(pause.as_millis() as u64);
                    (success, stopped) = (now, stopped_now);
                }
                Err(kind) => {
                    *self.tally.failed.entry(kind.to_owned()).or_default() += 1;
                    // Refusals come at once: they must not become the only work of this process.
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
            in_a_row += 1;
            if in_a_row == TURN {
                in_a_row = 0;
                tokio::task::yield_now().await;
            }
        }
        self.tally
    }

    async fn write(&mut self) -> Result<(), &'static str> {
        let number = self.own[self.rng.below(self.own.len() as u64) as usize];
        if self.doubtful.contains(&number) {
            return self.read().await;
        }
        let count = self.ledger.tried(number).map_err(|_| "Ledger")? + 1;
        self.ledger.note_tried(number, count).map_err(|_| "Ledger")?;
        match self.cache.put(&key(number)[..], &value(number, count, self.load.size)).await {
            Ok(()) => {
                self.ledger.note_acknowledged(number, count).map_err(|_| "Ledger")?;
                self.tally.writes += 1;
                Ok(())
            }
            Err(error) => {
                let kind = kind(&error);
                if matches!(kind, "TimedOut" | "Uncertain") {
                    self.doubtful.insert(number);
                }
                Err(kind)
            }
        }
    }

    async fn read(&mut self) -> Result<(), &'static str> {
        let number = self.rng.below(self.ledger.keys().into()) as u32;
        let least = self.ledger.acknowledged(number).map_err(|_| "Ledger")?;
        let found = self.cache.get(&key(number)[..]).await.map_err(|error| kind(&error))?;
        let most = self.ledger.tried(number).map_err(|_| "Ledger")?;
        match count_of(number, found.as_deref(), self.load.size) {
            Some(count) if count < least => self.tally.stale += 1,
            Some(count) if count <= most => {}
            _ => self.tally.wrong += 1,
        }
        self.tally.reads += 1;
        Ok(())
    }
}

pub(crate) fn kind(error: &CacheError) -> &'static str {
    match error {
        CacheError::Closed => "Closed",
        CacheError::Operation(OperationError::TimedOut(_)) => "TimedOut",
        CacheError::Operation(OperationError::Uncertain) => "Uncertain",
        CacheError::Operation(OperationError::Degraded { .. }) => "Degraded",
        CacheError::Operation(OperationError::TooManyInFlight(_)) => "Busy",
        _ => "Other",
    }
}

pub(crate) fn value(number: u32, count: u64, size: usize) -> Bytes {
    let mut bytes = vec![0; size.max(12)];
    bytes[..8].copy_from_slice(&count.to_be_bytes());
    bytes[8..12].copy_from_slice(&number.to_be_bytes());
    bytes.into()
}

/// 0 without a value, `None` if it is not one of the key's values.
pub(crate) fn count_of(number: u32, found: Option<&[u8]>, size: usize) -> Option<u64> {
    let Some(found) = found else { return Some(0) };
    let (count, rest) = found.split_first_chunk::<8>()?;
    (found.len() == size.max(12) && rest.starts_with(&number.to_be_bytes()))
        .then(|| u64::from_be_bytes(*count))
}
