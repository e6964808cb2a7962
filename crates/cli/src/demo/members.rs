//! Grid members without servers: measured, then one is killed while segments move.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Context;
use consort_procstat::grouped;

use super::rates::{self, Lap};
use super::{CALM, MOVING_MAX, OWNERS, WARM_UP};
use crate::join::Join;
use crate::perf::grid::{Figures, Grid, Settings, State, Test, Total, bytes};

const MEMBERS: usize = 4;

const MOVING: Duration = Duration::from_millis(20);

const UNCHANGED: Duration = Duration::from_millis(250);

const HEAD: &str = "   time  members  requests/s    copies  segments left   MB left";

pub(super) async fn run(join: &Join, settings: &Settings) -> anyhow::Result<bool> {
    println!("Starting {MEMBERS} members on this host ({}), a process each.", join.config);
    let mut grid = Grid::start(join, MEMBERS, OWNERS, settings).await?;
    let begin = Instant::now();
    grid.populate(settings).await?;
    println!(
        "They share a cache of {} keys of {}, with {OWNERS} owners of each: put in {:.1} s.",
        grouped(settings.keys.into()),
        bytes(settings.size as f64),
        begin.elapsed().as_secs_f64()
    );
    println!("\n{} invokers in each, {:.0} % reads:", settings.threads, settings.read_percentage * 100.0);
    let calm = measure_without_faults(&grid, settings).await?;
    println!("\nAgain, and a member is killed meanwhile:");
    let (table, storm) = measure_kill(&mut grid, settings).await?;
    grid.settled().await?;
    let verdict = grid.validate(settings.keys, OWNERS).await?;
    println!("\n{}.", verdict.text(grid.wanted(OWNERS)));
    print!("\n{table}");
    grid.close().await;
    let failed: u64 = calm.iter().chain(&storm).map(|own| own.failed() + own.uncertain).sum();
    println!("\n{} operations have failed.", grouped(failed as f64));
    Ok(failed == 0 && verdict.is_good() && calm.len() == MEMBERS && storm.len() == MEMBERS - 1)
}

async fn measure_without_faults(grid: &Grid, settings: &Settings) -> anyhow::Result<Vec<Figures>> {
    let running =
        tokio::spawn(grid.run(&Test { settings: settings.clone(), warmup_ms: WARM_UP.as_millis() as u64 }));
    // Meanwhile nothing is counted.
    tokio::time::sleep(WARM_UP).await;
    let mut watch = Watch::new(&grid.look().await?);
    let mut second = 0;
    while !running.is_finished() {
        tokio::time::sleep(CALM).await;
        watch.count(&grid.look().await?);
        second += 1;
        println!("  second {second}: {:>9} requests/s", grouped(watch.lap().rate()));
    }
    let figures = running.await.context("the test")??;
    println!();
    figures.iter().for_each(|own| println!("{own}"));
    print!("\n{}", Total::of(&figures).text(settings, "members"));
    Ok(figures)
}

async fn measure_kill(grid: &mut Grid, settings: &Settings) -> anyhow::Result<(String, Vec<Figures>)> {
    let own = Duration::from_secs_f64(settings.time);
    // As long as it takes: it is ended.
    let longest = settings.time * 2.0 + MOVING_MAX.as_secs_f64() * 2.0;
    let test = Test { settings: Settings { time: longest, ..settings.clone() }, warmup_ms: 0 };
    let running = tokio::spawn(grid.run(&test));
    let mut watch = Watch::new(&grid.look().await?);
    println!("{HEAD}");
    while watch.begin.elapsed() < own {
        watch.look(grid, CALM).await?;
    }
    let before = watch.lap();
    let name = grid.kill_last()?;
    let killed = Instant::now();
    println!("  kill -9 of member {name}");
    let mut unnoticed = None;
    loop {
        let states = watch.look(grid, MOVING).await?;
        if unnoticed.is_none() && states.iter().any(|state| state.members == grid.members()) {
            unnoticed = Some(watch.lap());
            println!(
                "  the other members have noticed, {:.2} s after the kill",
                killed.elapsed().as_secs_f64()
            );
        }
        if states.len() == grid.members() && states.iter().all(|state| is_whole(state, grid.members())) {
            break;
        }
        anyhow::ensure!(killed.elapsed() < MOVING_MAX, "segments still move {MOVING_MAX:?} after the kill");
    }
    let moving = watch.lap();
    println!("  {OWNERS} owners of each key again, {:.2} s after the kill", killed.elapsed().as_secs_f64());
    let again = Instant::now();
    while again.elapsed() < own {
        watch.look(grid, CALM).await?;
    }
    let table = rates::table(&[
        ("before, four members", before),
        ("killed, not yet noticed", unnoticed.unwrap_or_default()),
        ("while segments move", moving),
        ("after, three members", watch.lap()),
    ]);
    grid.end_run().await?;
    Ok((table, running.await.context("the test")??))
}

fn is_whole(state: &State, members: usize) -> bool {
    state.members == members && state.is_stable && state.segments_left == 0
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Moved {
    members: usize,
    copies: u64,
    segments_left: usize,
    bytes_left: u64,
}

impl Moved {
    fn of(states: &[State]) -> Self {
        Self {
            members: states.iter().map(|state| state.members).min().unwrap_or(0),
            copies: states.iter().map(|state| state.copies).sum(),
            segments_left: states.iter().map(|state| state.segments_left).sum(),
            bytes_left: states.iter().map(|state| state.bytes_left).sum(),
        }
    }
}

struct Watch {
    begin: Instant,
    at: Instant,
    done: BTreeMap<String, u64>,
    unprinted: Lap,
    printed: Option<Moved>,
    lap: Lap,
}

impl Watch {
    fn new(states: &[State]) -> Self {
        let now = Instant::now();
        let done = states.iter().map(|state| (state.name.clone(), state.operations())).collect();
        Self { begin: now, at: now, done, unprinted: Lap::default(), printed: None, lap: Lap::default() }
    }

    /// Only members that were running and still are.
    fn count(&mut self, states: &[State]) {
        let now = Instant::now();
        let mut requests = 0;
        for state in states {
            let count = state.operations();
            // Another test counts from nothing.
            requests += count.saturating_sub(self.done.insert(state.name.clone(), count).unwrap_or(count));
        }
        let seconds = (now - self.at).as_secs_f64();
        self.at = now;
        self.lap.add(requests, seconds);
        self.unprinted.add(requests, seconds);
    }

    async fn look(&mut self, grid: &Grid, after: Duration) -> anyhow::Result<Vec<State>> {
        tokio::time::sleep(after).await;
        let states = grid.look().await?;
        self.count(&states);
        let moved = Moved::of(&states);
        if self.printed != Some(moved) || self.unprinted.seconds() >= UNCHANGED.as_secs_f64() {
            self.printed = Some(moved);
            println!(
                "{:>5.1} s {:>8} {:>11} {:>9} {:>14} {:>9.1}",
                self.begin.elapsed().as_secs_f64(),
                moved.members,
                grouped(std::mem::take(&mut self.unprinted).rate()),
                grouped(moved.copies as f64),
                moved.segments_left,
                moved.bytes_left as f64 / 1e6
            );
        }
        Ok(states)
    }

    fn lap(&mut self) -> Lap {
        std::mem::take(&mut self.lap)
    }
}
