//! Servers that are killed under load, one after the other: how long until requests are answered as before.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use consort_procstat::grouped;
use consort_procstat::recovery::{Samples, Spread, ViewOrder, sample};

use super::servers::Servers;
use super::{CALM, MOVING_MAX, OWNERS, WARM_UP};
use crate::doctor::port_probe::health;
use crate::join::Join;
use crate::perf::grid::{Clients, Figures, Running, Settings, Test};
use crate::perf::member_name;

const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A member that starts again receives its entries meanwhile.
const SETTLE_TIME_MAX: Duration = Duration::from_secs(120);

const HEAD: &str = "  kill  server  coordinator  requests/s  first answer  previous rate";

struct Kill {
    server: String,
    is_coordinator: bool,
    samples: Samples,
}

impl Kill {
    fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "server": self.server,
            "coordinator": self.is_coordinator,
            "requests_per_second": self.samples.before.round(),
            "first_answer_ms": self.samples.until_answered().map(milliseconds),
            "previous_rate_ms": self.samples.until_previous_rate().map(milliseconds),
        })
    }
}

fn milliseconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e4).round() / 10.0
}

pub(super) async fn run(
    join: &Join,
    servers: usize,
    kills: usize,
    settings: &Settings,
    is_json: bool,
) -> anyhow::Result<bool> {
    let mut order = ViewOrder::new(servers);
    let mut servers = Servers::start(join, servers).await?;
    let at: Vec<String> = servers.addresses().iter().map(ToString::to_string).collect();
    let clients = Clients::connect(&at.join(","), 1, 1, OWNERS).await?;
    clients.populate(&Test { settings: settings.clone(), warmup_ms: 0 }).await?;
    settle(&servers, &clients).await?;
    // An upper limit: `running.end()` ends the test.
    let longest = settings.time * kills as f64 + SETTLE_TIME_MAX.as_secs_f64() * (kills + 1) as f64;
    let test = Test { settings: Settings { time: longest, ..settings.clone() }, warmup_ms: 0 };
    let running = clients.start(&test);
    tokio::time::sleep(WARM_UP).await;
    if !is_json {
        println!("{HEAD}");
    }
    let mut all = Vec::new();
    for nth in 0..kills {
        let (victim, is_coordinator) = order.next_victim(nth);
        let samples = kill(&mut servers, victim, &running).await?;
        let kill = Kill { server: member_name(victim), is_coordinator, samples };
        if !is_json {
            print_row(nth, &kill);
        }
        all.push(kill);
        servers.start_again(victim).await?;
        settle(&servers, &clients).await?;
        tokio::time::sleep(CALM).await;
    }
    running.end();
    let figures = running.figures().await.context("the test")?;
    let uncertain: u64 = figures.iter().map(|own| own.uncertain).sum();
    let failed: u64 = figures.iter().map(Figures::failed).sum();
    print_summary(&all, failed, uncertain, is_json);
    servers.end().await?;
    Ok(failed == 0 && all.iter().all(|kill| kill.samples.until_previous_rate().is_some()))
}

async fn kill(servers: &mut Servers, victim: usize, running: &Running) -> anyhow::Result<Samples> {
    let counter = running.counter();
    let operations = move || counter().operations();
    let (begin, done) = (Instant::now(), operations());
    tokio::time::sleep(CALM).await;
    let before = (operations() - done) as f64 / begin.elapsed().as_secs_f64();
    let killed = Instant::now();
    servers.kill(victim)?;
    // A thread of its own: the runtime's tasks may be late.
    let samples = tokio::task::spawn_blocking(move || sample(&operations, before, killed, MOVING_MAX));
    samples.await.context("the samples")
}

/// Waits until all servers are members, and own their entries.
async fn settle(servers: &Servers, clients: &Clients) -> anyhow::Result<()> {
    let begin = Instant::now();
    loop {
        let all = servers.addresses();
        if clients.servers() == all.len() && are_healthy(all).await {
            return Ok(());
        }
        ensure!(begin.elapsed() < SETTLE_TIME_MAX, "the servers are not healthy {SETTLE_TIME_MAX:?} later");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

async fn are_healthy(all: &[SocketAddr]) -> bool {
    for &at in all {
        let report = health(at, &at.ip().to_string(), CALM).await;
        if report.is_none_or(|report| report.health != "HEALTHY") {
            return false;
        }
    }
    true
}

fn print_row(nth: usize, kill: &Kill) {
    let shown = |time: Option<Duration>| {
        time.map_or_else(|| "never".to_owned(), |time| format!("{:.1} ms", milliseconds(time)))
    };
    println!(
        "{:>6}  {:>6}  {:>11}  {:>10}  {:>12}  {:>13}",
        nth + 1,
        kill.server,
        if kill.is_coordinator { "yes" } else { "no" },
        grouped(kill.samples.before),
        shown(kill.samples.until_answered()),
        shown(kill.samples.until_previous_rate())
    );
}

fn print_summary(all: &[Kill], failed: u64, uncertain: u64, is_json: bool) {
    // A kill after which nothing was answered counts as the longest time.
    let of = |time: fn(&Samples) -> Option<Duration>| -> Vec<Duration> {
        all.iter().map(|kill| time(&kill.samples).unwrap_or(MOVING_MAX)).collect()
    };
    let (answered, resumed) =
        (Spread::of(of(Samples::until_answered)), Spread::of(of(Samples::until_previous_rate)));
    let median = [answered.median, resumed.median].map(milliseconds);
    let worst = [answered.worst, resumed.worst].map(milliseconds);
    if is_json {
        let kills: Vec<serde_json::Value> = all.iter().map(Kill::json).collect();
        let summary = serde_json::json!({
            "kills": kills,
            "first_answer_ms": {"median": median[0], "worst": worst[0]},
            "previous_rate_ms": {"median": median[1], "worst": worst[1]},
            "failed": failed,
            "uncertain": uncertain,
        });
        return println!("{summary}");
    }
    println!(
        "\nFrom a kill to the first answer after the longest pause: median {} ms, worst {} ms.\n\
         From a kill to 80 % of the previous rate: median {} ms, worst {} ms.\n\
         {} requests have failed, and the result of {} writes is unknown.",
        median[0],
        worst[0],
        median[1],
        worst[1],
        grouped(failed as f64),
        grouped(uncertain as f64)
    );
}
