use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context;
use clap::Args;
use consort_procstat::grouped;
use serde::Serialize;

use super::Grid;
use super::control::Used;
use super::figures::{Figures, Total};
use super::load::Test;
use super::settings::Settings;
use crate::allocator::{self, amount};
use crate::join::Join;
use crate::perf::report::Percentiles;

/// Measures how fast a member that joins gets its part, and how long reads take meanwhile.
#[derive(Args)]
#[command(
    mut_arg("cluster", |cluster| cluster.default_value("default")),
    after_help = "Example:\n  \
    consort rebalance --members 3 --megabytes 1000 --invokers 4\n\n\
    With 2 owners the fourth member receives half of all entries: for 1,000 MB\n\
    there are 2,000,000 keys of 1 KB. The exit code is 1 if an operation has\n\
    failed, or a key lacks a copy or has different copies."
)]
pub(crate) struct Rebalance {
    #[command(flatten)]
    join: Join,
    /// Member processes on this host, before one more joins.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    members: u16,
    /// Members that have each key.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..))]
    owners: u16,
    /// Megabytes of values that the joining member receives
    #[arg(long, value_name = "MB", default_value_t = 1_000)]
    megabytes: u64,
    /// Bytes of a value.
    #[arg(long, value_name = "BYTES", default_value_t = 1_000)]
    size: usize,
    /// Invokers per member that read meanwhile; 0: none
    #[arg(long, value_name = "N", default_value_t = 1)]
    invokers: u32,
    /// Seconds of reads before the member joins.
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0)]
    time: f64,
    /// The joining member reserves this much memory first, as a server with --reserve does: 1.6 times its share is enough
    #[arg(long, value_name = "SIZE", value_parser = amount)]
    reserve: Option<u64>,
    /// Print one line of JSON instead of text
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Summary {
    test: &'static str,
    members: usize,
    owners: u16,
    keys: u32,
    size: usize,
    invokers: u32,
    moved_mb: f64,
    seconds: f64,
    mb_sec: f64,
    /// Since the start of the new member's process.
    since_start_s: f64,
    cpu_s: f64,
    rss_mb: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    calm_us: Option<Percentiles>,
    #[serde(skip_serializing_if = "Option::is_none")]
    meanwhile_us: Option<Percentiles>,
    reads_sec_calm: f64,
    reads_sec_meanwhile: f64,
    errors: u64,
    lacking: bool,
}

/// Longer than any rebalance: the member that starts the iteration ends it.
const READING_MAX: f64 = 600.0;

impl Rebalance {
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        if let Some(bytes) = self.reserve {
            allocator::check(bytes)?;
        }
        let members = usize::from(self.members);
        let (before, after) = (f64::from(self.members), f64::from(self.members) + 1.0);
        // The one that joins has the same part of all copies as everybody else; with no more members than owners it gets
        // everything.
        let part = (f64::from(self.owners.min(self.members + 1)) / after).min(1.0);
        let keys = (self.megabytes as f64 * 1e6 / self.size.max(1) as f64 / part).max(1.0) as u32;
        let settings = Settings { threads: self.invokers, time: self.time, ..Settings::of(keys, self.size) };
        let mut grid = Grid::start(&self.join, members, self.owners, &settings).await?;
        let begin = Instant::now();
        grid.populate(&settings).await?;
        eprintln!(
            "{before} members have {} keys, put in {:.1} s",
            grouped(keys.into()),
            begin.elapsed().as_secs_f64()
        );
        let calm = self.read(&grid, &settings).await?;
        let used = grid.used().await?;
        let reading = (self.invokers > 0).then(|| {
            let settings = Settings { time: READING_MAX, ..settings.clone() };
            tokio::spawn(grid.run(&Test { settings, warmup_ms: 0 }))
        });
        let watching = grid.rebalanced(members + 1)?;
        let begin = Instant::now();
        let joined = grid.add(self.owners, &settings, self.reserve)?;
        let seen = watching.await.context("the observer")??;
        let since_start = begin.elapsed();
        grid.end_run().await?;
        let meanwhile = match reading {
            Some(reading) => reading.await.context("the reads")??,
            None => Vec::new(),
        };
        grid.meet().await?;
        let states = grid.states().await?;
        let now = Used::of(&states);
        let moved = states.iter().find(|state| state.name == joined);
        let moved_mb =
            moved.with_context(|| format!("{joined} has not reported its entries"))?.bytes as f64 / 1e6;
        let verdict = grid.validate(keys, self.owners).await?;
        eprintln!("{}", verdict.text(grid.wanted(self.owners)));
        let (calm, meanwhile) = (Total::of(&calm), Total::of(&meanwhile));
        let summary = Summary {
            test: "rebalance",
            members,
            owners: self.owners,
            keys,
            size: self.size,
            invokers: self.invokers,
            moved_mb,
            seconds: seen.seconds,
            mb_sec: moved_mb / seen.seconds,
            since_start_s: since_start.as_secs_f64(),
            cpu_s: now.cpu_s - used.cpu_s,
            rss_mb: now.rss_mb,
            calm_us: calm.latency(),
            meanwhile_us: meanwhile.latency(),
            reads_sec_calm: calm.reqs_sec_cluster,
            reads_sec_meanwhile: meanwhile.reqs_sec_cluster,
            errors: calm.errors + calm.missing + meanwhile.errors + meanwhile.missing,
            lacking: !verdict.is_good(),
        };
        if self.json {
            println!("{}", serde_json::to_string(&summary)?);
        } else {
            print!("{}", summary.text());
        }
        grid.close().await;
        Ok(if summary.errors == 0 && !summary.lacking { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    async fn read(&self, grid: &Grid, settings: &Settings) -> anyhow::Result<Vec<Figures>> {
        if self.invokers == 0 {
            return Ok(Vec::new());
        }
        grid.run(&Test { settings: settings.clone(), warmup_ms: 500 }).await
    }
}

impl Summary {
    fn text(&self) -> String {
        let mut text = format!(
            "{:.0} MB in {:.2} s: {} MB/s, {:.2} s after its start; {:.2} s of CPU in all members, at most {:.0} MB in one\n",
            self.moved_mb,
            self.seconds,
            grouped(self.mb_sec),
            self.since_start_s,
            self.cpu_s,
            self.rss_mb
        );
        let rows = [
            ("before", self.reads_sec_calm, &self.calm_us),
            ("meanwhile", self.reads_sec_meanwhile, &self.meanwhile_us),
        ];
        for (when, rate, times) in rows {
            if let Some(times) = times {
                text += &format!(
                    "reads {when}: {}/s, us 50={:.0} 99={:.0} 99.9={:.0} max={:.0}\n",
                    grouped(rate),
                    times.p50,
                    times.p99,
                    times.p999,
                    times.max
                );
            }
        }
        text
    }
}
