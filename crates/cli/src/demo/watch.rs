//! What clients do in the course of a test, line by line, and how much it was at which time.

use std::time::{Duration, Instant};

use consort_measure::grouped;

use crate::perf::grid::{Done, Running};

pub(super) const HEAD: &str = "   time  servers  requests/s  failed  undecided";

/// How far a test was when it was looked at last.
pub(super) struct Watch<'a> {
    running: &'a Running,
    pub(super) begin: Instant,
    at: Instant,
    done: Done,
    lap: Lap,
}

/// Operations in a time.
#[derive(Clone, Copy, Default)]
pub(super) struct Lap {
    requests: u64,
    seconds: f64,
}

impl<'a> Watch<'a> {
    pub(super) fn new(running: &'a Running) -> Self {
        let now = Instant::now();
        Self { running, begin: now, at: now, done: running.done(), lap: Lap::default() }
    }

    /// A row of the table after a while, with the servers that the client can use then. Returns operations per second.
    pub(super) async fn row(&mut self, after: Duration, servers: impl Fn() -> usize) -> f64 {
        tokio::time::sleep(after).await;
        let (done, now) = (self.running.done(), Instant::now());
        let seconds = (now - self.at).as_secs_f64();
        let requests = done.operations().saturating_sub(self.done.operations());
        let failed = done.failed.saturating_sub(self.done.failed);
        let undecided = done.undecided.saturating_sub(self.done.undecided);
        (self.at, self.done) = (now, done);
        self.lap.requests += requests;
        self.lap.seconds += seconds;
        let rate = requests as f64 / seconds;
        println!(
            "{:>5.1} s {:>8} {:>11} {failed:>7} {undecided:>10}",
            self.begin.elapsed().as_secs_f64(),
            servers(),
            grouped(rate),
        );
        rate
    }

    /// What was done since the last lap.
    pub(super) fn lap(&mut self) -> Lap {
        std::mem::take(&mut self.lap)
    }
}

/// What the death has done to the rate.
#[derive(Default)]
pub(super) struct Rates {
    pub(super) before: Lap,
    /// From the kill until the others serve what it has served.
    pub(super) unnoticed: Lap,
    pub(super) after: Lap,
}

impl Lap {
    /// Operations per second.
    pub(super) fn rate(&self) -> f64 {
        if self.seconds > 0.0 { self.requests as f64 / self.seconds } else { 0.0 }
    }
}

impl Rates {
    pub(super) fn table(&self) -> String {
        let row = |name, lap: &Lap| format!("{name:<38}{:>12}{:>10.1}\n", grouped(lap.rate()), lap.seconds);
        format!("{:<38}{:>12}{:>10}\n", "", "requests/s", "seconds")
            + &row("before, three servers", &self.before)
            + &row("dead, and the others do not know", &self.unnoticed)
            + &row("after, two servers", &self.after)
    }
}
