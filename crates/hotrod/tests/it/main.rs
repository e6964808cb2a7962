//! The codec: round trips with any fragmentation, and messages of other implementations.

mod commands;
mod decoding;
mod identity;
mod skipping;
mod vectors;
