//! Warnings, counted and logged at most once a minute per cause.

use std::collections::BTreeMap;
use std::time::Duration;

use consort_group::Time;

const INTERVAL: Duration = Duration::from_secs(60);

/// Faults by cause, with rate-limited warnings.
#[derive(Default, Debug)]
pub struct RateLimitedWarnings {
    causes: BTreeMap<&'static str, (u64, Option<Time>)>,
}

impl RateLimitedWarnings {
    /// Counts a fault; calls `detail` and returns true if a warning is due.
    pub fn count(&mut self, now: Time, cause: &'static str, detail: impl FnOnce() -> String) -> bool {
        let (count, warned) = self.causes.entry(cause).or_default();
        *count += 1;
        let is_due = warned.is_none_or(|at| now.since(at) >= INTERVAL);
        if is_due {
            *warned = Some(now);
            tracing::warn!(cause, count, "{}", detail());
        }
        is_due
    }

    /// Returns the counts.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.causes.iter().map(|(&cause, &(count, _))| (cause, count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_logged_once_a_minute_and_always_counted() {
        let mut warnings = RateLimitedWarnings::default();
        let second = |second| Time::ZERO + Duration::from_secs(second);
        let logged = (0..=60).filter(|&at| warnings.count(second(at), "x", String::new)).count();
        assert_eq!(logged, 2);
        assert_eq!(warnings.iter().collect::<Vec<_>>(), [("x", 61)]);
    }
}
