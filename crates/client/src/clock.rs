//! The time of a client. What decides by it gets it as an argument.

use std::time::{Duration, Instant};

/// Since the client began.
pub(crate) type Time = Duration;

/// Where a client has its time from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(Instant);

impl Clock {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn now(self) -> Time {
        self.0.elapsed()
    }

    /// The same point in time, as timers want it.
    pub(crate) fn instant(self, time: Time) -> tokio::time::Instant {
        // What is too far away to be said never comes.
        let far = || self.0 + Duration::from_secs(60 * 60 * 24 * 365);
        self.0.checked_add(time).unwrap_or_else(far).into()
    }
}
