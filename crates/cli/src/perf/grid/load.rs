//! The load of one member. An invoker is a task with one operation in flight, as a thread of IspnPerfTest.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use bytes::Bytes;
use consort_cache::{CacheError, RawCache};
use consort_group::Rng;
use consort_procstat::process;
use hdrhistogram::Histogram;
use quanta::Clock;
use serde::{Deserialize, Serialize};
use tokio::sync::SetOnce;
use tokio::task::JoinSet;

use super::figures::{Extremes, Figures, times};
use super::settings::Settings;
use super::target::{Target, key};
use crate::perf::report::{Counts, histogram};

/// Operations after which an invoker yields, because reads of local keys end within the call; also the most
/// that are counted together.
const TURN: usize = 64;

/// The longest delay until a completed operation is counted: rates of a tenth of a second are exact to a tenth
/// even with few operations.
const COUNTED_WITHIN: Duration = Duration::from_millis(10);

const CHUNK: u32 = 1_000;

#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Test {
    pub(crate) settings: Settings,
    /// At the start; does not count.
    pub(crate) warmup_ms: u64,
}

impl Test {
    pub(crate) fn takes(&self) -> Duration {
        Duration::from_millis(self.warmup_ms) + Duration::from_secs_f64(self.settings.time)
    }
}

#[derive(Default)]
pub(crate) struct Run {
    /// The CPU's counter where that is steady: the kernel's clock takes 25 ns and waits for all earlier
    /// instructions, a tenth of a local read.
    clock: Clock,
    is_measuring: AtomicBool,
    is_over: AtomicBool,
    ended: SetOnce<()>,
    tally: Mutex<Tally>,
}

/// Shared by a member's invokers: histograms of each would not fit the CPU's cache, and the test would measure itself.
struct Tally {
    gets: Histogram<u64>,
    puts: Histogram<u64>,
    errors: u64,
    uncertain: u64,
    missing: u64,
}

impl Default for Tally {
    fn default() -> Self {
        Self { gets: histogram(), puts: histogram(), errors: 0, uncertain: 0, missing: 0 }
    }
}

#[derive(Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct Done {
    pub(crate) gets: u64,
    pub(crate) puts: u64,
    pub(crate) failed: u64,
    /// Failed writes that may have been executed.
    pub(crate) undecided: u64,
}

impl Run {
    fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn end(&self) {
        let _ = self.ended.set(());
    }

    pub(crate) fn done(&self) -> Done {
        let tally = self.tally();
        let failed = tally.errors - tally.uncertain + tally.missing;
        Done { gets: tally.gets.len(), puts: tally.puts.len(), failed, undecided: tally.uncertain }
    }

    /// `cache` returns the cache of each invoker, from 0. `report` gets the lines that a member prints.
    pub(crate) async fn carry_out<C: Target>(
        self: Arc<Self>,
        cache: impl Fn(u32) -> C,
        test: &Test,
        name: &str,
        report: impl Fn(&str),
    ) -> anyhow::Result<Figures> {
        let settings = &test.settings;
        let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut invokers = JoinSet::new();
        for nth in 0..settings.threads {
            invokers.spawn(invoker(cache(nth), settings.clone(), self.clone(), seed(name, nth)));
        }
        tokio::time::sleep(Duration::from_millis(test.warmup_ms)).await;
        let (begin, cpu) = (Instant::now(), process::cpu());
        self.is_measuring.store(true, Relaxed);
        for tenth in 1..=10_u32 {
            let at = begin + Duration::from_secs_f64(settings.time * f64::from(tenth) / 10.0);
            let is_ended = tokio::time::timeout_at(at.into(), self.ended.wait()).await.is_ok();
            report(&format!("{tenth}: {}", self.done().text(begin.elapsed())));
            if is_ended {
                break;
            }
        }
        self.is_over.store(true, Relaxed);
        let (taken, cpu) = (begin.elapsed(), process::cpu().saturating_sub(cpu));
        report(&format!("done (in {} ms)", taken.as_millis()));
        let mut each = Vec::new();
        while let Some(invoker) = invokers.join_next().await {
            each.push(invoker.context("an invoker")?);
        }
        if settings.print_invokers {
            for (nth, (gets, puts)) in each.iter().enumerate() {
                report(&times(&format!("invoker {}", nth + 1), *gets, *puts));
            }
        }
        let sums = each.into_iter().fold(Default::default(), |(gets, puts): (Extremes, Extremes), one| {
            (gets.with(one.0), puts.with(one.1))
        });
        report(&times("all", sums.0, sums.1));
        let tally = self.tally();
        Ok(Figures {
            name: name.to_owned(),
            started_ms: started.as_millis() as u64,
            seconds: taken.as_secs_f64(),
            cpu_s: cpu.as_secs_f64(),
            rss_mb: process::peak_memory_mb(),
            errors: tally.errors,
            uncertain: tally.uncertain,
            missing: tally.missing,
            get: sums.0,
            put: sums.1,
            gets: Counts::of(&tally.gets),
            puts: Counts::of(&tally.puts),
        })
    }
}

impl std::iter::Sum for Done {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            gets: sum.gets + one.gets,
            puts: sum.puts + one.puts,
            failed: sum.failed + one.failed,
            undecided: sum.undecided + one.undecided,
        })
    }
}

impl Done {
    pub(crate) const fn operations(&self) -> u64 {
        self.gets + self.puts
    }

    /// For a tenth of the time (S000-38).
    fn text(self, elapsed: Duration) -> String {
        let grouped = |number: u64| consort_procstat::grouped(number as f64);
        let rate = self.operations() as f64 / elapsed.as_secs_f64();
        format!(
            "{} reqs/sec ({} reads {} writes)",
            consort_procstat::grouped(rate),
            grouped(self.gets),
            grouped(self.puts)
        )
    }
}

/// Members and invokers draw different keys.
fn seed(name: &str, nth: u32) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    (name, nth).hash(&mut hasher);
    hasher.finish()
}

/// Unique, so that different copies are recognised.
fn value(rng: &mut Rng, size: usize) -> Bytes {
    let mut bytes = vec![0; size];
    for (byte, own) in bytes.iter_mut().zip(rng.next_u64().to_be_bytes()) {
        *byte = own;
    }
    bytes.into()
}

async fn invoker<C: Target>(cache: C, settings: Settings, run: Arc<Run>, seed: u64) -> (Extremes, Extremes) {
    let mut rng = Rng::new(seed);
    let (mut gets, mut puts) = (Extremes::default(), Extremes::default());
    let mut taken = Vec::with_capacity(TURN);
    let mut in_a_row = 0;
    let clock = &run.clock;
    let mut begin = clock.raw();
    let mut counted = begin;
    while !run.is_over.load(Relaxed) {
        let key = key(1 + rng.below(settings.keys.into()) as u32);
        let is_read = rng.chance(settings.read_percentage);
        let outcome = if is_read {
            cache.read(key).await
        } else {
            let value = value(&mut rng, settings.size);
            begin = clock.raw();
            cache.write(key, &value).await.map(|()| true)
        };
        let end = clock.raw();
        if run.is_measuring.load(Relaxed) && !run.is_over.load(Relaxed) {
            let nanos = clock.delta_as_nanos(begin, end);
            match outcome {
                Ok(is_there) if is_there || !is_read => taken.push((nanos, is_read)),
                outcome => run.count_failed::<C>(outcome),
            }
            if is_read { &mut gets } else { &mut puts }.count(nanos);
            if taken.len() == TURN || clock.delta(counted, end) >= COUNTED_WITHIN {
                run.count(&mut taken);
                counted = end;
            }
        }
        begin = end;
        in_a_row += 1;
        if in_a_row == TURN {
            in_a_row = 0;
            tokio::task::yield_now().await;
            begin = clock.raw();
        }
    }
    run.count(&mut taken);
    (gets, puts)
}

impl Run {
    /// One by one, the lock would cost a tenth of a read.
    fn count(&self, taken: &mut Vec<(u64, bool)>) {
        let mut tally = self.tally();
        for (nanos, is_read) in taken.drain(..) {
            if is_read { &mut tally.gets } else { &mut tally.puts }.saturating_record(nanos);
        }
    }

    fn count_failed<C: Target>(&self, outcome: Result<bool, C::Error>) {
        let mut tally = self.tally();
        match outcome {
            Ok(_) => tally.missing += 1,
            Err(error) => {
                tally.errors += 1;
                tally.uncertain += u64::from(C::is_uncertain(&error));
                let count = tally.errors;
                drop(tally);
                if count == 1 {
                    tracing::warn!(%error, "the first operation that fails");
                }
            }
        }
    }
}

pub(crate) async fn populate<C: Target>(
    cache: &C,
    keys: std::ops::RangeInclusive<u32>,
    size: usize,
    mut report: impl FnMut(u32),
) -> Result<(), C::Error> {
    let mut rng = Rng::new(seed("populate", *keys.start()));
    let mut done = 0;
    let mut first = *keys.start();
    while first <= *keys.end() {
        let last = first.saturating_add(CHUNK - 1).min(*keys.end());
        let entries: Vec<([u8; 4], Bytes)> =
            (first..=last).map(|number| (key(number), value(&mut rng, size))).collect();
        cache.write_all(&entries).await?;
        done += last - first + 1;
        report(done);
        first = last + 1;
    }
    Ok(())
}

pub(crate) async fn count<C: Target>(cache: &C, keys: u32) -> Result<u32, C::Error> {
    let mut found = 0;
    let mut numbers = 1..=keys;
    loop {
        let mut reading = JoinSet::new();
        for number in numbers.by_ref().take(CHUNK as usize) {
            let cache = cache.clone();
            reading.spawn(async move { cache.read(key(number)).await });
        }
        if reading.is_empty() {
            return Ok(found);
        }
        for is_there in reading.join_all().await {
            found += u32::from(is_there?);
        }
    }
}

pub(crate) async fn clear(cache: &RawCache, keys: u32) -> Result<(), CacheError> {
    let mut first = 1;
    while first <= keys {
        let last = first.saturating_add(CHUNK - 1).min(keys);
        let chunk: Vec<[u8; 4]> = (first..=last).map(key).collect();
        cache.remove_all(chunk.iter().map(|key| &key[..])).await?;
        first = last + 1;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S000-38
    #[test]
    fn a_line_of_progress_has_the_rate_since_the_start() {
        let done = Done { gets: 286_351, puts: 0, ..Done::default() };
        let text = done.text(Duration::from_millis(5_998));
        assert_eq!(text, "47,741 reqs/sec (286,351 reads 0 writes)");
        let text = Done { gets: 800, puts: 200, failed: 3, undecided: 1 }.text(Duration::from_millis(500));
        assert_eq!(text, "2,000 reqs/sec (800 reads 200 writes)");
    }

    #[test]
    fn values_have_their_size_and_differ() {
        let mut rng = Rng::new(1);
        let values = [value(&mut rng, 1_000), value(&mut rng, 1_000)];
        assert_eq!(values[0].len(), 1_000);
        assert_ne!(values[0], values[1]);
        assert_eq!(value(&mut rng, 3).len(), 3);
    }
}
