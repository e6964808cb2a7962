//! Warnings of up handlers, at most one a minute for each cause.

use std::time::Instant;

use consort_group::Time;
use consort_net::RateLimitedWarnings;

pub(crate) struct Warnings {
    began: Instant,
    warnings: RateLimitedWarnings,
}

impl Warnings {
    pub(crate) fn new() -> Self {
        Self { began: Instant::now(), warnings: RateLimitedWarnings::default() }
    }

    pub(crate) fn count(&mut self, now: Instant, cause: &'static str, detail: impl FnOnce() -> String) {
        let now = Time::ZERO + now.saturating_duration_since(self.began);
        self.warnings.count(now, cause, detail);
    }

    #[cfg(test)]
    pub(crate) fn counts(&self) -> Vec<(&'static str, u64)> {
        self.warnings.iter().collect()
    }
}
