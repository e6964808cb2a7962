//! The running step and the remaining time, on standard error.

use std::time::{Duration, Instant};

/// Steps of known share in the whole.
pub(crate) struct Progress {
    begun: Instant,
    /// In seconds, as planned.
    total: f64,
    done: f64,
}

impl Progress {
    pub(crate) fn new(total: Duration) -> Self {
        Self { begun: Instant::now(), total: total.as_secs_f64(), done: 0.0 }
    }

    /// Prints the step that begins.
    pub(crate) fn step(&self, what: &str) {
        eprintln!(
            "[{:>5.1} min, about {} left] {what}",
            self.begun.elapsed().as_secs_f64() / 60.0,
            self.left()
        );
    }

    /// Prints the result of a step.
    pub(crate) fn result(what: &str) {
        eprintln!("    {what}");
    }

    /// Counts a step that is over by its planned duration.
    pub(crate) fn finish(&mut self, planned: Duration) {
        self.done += planned.as_secs_f64();
    }

    /// Returns the remaining time of the plan, at the pace so far.
    fn left(&self) -> String {
        let planned = (self.total - self.done).max(0.0);
        let pace = if self.done > 0.0 { self.begun.elapsed().as_secs_f64() / self.done } else { 1.0 };
        let seconds = planned * pace;
        if seconds < 100.0 { format!("{seconds:.0} s") } else { format!("{:.0} min", seconds / 60.0) }
    }
}
