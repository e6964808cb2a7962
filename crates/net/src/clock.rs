//! The driver's clock, which turns the host's monotonic time into the stack's.

use std::time::{Duration, Instant};

use consort_group::Time;

/// Stack time, counted from the clock's start.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Instant,
}

impl Clock {
    /// Starts a clock at zero.
    pub fn start() -> Self {
        Self { origin: Instant::now() }
    }

    /// Returns the system's monotonic clock at the origin, in nanoseconds. It is the clock of Java's `nanoTime`.
    pub fn system_origin(self) -> u64 {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let nanos = u128::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000
            + u128::try_from(now.tv_nsec).unwrap_or(0);
        u64::try_from(nanos.saturating_sub(self.origin.elapsed().as_nanos())).unwrap_or(0)
    }

    /// Returns the time now.
    pub fn now(self) -> Time {
        Time::ZERO + self.origin.elapsed()
    }

    /// Returns the stack time of an instant; zero for one before the start.
    pub fn time(self, at: Instant) -> Time {
        Time::ZERO + at.saturating_duration_since(self.origin)
    }

    /// Returns the instant at which the clock shows `at`.
    pub fn instant(self, at: Time) -> Instant {
        self.origin + Duration::from_nanos(at.0)
    }
}
