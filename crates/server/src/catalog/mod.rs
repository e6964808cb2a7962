//! The caches of a server: definitions, shared registries, and each cache's state.

pub(crate) mod admin_error;
pub(crate) mod aliases;
pub(crate) mod availability;
pub(crate) mod cache_aliases;
pub(crate) mod cache_removal;
pub(crate) mod cache_rollout;
pub(crate) mod caches;
pub(crate) mod client_topology;
pub(crate) mod cluster_log;
pub(crate) mod compute;
pub(crate) mod counter;
pub(crate) mod counters;
pub(crate) mod data_directory;
pub(crate) mod default_cache;
pub(crate) mod definition;
pub(crate) mod failed_caches;
pub(crate) mod login_secret;
pub(crate) mod predefined;
pub(crate) mod registry;
pub(crate) mod requirements;
pub(crate) mod schema_changes;
pub(crate) mod schemas;
pub(crate) mod served_cache;
pub(crate) mod startup_log;
pub(crate) mod store_directories;
pub(crate) mod templates;
