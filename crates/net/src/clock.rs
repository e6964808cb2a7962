use std::time::{Duration, Instant};

use consort_group::Time;

/// Stack time, from zero.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Instant,
}

impl Clock {
    /// Starts a clock.
    pub fn start() -> Self {
        Self { origin: Instant::now() }
    }

    /// Returns the system's monotonic clock (Java's `nanoTime`) at the origin, in nanoseconds.
    pub fn system_origin(self) -> u64 {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let nanos = u128::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000
            + u128::try_from(now.tv_nsec).unwrap_or(0);
        u64::try_from(nanos.saturating_sub(self.origin.elapsed().as_nanos())).unwrap_or(0)
    }

    /// Returns the time.
    pub fn now(self) -> Time {
        Time::ZERO + self.origin.elapsed()
    }

    /// Returns an instant's stack time, at least zero.
    pub fn time(self, at: Instant) -> Time {
        Time::ZERO + at.saturating_duration_since(self.origin)
    }

    /// Returns the instant of a stack time.
    pub fn instant(self, at: Time) -> Instant {
        self.origin + Duration::from_nanos(at.0)
    }
}
