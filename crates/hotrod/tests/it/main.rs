//! The codec: what is written is read, however it is cut, and what others write is read as they mean it.

mod commands;
mod decoding;
mod identity;
mod messages;
mod skipping;
mod vectors;
