use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Common;

/// Of a test by number.
const RUN_TIME_MAX: Duration = Duration::from_secs(6 * 60 * 60);

#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) enum StopCondition {
    Time {
        /// At the start; does not count.
        warmup_ms: u64,
        time_ms: u64,
    },
    /// Every member sends this number; all count.
    Number(u64),
}

impl StopCondition {
    pub(crate) fn new(number: Option<u64>, common: &Common) -> Self {
        number.map_or_else(
            || Self::Time {
                warmup_ms: common.warmup().as_millis() as u64,
                time_ms: common.measured().as_millis() as u64,
            },
            Self::Number,
        )
    }

    pub(crate) fn share(self, nth: u64, senders: u64) -> u64 {
        match self {
            Self::Time { .. } => u64::MAX,
            Self::Number(own) => own / senders + u64::from(nth < own % senders),
        }
    }

    pub(crate) fn limit(self, common: &Common) -> Duration {
        match self {
            Self::Time { .. } => common.limit(),
            Self::Number(_) => RUN_TIME_MAX,
        }
    }

    pub(crate) fn text(self, common: &Common, what: &str) -> String {
        match self {
            Self::Time { .. } => format!("{} s after {} s of warm-up", common.time, common.warmup),
            Self::Number(own) => format!("{own} {what} of each member"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shares_of_all_senders_are_the_number() {
        for (number, senders) in [(20_000, 25), (20_000, 3), (2, 100), (0, 7)] {
            let shares: Vec<u64> =
                (0..senders).map(|nth| StopCondition::Number(number).share(nth, senders)).collect();
            assert_eq!(shares.iter().sum::<u64>(), number);
            assert!(shares.iter().max().unwrap() - shares.iter().min().unwrap() <= 1, "{shares:?}");
        }
    }
}
