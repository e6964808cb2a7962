//! Servers, each test with a cluster of its own in this process.

mod client;
mod connections;
