//! The encoding of values below the grid's types, which [`crate::wire`] encodes. Types whose values stay
//! encoded have their own: [`crate::items::Items`], [`crate::encoded_entries::EncodedEntries`] and
//! [`crate::persistence::PersistedState`].

mod error;
mod number;
mod primitives;

pub use error::FrameError;
pub(crate) use error::Result;
pub(crate) use number::read_number;
pub(crate) use primitives::{Wire, need, put_bytes, read_fields, wire_enum, wire_struct};
