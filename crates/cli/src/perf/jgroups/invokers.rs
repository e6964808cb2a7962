//! The calls of a member, as UPerf's invokers make them: reads from any member, and writes to the members after this one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use consort_channel::rpc::{RequestOptions, RpcDispatcher};
use consort_channel::{Address, Flags, Payload};
use consort_group::Rng;
use consort_group::wire::{UperfCall, UperfResults, UperfTimes, encode_uperf_call};
use tokio::task::JoinSet;

use super::settings::Settings;

/// Stands for none.
const TIMEOUT_MAX: Duration = Duration::from_hours(1);

#[derive(Clone, Copy, Default)]
struct Times {
    count: u64,
    sum: f64,
    min: f64,
    max: f64,
}

impl Times {
    fn add(&mut self, time: Duration) {
        let time = time.as_nanos() as f64;
        self.min = if self.count == 0 { time } else { self.min.min(time) };
        self.max = self.max.max(time);
        self.sum += time;
        self.count += 1;
    }

    fn merge(&mut self, other: &Self) {
        if other.count > 0 {
            self.min = if self.count == 0 { other.min } else { self.min.min(other.min) };
            self.max = self.max.max(other.max);
            self.sum += other.sum;
            self.count += other.count;
        }
    }

    /// Java computes with them in any case.
    fn summary(&self) -> UperfTimes {
        UperfTimes { min: self.min, mean: self.sum / self.count.max(1) as f64, max: self.max }
    }
}

#[derive(Clone, Copy, Default)]
struct Calls {
    gets: Times,
    puts: Times,
    failed: u64,
}

struct Invoker {
    dispatcher: RpcDispatcher,
    members: Arc<[Address]>,
    settings: Settings,
    until: Instant,
    counted: Arc<AtomicU64>,
    value: Bytes,
}

/// The members after this one, and so itself if there are too few.
fn written_to(members: &[Address], own: &Address, count: usize) -> Vec<Address> {
    let begin = members.iter().position(|member| member == own).map_or(0, |at| at + 1);
    let count = count.min(members.len());
    (begin..begin + count).map(|at| members[at % members.len()].clone()).collect()
}

impl Invoker {
    async fn run(self, nth: u64) -> Calls {
        let own = self.dispatcher.channel().address();
        let mut rng =
            Rng::new(own.uuid().map_or(0, |uuid| uuid.least) ^ nth.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let flags = if self.settings.oob { Flags::OOB } else { Flags::NONE };
        let timeout = match self.settings.timeout {
            0 => TIMEOUT_MAX,
            milliseconds => Duration::from_millis(milliseconds.unsigned_abs()),
        };
        let options = RequestOptions::all(timeout).with_flags(flags).with_anycast();
        let [get, put] = [UperfCall::Get, UperfCall::Put(self.value.clone())]
            .map(|call| Payload::Object(Box::new(encode_uperf_call(&call))));
        let written_to = written_to(&self.members, own, usize::try_from(self.settings.anycast).unwrap_or(0));
        let mut calls = Calls::default();
        while Instant::now() < self.until {
            let start = Instant::now();
            let is_read = rng.chance(self.settings.reads);
            let is_good = if is_read {
                let from = &self.members[rng.below(self.members.len() as u64) as usize];
                self.dispatcher.call(from, get.clone(), &options).await.is_ok()
            } else if written_to.is_empty() {
                // As in Java, a write to no member takes no time.
                tokio::task::yield_now().await;
                true
            } else {
                let answers = self.dispatcher.call_members(&written_to, put.clone(), &options).await;
                answers.is_ok_and(|answers| answers.iter().all(|answer| answer.result.is_ok()))
            };
            match (is_good, is_read) {
                (true, true) => calls.gets.add(start.elapsed()),
                (true, false) => calls.puts.add(start.elapsed()),
                (false, _) => calls.failed += 1,
            }
            self.counted.fetch_add(1, Ordering::Relaxed);
        }
        calls
    }
}

/// Also returns the number of failed calls.
///
/// # Errors
///
/// If an invoker panicked, or there is no view.
pub(super) async fn run(
    dispatcher: &RpcDispatcher,
    settings: &Settings,
    counted: &Arc<AtomicU64>,
) -> anyhow::Result<(UperfResults, u64)> {
    let view = dispatcher.channel().view();
    let members: Arc<[Address]> = view.iter().flat_map(|view| view.members()).cloned().collect();
    anyhow::ensure!(!members.is_empty(), "this member has no view");
    counted.store(0, Ordering::Relaxed);
    let value = Bytes::from(vec![0; usize::try_from(settings.size).unwrap_or(0)]);
    let begin = Instant::now();
    let until = begin + Duration::from_secs(u64::from(settings.seconds.unsigned_abs()));
    let mut invokers = JoinSet::new();
    for nth in 0..u64::from(settings.threads.unsigned_abs()) {
        let invoker = Invoker {
            dispatcher: dispatcher.clone(),
            members: members.clone(),
            settings: settings.clone(),
            until,
            counted: counted.clone(),
            value: value.clone(),
        };
        invokers.spawn(invoker.run(nth));
    }
    let mut all = Calls::default();
    while let Some(calls) = invokers.join_next().await {
        let calls = calls?;
        all.gets.merge(&calls.gets);
        all.puts.merge(&calls.puts);
        all.failed += calls.failed;
    }
    let results = UperfResults {
        gets: all.gets.count as i64,
        puts: all.puts.count as i64,
        milliseconds: begin.elapsed().as_millis() as i64,
        get_times: Some(all.gets.summary()),
        put_times: Some(all.puts.summary()),
    };
    Ok((results, all.failed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_go_to_the_members_after_this_one() {
        let [a, b, c] = [1, 2, 3].map(|seed| Address::random(&mut Rng::new(seed)));
        let members = [a.clone(), b.clone(), c.clone()];
        assert_eq!(written_to(&members, &b, 2), [c.clone(), a.clone()]);
        assert_eq!(written_to(&members, &c, 9), [a, b.clone(), c]);
        assert!(written_to(&members, &b, 0).is_empty());
    }

    #[test]
    fn times_of_invokers_are_merged() {
        let (mut one, mut other) = (Times::default(), Times::default());
        one.merge(&other);
        assert_eq!(one.summary(), UperfTimes::default());
        one.add(Duration::from_nanos(2));
        one.add(Duration::from_nanos(4));
        other.add(Duration::from_nanos(9));
        one.merge(&other);
        assert_eq!(one.summary(), UperfTimes { min: 2.0, mean: 5.0, max: 9.0 });
    }
}
