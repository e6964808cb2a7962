//! The only clock: it turns the host's monotonic time into the stack's.

use std::time::{Duration, Instant};

use consort_group::Time;

/// Counts from the moment it was made.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Instant,
}

impl Clock {
    /// A clock that shows zero now.
    pub fn start() -> Self {
        Self { origin: Instant::now() }
    }

    /// The time now.
    pub fn now(self) -> Time {
        Time::ZERO + self.origin.elapsed()
    }

    /// What the clock shows at that moment; zero for one before its start.
    pub fn time(self, at: Instant) -> Time {
        Time::ZERO + at.saturating_duration_since(self.origin)
    }

    /// When the clock will show `at`.
    pub fn instant(self, at: Time) -> Instant {
        self.origin + Duration::from_nanos(at.0)
    }
}
