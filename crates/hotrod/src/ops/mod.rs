//! The bodies of operations, and their layouts.

pub mod auth;
pub mod bulk;
pub mod counter;
pub mod event;
pub mod iteration;
pub mod listener;
pub mod map;
pub mod multimap;
pub mod server;
pub mod stream;
pub mod task;
pub mod transaction;

use crate::layout::{Field, Fields};
use crate::limits::Kind;

pub(crate) const KEY: Field = Field::Array(Kind::Key);
pub(crate) const VALUE: Field = Field::Array(Kind::Value);
pub(crate) const TEXT: Field = Field::Array(Kind::Text);
pub(crate) const NOTHING: Fields = &[];
