use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A client that causes many events does not fill the log.
pub(crate) const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// `T` sums up the events since the last line.
#[derive(Default)]
pub(crate) struct RateLimitedLog<T = u64>(Mutex<State<T>>);

#[derive(Default)]
struct State<T> {
    pending: T,
    logged_at: Option<Instant>,
}

impl RateLimitedLog {
    pub(crate) fn count(&self, now: Instant) -> Option<u64> {
        self.add(now, |events| *events += 1)
    }
}

impl<T: Default> RateLimitedLog<T> {
    /// Returns the sum of the events since the last line if a line is due now.
    pub(crate) fn add(&self, now: Instant, add: impl FnOnce(&mut T)) -> Option<T> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        add(&mut state.pending);
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
