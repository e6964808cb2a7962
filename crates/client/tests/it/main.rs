//! The client against servers of this process, over real sockets.

mod write_tracker;
mod certificates;
mod counters;
mod failover;
mod scripted_server;
mod http;
mod iteration;
#[cfg(feature = "legacy")]
mod legacy;
mod listeners;
mod multimaps;
mod near;
mod chunked_values;
mod queries;
mod security;
mod servers;
mod sharing;
mod sites;
mod verbs;
