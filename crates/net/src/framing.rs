//! The bytes on a TCP connection: set-up bytes, then frames.
//!
//! Public for tools and tests.

pub use crate::tcp::framed::{
    BadLength, CLOSE_WORD, Frame, capacity_wanted, next_frame, put_frame, read_capacity, reserve_room,
};
pub use crate::tcp::setup::{SetupError, decode as decode_setup, encode as encode_setup};
