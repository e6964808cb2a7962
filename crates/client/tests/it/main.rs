//! The client against servers of this process, over real sockets.

mod chunked_values;
mod counters;
mod failover;
mod failover_clusters;
mod http;
mod iteration;
#[cfg(feature = "legacy")]
mod legacy;
mod listeners;
mod multimaps;
mod near;
mod queries;
mod scripted_server;
mod security;
mod servers;
mod sharing;
mod verbs;
