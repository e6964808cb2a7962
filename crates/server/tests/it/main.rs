//! Servers, each test with a cluster of its own in this process.

mod client;
mod connections;
mod iteration;
mod listeners;
