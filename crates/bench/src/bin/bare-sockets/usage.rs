//! What this process has used so far, from /proc, as the performance tools of the command read it.

use std::time::{Duration, Instant};

use crate::{Moved, Test};

/// Splits a run into warm-up and measurement, and counts what comes in during the second.
pub(crate) struct Meter {
    test: Test,
    begun: Instant,
    measured: Option<(Instant, f64)>,
    /// Bytes while measuring.
    pub(crate) bytes: u64,
    /// Datagrams that did not come while measuring.
    pub(crate) lost: u64,
}

impl Meter {
    pub(crate) fn start(test: Test) -> Self {
        Self { test, begun: Instant::now(), measured: None, bytes: 0, lost: 0 }
    }

    /// How long to wait for sockets at most.
    pub(crate) const PATIENCE: Duration = Duration::from_millis(20);

    /// Looks at the clock. Returns what was moved when the time is over.
    pub(crate) fn tick(&mut self) -> Option<Moved> {
        let now = Instant::now();
        match self.measured {
            None if now - self.begun >= self.test.warmup => {
                self.measured = Some((now, cpu_seconds()));
                self.bytes = 0;
                self.lost = 0;
                None
            }
            Some((start, cpu)) if now - start >= self.test.time => Some(Moved {
                bytes: self.bytes,
                seconds: (now - start).as_secs_f64(),
                cpu_s: cpu_seconds() - cpu,
                rss_mb: peak_memory_mb(),
                lost: self.lost,
            }),
            _ => None,
        }
    }
}

/// CPU time, user and system.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // Fields 14 and 15 are ticks of 10 ms; the name in brackets may hold spaces.
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let ticks = after_name.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<u64>().ok());
    ticks.sum::<u64>() as f64 / 100.0
}

fn peak_memory_mb() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kilobytes = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok());
    kilobytes.unwrap_or_default() / 1_000.0
}
