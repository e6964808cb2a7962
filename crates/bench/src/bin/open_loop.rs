//! A client of a Hot Rod server with a fixed rate of requests.
//!
//! A request that was due while a late response was awaited counts with that wait, so that a server cannot look
//! better by not responding.

use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Parser;
use consort_client::{Client, RawCache};
use consort_procstat::process;
use hdrhistogram::Histogram;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::sleep_until;

/// Sends requests to a server at a steady rate, and prints their response times as one line of JSON.
#[derive(Clone, Parser)]
struct Arguments {
    /// A server, as HOST:PORT or as a URI with a user.
    #[arg(long)]
    server: String,
    /// The id of the server's process.
    #[arg(long)]
    server_pid: u32,
    /// Callers that share a connection, with at most one request under way each.
    #[arg(long, default_value_t = 8)]
    callers: u32,
    /// Requests per second of all callers together.
    #[arg(long, default_value_t = 4_000.0)]
    rate: f64,
    /// Bytes of a value.
    #[arg(long, default_value_t = 1_000)]
    size: usize,
    /// The part of the requests that read.
    #[arg(long, default_value_t = 0.8)]
    reads: f64,
    /// Seconds of the measurement.
    #[arg(long, default_value_t = 3.0)]
    time: f64,
    /// Seconds of requests before the measurement.
    #[arg(long, default_value_t = 1.0)]
    warmup: f64,
}

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const KEYS: usize = 1_000;

struct Seen {
    latencies: Histogram<u64>,
    errors: u64,
    missing: u64,
}

impl Seen {
    fn nothing() -> anyhow::Result<Self> {
        Ok(Self { latencies: Histogram::new_with_bounds(100, 60_000_000_000, 3)?, errors: 0, missing: 0 })
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let begun = Instant::now();
    let client = Client::connect(&arguments.server).await.with_context(|| arguments.server.clone())?;
    let connected = begun.elapsed();
    client.administration().get_or_create("steady", r#"{"distributed-cache": {"owners": 2}}"#).await?;
    let cache = client.raw("steady");
    let value = vec![7; arguments.size];
    for nth in 0..KEYS {
        cache.put(key(nth).as_bytes(), &value[..]).await?;
    }
    let begin = Instant::now() + Duration::from_secs_f64(arguments.warmup);
    let end = begin + Duration::from_secs_f64(arguments.time);
    let mut callers = JoinSet::new();
    for nth in 0..arguments.callers {
        callers.spawn(call(cache.clone(), nth, arguments.clone(), (begin, end)));
    }
    sleep_until(begin.into()).await;
    let before = (process::cpu(), process::cpu_of(arguments.server_pid));
    sleep_until(end.into()).await;
    let cpu = process::cpu().saturating_sub(before.0);
    let server_cpu = process::cpu_of(arguments.server_pid).saturating_sub(before.1);
    let mut all = Seen::nothing()?;
    while let Some(seen) = callers.join_next().await {
        let seen = seen??;
        all.latencies.add(&seen.latencies)?;
        all.errors += seen.errors;
        all.missing += seen.missing;
    }
    let each = |cpu: Duration| cpu.as_secs_f64() * 1e6 / all.latencies.len() as f64;
    let at = |quantile| all.latencies.value_at_quantile(quantile) as f64 / 1e3;
    let said = json!({
        "test": "steady",
        "reqs_sec_cluster": all.latencies.len() as f64 / arguments.time,
        "latency_us": {"p50": at(0.5), "p99": at(0.99), "p99.9": at(0.999)},
        "connected_ms": connected.as_secs_f64() * 1e3,
        "cpu_s_per_mreq": each(cpu),
        "server_cpu_s_per_mreq": each(server_cpu),
        "server_rss_mb": process::peak_memory_mb_of(arguments.server_pid),
        "errors": all.errors,
        "missing": all.missing,
    });
    println!("{said}");
    Ok(())
}

fn key(nth: usize) -> String {
    format!("key-{}", nth % KEYS)
}

/// Requests that are due from `begin` on count.
async fn call(
    cache: RawCache,
    nth: u32,
    arguments: Arguments,
    (begin, end): (Instant, Instant),
) -> anyhow::Result<Seen> {
    let mut seen = Seen::nothing()?;
    let interval = Duration::from_secs_f64(f64::from(arguments.callers) / arguments.rate);
    let value = vec![7; arguments.size];
    // Callers take turns.
    let mut due = Instant::now() + interval * nth / arguments.callers;
    // Reads and writes in their proportion.
    let mut writes = 0.0;
    for asked in nth as usize.. {
        if due >= end {
            break;
        }
        sleep_until(due.into()).await;
        writes += 1.0 - arguments.reads;
        let sent = Instant::now();
        let (key, mut is_missing) = (key(asked * 7), false);
        let answered = if writes >= 1.0 {
            writes -= 1.0;
            cache.put(key.as_bytes(), &value[..]).await.map(drop)
        } else {
            cache.get(key.as_bytes()).await.map(|value| is_missing = value.is_none())
        };
        let took = sent.elapsed();
        if due >= begin {
            seen.latencies.record_correct(took.as_nanos() as u64, interval.as_nanos() as u64)?;
            seen.errors += u64::from(answered.is_err());
            seen.missing += u64::from(is_missing);
        }
        // Requests that were due meanwhile are counted, but not sent later.
        due += interval * (1 + (due.elapsed().as_nanos() / interval.as_nanos()) as u32);
    }
    Ok(seen)
}
