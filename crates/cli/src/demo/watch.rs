use std::time::{Duration, Instant};

use consort_procstat::grouped;

use super::rates::Lap;
use crate::perf::grid::{Done, Running};

pub(super) const HEAD: &str = "   time  servers  requests/s  failed  undecided";

pub(super) struct Watch<'a> {
    running: &'a Running,
    pub(super) begin: Instant,
    at: Instant,
    done: Done,
    lap: Lap,
}

impl<'a> Watch<'a> {
    pub(super) fn new(running: &'a Running) -> Self {
        let now = Instant::now();
        Self { running, begin: now, at: now, done: running.done(), lap: Lap::default() }
    }

    pub(super) async fn row(&mut self, after: Duration, servers: impl Fn() -> usize) -> f64 {
        tokio::time::sleep(after).await;
        let (done, now) = (self.running.done(), Instant::now());
        let seconds = (now - self.at).as_secs_f64();
        let requests = done.operations().saturating_sub(self.done.operations());
        let failed = done.failed.saturating_sub(self.done.failed);
        let undecided = done.undecided.saturating_sub(self.done.undecided);
        (self.at, self.done) = (now, done);
        self.lap.add(requests, seconds);
        let rate = requests as f64 / seconds;
        println!(
            "{:>5.1} s {:>8} {:>11} {failed:>7} {undecided:>10}",
            self.begin.elapsed().as_secs_f64(),
            servers(),
            grouped(rate),
        );
        rate
    }

    pub(super) fn lap(&mut self) -> Lap {
        std::mem::take(&mut self.lap)
    }
}
