//! State transfer: both sides, and the removal of stale entries after a full restart.

pub(crate) mod stale_entries;
pub(crate) mod state_consumer;
pub(crate) mod state_provider;
