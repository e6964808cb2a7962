//! The wire protocol between members of the grid.
//!
//! A frame is the payload of one message on the channel: [`MAGIC`], [`VERSION`], the number below which all
//! operations of its sender are finished (8 bytes, big endian), then commands. A command is a length (4 bytes, big
//! endian), the cache's id, the sender's topology id, and a body. A receiver skips unknown bodies, and unknown fields
//! behind the known ones, so that later versions may add both.

mod chunk_entries;
mod commands;
mod frame;
mod number;
mod primitives;

pub(crate) use chunk_entries::{EncodedEntries, EntryRef, put_copy};
pub(crate) use commands::FetchedItems;
pub use frame::is_frame;
pub(crate) use frame::{FrameReader, FrameWriter, LongCommand, VERSION};
pub(crate) use number::read_number;
pub use primitives::FrameError;
pub(crate) use primitives::{Result, Wire, read_fields, wire_enum, wire_struct};
