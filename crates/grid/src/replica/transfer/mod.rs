pub(crate) mod stale_entries;
pub(crate) mod state_consumer;
pub(crate) mod state_provider;
