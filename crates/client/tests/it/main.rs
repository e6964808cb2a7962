//! The client against servers of this process, over real sockets.

mod counters;
mod failover;
mod foreign;
mod servers;
mod sharing;
mod verbs;
