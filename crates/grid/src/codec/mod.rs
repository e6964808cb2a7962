//! The encoding of values: numbers, texts, addresses, lists and maps.
//!
//! This module knows no type of the grid, and is below all of them. The encodings of the grid's types are in
//! [`crate::wire`], which is above them. Only a type whose values stay encoded knows its encoding itself:
//! [`crate::items::Items`], [`crate::encoded_entries::EncodedEntries`] and [`crate::persistence::PersistedState`].

mod error;
mod number;
mod primitives;

pub use error::FrameError;
pub(crate) use error::Result;
pub(crate) use number::read_number;
pub(crate) use primitives::{Wire, need, put_bytes, read_fields, wire_enum, wire_struct};
