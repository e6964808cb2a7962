//! Counts and histograms of a server, served by [`crate::http`].

pub(crate) mod cache_stats;
pub(crate) mod clients;
pub(crate) mod latency;
pub(crate) mod telemetry;
