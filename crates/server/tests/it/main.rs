//! Tests of servers, each with its own cluster in this process.

mod aliases;
mod authentication;
mod budgets;
mod bulk;
mod cache_roles;
mod chunked_values;
mod client;
mod configurations;
mod connections;
mod counters;
mod default_cache;
mod failed_caches;
mod http;
mod indexes;
mod internal;
mod iteration;
mod listeners;
mod media;
mod metrics;
mod multimaps;
mod operator;
mod queries;
mod remote_values;
mod requirement;
mod roles;
mod schemas;
mod statistics;

mod transactions;
mod unauthenticated;
