//! The wire protocol between members of the grid.
//!
//! A frame is one message's payload: [`MAGIC`], [`VERSION`], the number below which its sender's operations
//! are finished (8 bytes, big endian), then commands. A command is a length (4 bytes, big endian), the
//! cache's id, the sender's topology id, and a body. A receiver skips unknown bodies, and unknown fields
//! behind the known ones, so that later versions may add both. [`crate::codec`] encodes values below the
//! grid's types.

mod commands;
mod fetched_items;
mod frame;

pub(crate) use fetched_items::FetchedItems;
pub use frame::is_frame;
pub(crate) use frame::{FrameReader, FrameWriter, LongCommand, VERSION};
