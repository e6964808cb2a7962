//! The client against servers of this process, over real sockets.

mod sharing;
mod support;
mod verbs;
