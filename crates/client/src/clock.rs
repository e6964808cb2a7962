//! The client's clock; code that depends on time gets it as an argument.

use std::time::{Duration, Instant};

/// The time since the client was created.
pub(crate) type Time = Duration;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(Instant);

impl Clock {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn now(self) -> Time {
        self.0.elapsed()
    }

    pub(crate) fn instant(self, time: Time) -> tokio::time::Instant {
        // A time beyond tokio's range never comes.
        let far = || self.0 + Duration::from_secs(60 * 60 * 24 * 365);
        self.0.checked_add(time).unwrap_or_else(far).into()
    }
}
