use std::time::{Duration, Instant};

use consort_procstat::process;

use crate::{Moved, Test};

pub(crate) struct Meter {
    test: Test,
    begun: Instant,
    measured: Option<(Instant, Duration)>,
    pub(crate) bytes: u64,
    pub(crate) lost: u64,
}

impl Meter {
    pub(crate) fn start(test: Test) -> Self {
        Self { test, begun: Instant::now(), measured: None, bytes: 0, lost: 0 }
    }

    pub(crate) const PATIENCE: Duration = Duration::from_millis(20);

    pub(crate) fn tick(&mut self) -> Option<Moved> {
        let now = Instant::now();
        match self.measured {
            None if now - self.begun >= self.test.warmup => {
                self.measured = Some((now, process::cpu()));
                self.bytes = 0;
                self.lost = 0;
                None
            }
            Some((start, cpu)) if now - start >= self.test.time => Some(Moved {
                bytes: self.bytes,
                seconds: (now - start).as_secs_f64(),
                cpu_s: process::cpu().saturating_sub(cpu).as_secs_f64(),
                rss_mb: process::peak_memory_mb(),
                lost: self.lost,
            }),
            _ => None,
        }
    }
}
