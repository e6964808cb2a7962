//! The client against servers of this process, over real sockets.

mod counters;
mod failover;
mod http;
mod iteration;
#[cfg(feature = "legacy")]
mod legacy;
mod listeners;
mod multimaps;
mod near;
mod pieces;
mod queries;
mod scripted_server;
mod security;
mod servers;
mod sharing;
mod sites;
mod verbs;
