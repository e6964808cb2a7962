//! `consort demo`: what a newcomer sees first.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use consort_measure::grouped;

use crate::join::Join;
use crate::perf::grid::{Figures, Grid, Settings, State, Test, Total, bytes};

/// Starts four members of a grid on this host, puts 100,000 keys, measures, kills a member under load, and looks what is
/// left.
#[derive(Args)]
#[command(
    mut_arg("cluster", |cluster| cluster.default_value("default")),
    after_help = "Examples:\n  consort demo\n  consort demo --config udp.xml --time 2\n\n\
    The exit code is 1 if an operation has failed or a key is not what it was."
)]
pub(crate) struct Demo {
    #[command(flatten)]
    join: Join,
    /// Seconds of the test before a member is killed, and again of the one meanwhile, before and after that.
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0)]
    time: f64,
}

const MEMBERS: usize = 4;
const OWNERS: u16 = 2;
/// How long the first test runs before it counts.
const WARM_UP: Duration = Duration::from_millis(1_000);
/// How often a line is told while nothing happens, and while segments move.
const CALM: Duration = Duration::from_millis(1_000);
const MOVING: Duration = Duration::from_millis(100);
/// How long the cluster may take until everything has two owners again.
const MOVING_MAX: Duration = Duration::from_secs(60);

impl Demo {
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        let settings =
            Settings { time: self.time.max(0.5), read_percentage: 0.8, ..Settings::of(100_000, 1_000) };
        println!("Starting {MEMBERS} members on this host ({}), a process each.", self.join.config);
        let mut grid = Grid::start(&self.join, MEMBERS, OWNERS, &settings, Some("error")).await?;
        let begin = Instant::now();
        grid.populate(&settings).await?;
        println!(
            "They share a cache of {} keys of {}, with {OWNERS} owners of each: put in {:.1} s.",
            grouped(settings.keys.into()),
            bytes(settings.size as f64),
            begin.elapsed().as_secs_f64()
        );
        println!("\n{} invokers in each, 80 % reads:", settings.threads);
        let calm = quiet(&grid, &settings).await?;
        println!("\nOnce more, and a member dies on the way:");
        let (rates, storm) = self.with_a_death(&mut grid, &settings).await?;
        grid.settled().await?;
        let verdict = grid.validate(settings.keys, OWNERS).await?;
        println!("\n{}.", verdict.text(grid.wanted(OWNERS)));
        print!("\n{}", rates.table());
        grid.close().await;
        let errors: u64 = calm.iter().chain(&storm).map(|own| own.errors + own.missing).sum();
        println!("\n{} operations have failed.", grouped(errors as f64));
        let is_good = errors == 0 && verdict.is_good() && calm.len() == MEMBERS && storm.len() == MEMBERS - 1;
        Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// The test under which a member dies. Returns the rates, and what the others have measured.
    async fn with_a_death(
        &self,
        grid: &mut Grid,
        settings: &Settings,
    ) -> anyhow::Result<(Rates, Vec<Figures>)> {
        let own = Duration::from_secs_f64(settings.time);
        let test =
            Test { settings: Settings { time: settings.time * 2.0, ..settings.clone() }, warmup_ms: 0 };
        let running = tokio::spawn(grid.run(&test));
        let mut watch = Watch::new(grid.look().await?);
        println!("{HEAD}");
        while watch.begin.elapsed() < own {
            watch.row(grid, CALM).await?;
        }
        let mut rates = Rates { before: watch.lap(), ..Rates::default() };
        let name = grid.kill_last()?;
        let killed = Instant::now();
        println!("  kill -9 of member {name}");
        let mut is_noticed = false;
        loop {
            let states = watch.row(grid, MOVING).await?;
            if !is_noticed && states.iter().any(|state| state.members == grid.members()) {
                is_noticed = true;
                rates.unnoticed = watch.lap();
                println!("  the others know, {:.2} s after the kill", killed.elapsed().as_secs_f64());
            }
            if states.len() == grid.members() && states.iter().all(|state| is_whole(state, grid.members())) {
                break;
            }
            anyhow::ensure!(killed.elapsed() < MOVING_MAX, "segments move for {MOVING_MAX:?}");
        }
        rates.moving = watch.lap();
        println!(
            "  {OWNERS} owners of each key again, {:.2} s after the kill",
            killed.elapsed().as_secs_f64()
        );
        while watch.begin.elapsed() + CALM < own * 2 {
            watch.row(grid, CALM).await?;
        }
        rates.after = watch.lap();
        Ok((rates, running.await.context("the test")??))
    }
}

/// Whether a member knows of the others only, and waits for nothing.
fn is_whole(state: &State, members: usize) -> bool {
    state.members == members && state.is_stable && state.segments_left == 0
}

/// The test without disturbance, with what comes of it.
async fn quiet(grid: &Grid, settings: &Settings) -> anyhow::Result<Vec<Figures>> {
    let test = Test { settings: settings.clone(), warmup_ms: WARM_UP.as_millis() as u64 };
    let running = tokio::spawn(grid.run(&test));
    // Meanwhile nothing is counted.
    tokio::time::sleep(WARM_UP).await;
    let mut watch = Watch::new(grid.look().await?);
    let mut second = 0;
    while !running.is_finished() {
        tokio::time::sleep(CALM).await;
        let rate = watch.rate(&grid.look().await?);
        second += 1;
        println!("  second {second}: {:>9} requests/s", grouped(rate));
    }
    let figures = running.await.context("the test")??;
    println!();
    figures.iter().for_each(|own| println!("{own}"));
    print!("\n{}", Total::of(&figures).text(settings, "members"));
    Ok(figures)
}

const HEAD: &str = "   time  members  requests/s  segments left   MB left  MB received";

/// How far the cluster was when it was looked at last.
struct Watch {
    begin: Instant,
    at: Instant,
    /// Operations of each member.
    done: BTreeMap<String, u64>,
    lap: Lap,
}

/// Operations in a time.
#[derive(Clone, Copy, Default)]
struct Lap {
    requests: u64,
    seconds: f64,
}

impl Watch {
    fn new(states: Vec<State>) -> Self {
        let now = Instant::now();
        let done = states.iter().map(|state| (state.name.clone(), state.operations())).collect();
        Self { begin: now, at: now, done, lap: Lap::default() }
    }

    /// Operations per second since the last look, of those who were there and still are.
    fn rate(&mut self, states: &[State]) -> f64 {
        let now = Instant::now();
        let seconds = (now - self.at).as_secs_f64();
        self.at = now;
        let mut requests = 0;
        for state in states {
            let count = state.operations();
            // Another test counts from nothing.
            requests += count.saturating_sub(self.done.insert(state.name.clone(), count).unwrap_or(count));
        }
        self.lap.requests += requests;
        self.lap.seconds += seconds;
        requests as f64 / seconds
    }

    /// A row of the table after a while.
    async fn row(&mut self, grid: &Grid, after: Duration) -> anyhow::Result<Vec<State>> {
        tokio::time::sleep(after).await;
        let states = grid.look().await?;
        let rate = self.rate(&states);
        let members = states.iter().map(|state| state.members).min().unwrap_or(0);
        let segments: usize = states.iter().map(|state| state.segments_left).sum();
        let left: u64 = states.iter().map(|state| state.bytes_left).sum();
        let received: u64 = states.iter().map(|state| state.bytes_pulled).sum();
        println!(
            "{:>5.1} s {members:>8} {:>11} {segments:>14} {:>9.1} {:>12.1}",
            self.begin.elapsed().as_secs_f64(),
            grouped(rate),
            left as f64 / 1e6,
            received as f64 / 1e6
        );
        Ok(states)
    }

    /// What was done since the last lap.
    fn lap(&mut self) -> Lap {
        std::mem::take(&mut self.lap)
    }
}

/// What the death has done to the rate.
#[derive(Default)]
struct Rates {
    before: Lap,
    /// From the kill until the others have left the dead member out.
    unnoticed: Lap,
    /// From then until every key has all its owners again.
    moving: Lap,
    after: Lap,
}

impl Rates {
    fn table(&self) -> String {
        let row = |name, lap: &Lap| {
            let rate = if lap.seconds > 0.0 { lap.requests as f64 / lap.seconds } else { 0.0 };
            format!("{name:<34}{:>12}{:>10.1}\n", grouped(rate), lap.seconds)
        };
        format!("{:<34}{:>12}{:>10}\n", "", "requests/s", "seconds")
            + &row("before, four members", &self.before)
            + &row("dead, and the others do not know", &self.unnoticed)
            + &row("while segments move", &self.moving)
            + &row("after, three members", &self.after)
    }
}
