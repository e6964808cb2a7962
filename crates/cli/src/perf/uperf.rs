//! `consort uperf`: synchronous RPCs as JGroups' UPerf (S001, S003).

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use bytes::Bytes;
use clap::Args;
use consort_channel::rpc::{RequestOptions, RpcDispatcher};
use consort_channel::{Address, Flags, View};
use consort_group::Rng;
use consort_procstat::{grouped, process};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use super::cluster::Answer;
use super::member::{Request, Work};
use super::report::{Counts, Percentiles, histogram};
use super::stop_condition::StopCondition;
use super::{Cluster, Common, range};
use crate::terminal::Escaped;

/// Measures remote procedure calls between all members of a cluster.
///
/// Every member calls random others: a read fetches --size bytes from one, a write sends as many to two at once and
/// waits for both.
#[derive(Args)]
#[command(after_help = "A read fetches --size bytes from one member; a write sends as many to --anycast\n\
    members at once and waits for all. A member that is alone calls itself. Peak\n\
    memory is that of each round. The exit code is 1 if a call has failed.\n\n\
    Example, on one host:\n  \
    consort uperf --members 4 --threads 25 --time 10\n\n\
    Example, on three hosts, the first line on two of them, the other on 10.0.0.1:\n  \
    consort uperf --join-only -D jgroups.tcpping.initial_hosts=10.0.0.1[7800]\n  \
    consort uperf --start-none --members 3\n\n\
    Example, as JGroups' UnicastTestRpcDist counts:\n  \
    consort uperf --threads 25 --requests 20000\n\n\
    Example, with two members of JGroups' UPerf (java … org.jgroups.tests.perf.UPerf\n\
    -nohup) on this host:\n  \
    consort uperf --jgroups --start-none --members 3 --bind 127.0.0.1\n\n\
    Example, by hand:\n  \
    consort uperf --menu")]
pub(crate) struct Uperf {
    #[command(flatten)]
    pub(super) common: Common,
    /// Fraction of the calls that are reads
    #[arg(long = "reads", alias = "read", value_name = "FRACTION", default_value_t = 0.8, value_parser = range::fraction)]
    pub(super) read: f64,
    /// Members that a write is sent to
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = range::members)]
    pub(super) anycast: usize,
    /// Out-of-band calls do not wait for each other.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    pub(super) oob: bool,
    /// End when every member has made this many calls, instead of after --time; no warm-up
    #[arg(long, value_name = "N", conflicts_with_all = ["time", "warmup", "menu"], value_parser = range::count)]
    requests: Option<u64>,
    /// Speak with members of JGroups' UPerf, which also start tests: --cluster is uperf by default, and there is no warm-up. --time
    /// is in whole seconds
    #[arg(long, conflicts_with_all = ["menu", "requests", "warmup"])]
    pub(super) jgroups: bool,
    /// Open a menu instead of measuring once
    #[arg(long, visible_alias = "interactive", conflicts_with_all = ["join_only", "json"])]
    pub(super) menu: bool,
}

#[derive(Clone, Serialize, Deserialize)]
struct Test {
    threads: usize,
    size: usize,
    read: f64,
    anycast: usize,
    oob: bool,
    stop: StopCondition,
}

#[derive(Clone, Serialize, Deserialize)]
struct Figures {
    requests: u64,
    errors: u64,
    seconds: f64,
    cpu_s: f64,
    rss_mb: f64,
    latencies: Counts,
}

#[derive(Serialize)]
struct Summary {
    test: &'static str,
    members: usize,
    threads: usize,
    size: usize,
    reqs_sec_node: f64,
    reqs_sec_cluster: f64,
    cpu_s_per_mreq: f64,
    latency_us: Percentiles,
    rss_mb: f64,
    errors: u64,
    /// In a test by number; the slowest member is done.
    #[serde(skip_serializing_if = "Option::is_none")]
    requests: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    seconds: Option<f64>,
}

#[derive(Default)]
pub(super) struct Caller {
    progress: Mutex<Arc<Progress>>,
}

#[derive(Default)]
struct Progress {
    is_measuring: AtomicBool,
    is_over: AtomicBool,
    tally: Mutex<Tally>,
}

/// Shared by a member's callers: one histogram each would not fit the CPU's cache, and the test would measure itself.
struct Tally {
    errors: u64,
    latencies: Histogram<u64>,
}

impl Default for Tally {
    fn default() -> Self {
        Self { errors: 0, latencies: histogram() }
    }
}

impl Tally {
    fn count(&mut self, latency: Duration, is_good: bool) {
        if is_good {
            self.latencies.saturating_record(latency.as_nanos() as u64);
        } else {
            self.errors += 1;
        }
    }
}

impl Progress {
    fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Work for Caller {
    const COUNTED: &'static str = "calls measured";

    fn counted(&self) -> u64 {
        let progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        progress.tally().latencies.len()
    }

    async fn start(self: Arc<Self>, dispatcher: RpcDispatcher, test: Bytes) -> anyhow::Result<Vec<u8>> {
        let test: Test = serde_json::from_slice(&test).context("the test's description")?;
        let progress = Arc::<Progress>::default();
        *self.progress.lock().unwrap_or_else(PoisonError::into_inner) = progress.clone();
        let figures = call(dispatcher, &test, progress).await?;
        Ok(serde_json::to_vec(&figures)?)
    }

    async fn finish(self: Arc<Self>, _: RpcDispatcher, _: Bytes) -> anyhow::Result<Vec<u8>> {
        Ok(b"null".to_vec())
    }
}

async fn call(dispatcher: RpcDispatcher, test: &Test, progress: Arc<Progress>) -> anyhow::Result<Figures> {
    let has_warmup = matches!(test.stop, StopCondition::Time { .. });
    progress.is_measuring.store(!has_warmup, Relaxed);
    let mut callers = JoinSet::new();
    for nth in 0..test.threads as u64 {
        let share = test.stop.share(nth, test.threads as u64);
        callers.spawn(caller(dispatcher.clone(), test.clone(), progress.clone(), nth, share));
    }
    if let StopCondition::Time { warmup_ms, .. } = test.stop {
        tokio::time::sleep(Duration::from_millis(warmup_ms)).await;
    }
    let (start, cpu) = (Instant::now(), process::cpu());
    progress.is_measuring.store(true, Relaxed);
    match test.stop {
        StopCondition::Time { time_ms, .. } => tokio::time::sleep(Duration::from_millis(time_ms)).await,
        StopCondition::Number(_) => all(&mut callers).await?,
    }
    let (seconds, cpu) = (start.elapsed().as_secs_f64(), process::cpu().saturating_sub(cpu));
    progress.is_over.store(true, Relaxed);
    let rss_mb = process::peak_memory_mb();
    all(&mut callers).await?;
    // The next round's peak is its own.
    process::forget_peak_memory();
    let tally = progress.tally();
    Ok(Figures {
        requests: tally.latencies.len(),
        errors: tally.errors,
        seconds,
        cpu_s: cpu.as_secs_f64(),
        rss_mb,
        latencies: Counts::of(&tally.latencies),
    })
}

async fn all(callers: &mut JoinSet<()>) -> anyhow::Result<()> {
    while let Some(done) = callers.join_next().await {
        done.context("a caller")?;
    }
    Ok(())
}

/// A member that is alone calls itself.
fn called(view: Option<&View>, own: &Address) -> Vec<Address> {
    let members = view.map_or(&[][..], View::members);
    let others: Vec<Address> = members.iter().filter(|member| *member != own).cloned().collect();
    if others.is_empty() { vec![own.clone()] } else { others }
}

async fn caller(dispatcher: RpcDispatcher, test: Test, progress: Arc<Progress>, nth: u64, share: u64) {
    let channel = dispatcher.channel();
    let seed =
        channel.address().uuid().map_or(0, |uuid| uuid.least) ^ nth.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut rng = Rng::new(seed);
    let flags = if test.oob { Flags::OOB } else { Flags::NONE };
    let options = RequestOptions::all(Duration::from_secs(30)).with_flags(flags).with_anycast();
    let get = Request::get(test.size);
    let put = Request::Put.with(&vec![0; test.size]);
    let mut views = channel.watch_view();
    let mut others = called(views.borrow_and_update().as_ref(), channel.address());
    let mut made = 0;
    while made < share && !progress.is_over.load(Relaxed) {
        made += 1;
        if views.has_changed().unwrap_or(false) {
            others = called(views.borrow_and_update().as_ref(), channel.address());
        }
        let first = rng.below(others.len() as u64) as usize;
        let is_read = rng.chance(test.read);
        let start = Instant::now();
        let is_good = if is_read {
            dispatcher.call(&others[first], get.clone(), &options).await.is_ok()
        } else {
            let count = test.anycast.min(others.len());
            let dests: Vec<Address> =
                (0..count).map(|step| others[(first + step) % others.len()].clone()).collect();
            let answers = dispatcher.call_members(&dests, put.clone(), &options).await;
            answers.is_ok_and(|answers| answers.iter().all(|answer| answer.result.is_ok()))
        };
        let taken = start.elapsed();
        if progress.is_measuring.load(Relaxed) && !progress.is_over.load(Relaxed) {
            progress.tally().count(taken, is_good);
        }
    }
}

impl Uperf {
    pub(super) async fn round(&self, cluster: &Cluster<Caller>) -> anyhow::Result<bool> {
        let figures = self.measure(cluster).await?;
        self.print(&figures)
    }

    async fn measure(&self, cluster: &Cluster<Caller>) -> anyhow::Result<Vec<Answer<Figures>>> {
        let common = &self.common;
        let test = Test {
            threads: common.threads,
            size: common.size,
            read: self.read,
            anycast: self.anycast,
            oob: self.oob,
            stop: StopCondition::new(self.requests, common),
        };
        eprintln!(
            "{}: {} senders each, {:.0} % reads of {} bytes, {}{}",
            Escaped(cluster.view_text()),
            test.threads,
            test.read * 100.0,
            test.size,
            test.stop.text(common, "calls"),
            if cluster.members() == 1 { ", all to itself" } else { "" }
        );
        cluster.start(&test, test.stop.limit(common)).await
    }

    fn print(&self, figures: &[Answer<Figures>]) -> anyhow::Result<bool> {
        let mut all = histogram();
        let mut rows = vec![
            ["member", "req/s", "mean us", "p99 us", "p99.9 us", "CPU us/req", "peak MB", "errors"]
                .map(str::to_owned)
                .to_vec(),
        ];
        let (mut rate, mut cpu, mut requests, mut rss, mut errors) = (0.0, 0.0, 0, 0.0_f64, 0);
        let seconds = figures.iter().map(|answer| answer.content.seconds).fold(0.0, f64::max);
        for Answer { name, content: figures, .. } in figures {
            let mut own = histogram();
            figures.latencies.add_to(&mut own);
            let percentiles = Percentiles::of(&own);
            let own_rate = figures.requests as f64 / figures.seconds;
            rows.push(vec![
                name.clone(),
                grouped(own_rate),
                format!("{:.0}", percentiles.mean),
                format!("{:.0}", percentiles.p99),
                format!("{:.0}", percentiles.p999),
                format!("{:.2}", figures.cpu_s * 1e6 / (figures.requests.max(1)) as f64),
                format!("{:.1}", figures.rss_mb),
                figures.errors.to_string(),
            ]);
            all += own;
            rate += own_rate;
            cpu += figures.cpu_s;
            requests += figures.requests;
            rss = rss.max(figures.rss_mb);
            errors += figures.errors;
        }
        let summary = Summary {
            test: "uperf",
            members: figures.len(),
            threads: self.common.threads,
            size: self.common.size,
            reqs_sec_node: rate / figures.len().max(1) as f64,
            reqs_sec_cluster: rate,
            cpu_s_per_mreq: cpu * 1e6 / requests.max(1) as f64,
            latency_us: Percentiles::of(&all),
            rss_mb: rss,
            errors,
            requests: self.requests,
            seconds: self.requests.map(|_| seconds),
        };
        rows.push(vec![
            "all".to_owned(),
            grouped(rate),
            format!("{:.0}", summary.latency_us.mean),
            format!("{:.0}", summary.latency_us.p99),
            format!("{:.0}", summary.latency_us.p999),
            format!("{:.2}", summary.cpu_s_per_mreq),
            format!("{rss:.1}"),
            errors.to_string(),
        ]);
        self.common.show(&summary, &rows)?;
        if let (Some(requests), false) = (self.requests, self.common.json) {
            println!("{} calls of every member in {seconds:.2} s", grouped(requests as f64));
        }
        Ok(errors == 0 && requests > 0)
    }
}

#[cfg(test)]
mod tests {
    use consort_channel::ViewId;

    use super::*;

    /// S001-5: a cluster of one makes its calls, too.
    #[test]
    fn a_member_calls_the_others_or_itself_if_alone() {
        let [a, b, c] = [1, 2, 3].map(|seed| Address::random(&mut Rng::new(seed)));
        let view = |members: &[&Address]| {
            let members: Vec<Address> = members.iter().map(|&member| member.clone()).collect();
            View::new(ViewId { creator: a.clone(), id: 1 }, members)
        };
        assert_eq!(called(Some(&view(&[&a, &b, &c])), &b), [a.clone(), c.clone()]);
        assert_eq!(called(Some(&view(&[&a])), &a), std::slice::from_ref(&a));
        assert_eq!(called(None, &a), [a]);
    }
}
