//! Counts and histograms of a server. [`crate::http`] serves them.

pub(crate) mod cache_stats;
pub(crate) mod latency;
pub(crate) mod telemetry;
