//! What a peer may write on a TCP connection, without the sockets: set-up bytes (facts 4.2), then frames (4.3).
//!
//! The decoders are those that connections use; here they are open to tools and tests.

pub use crate::tcp::framed::{BadLength, CLOSE_WORD, Frame, next_frame, put_frame, room_wanted};
pub use crate::tcp::setup::{SetupError, decode as decode_setup, encode as encode_setup};
