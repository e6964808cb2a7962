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
