use std::time::{Duration, Instant};

pub(crate) struct Progress {
    begun: Instant,
    total: f64,
    done: f64,
}

impl Progress {
    pub(crate) fn new(total: Duration) -> Self {
        Self { begun: Instant::now(), total: total.as_secs_f64(), done: 0.0 }
    }

    pub(crate) fn step(&self, what: &str) {
        eprintln!(
            "[{:>5.1} min, about {} left] {what}",
            self.begun.elapsed().as_secs_f64() / 60.0,
            self.left()
        );
    }

    pub(crate) fn result(what: &str) {
        eprintln!("    {what}");
    }

    pub(crate) fn finish(&mut self, planned: Duration) {
        self.done += planned.as_secs_f64();
    }

    fn left(&self) -> String {
        let planned = (self.total - self.done).max(0.0);
        let pace = if self.done > 0.0 { self.begun.elapsed().as_secs_f64() / self.done } else { 1.0 };
        let seconds = planned * pace;
        if seconds < 100.0 { format!("{seconds:.0} s") } else { format!("{:.0} min", seconds / 60.0) }
    }
}
