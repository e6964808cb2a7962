//! One line in the log for many attempts.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often it is told at most that somebody could not show who it is: whoever tries passwords does not fill the log.
const TOLD_EVERY: Duration = Duration::from_secs(10);

/// Attempts that have failed.
#[derive(Default)]
pub(crate) struct Complaints(Mutex<State>);

#[derive(Default)]
struct State {
    untold: u64,
    told_at: Option<Instant>,
}

impl Complaints {
    /// One more. Its count since the last time, if it is to be told now.
    pub(crate) fn count(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.untold += 1;
        if state.told_at.is_some_and(|told_at| now.saturating_duration_since(told_at) < TOLD_EVERY) {
            return None;
        }
        state.told_at = Some(now);
        Some(std::mem::take(&mut state.untold))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_attempts_are_told_together() {
        let (complaints, now) = (Complaints::default(), Instant::now());
        assert_eq!(complaints.count(now), Some(1));
        for _ in 0..100 {
            assert_eq!(complaints.count(now + TOLD_EVERY / 2), None);
        }
        assert_eq!(complaints.count(now + TOLD_EVERY), Some(101));
    }
}
