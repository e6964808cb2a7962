//! The operations of clients: the dispatcher, and a module for each family of requests.

pub(crate) mod admin;
pub(crate) mod answer;
pub(crate) mod bucket;
pub(crate) mod bulk;
pub(crate) mod compute;
pub(crate) mod compute_pool;
pub(crate) mod converter;
pub(crate) mod counter;
pub(crate) mod counter_listeners;
pub(crate) mod counters;
pub(crate) mod dispatch;
pub(crate) mod filter;
pub(crate) mod iteration;
pub(crate) mod key_error;
pub(crate) mod listeners;
pub(crate) mod map;
pub(crate) mod multimap;
pub(crate) mod query;
pub(crate) mod transactions;
pub(crate) mod value_pieces;
pub(crate) mod value_streams;
