//! Rate-limited logging: one line for many events.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The interval between two lines: a client that causes many events, such as failed logins, does not fill the log.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// A line of the log that is written at most once per interval.
#[derive(Default)]
pub(crate) struct RateLimitedLog(Mutex<State>);

#[derive(Default)]
struct State {
    pending: u64,
    logged_at: Option<Instant>,
}

impl RateLimitedLog {
    /// Counts an event. Returns the events since the last line if a line is due now.
    pub(crate) fn count(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.pending += 1;
        if state.logged_at.is_some_and(|logged_at| now.saturating_duration_since(logged_at) < LOG_INTERVAL) {
            return None;
        }
        state.logged_at = Some(now);
        Some(std::mem::take(&mut state.pending))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_events_are_logged_in_one_line() {
        let (log, now) = (RateLimitedLog::default(), Instant::now());
        assert_eq!(log.count(now), Some(1));
        for _ in 0..100 {
            assert_eq!(log.count(now + LOG_INTERVAL / 2), None);
        }
        assert_eq!(log.count(now + LOG_INTERVAL), Some(101));
    }
}
