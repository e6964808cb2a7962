//! The client against servers of this process, over real sockets.

mod counters;
mod failover;
mod foreign;
mod sharing;
mod support;
mod verbs;
