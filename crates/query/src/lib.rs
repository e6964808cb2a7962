//! Queries in Ickle over protobuf messages, with the semantics of Infinispan's unindexed caches. Without IO:
//! entries and messages between members are bytes.
//!
//! The server that gets a query parses it ([`Statement::parse`]) and compiles it with the descriptors of its
//! types and its parameters ([`Statement::compile`]). Owners need no descriptors: a [`Plan`] refers to fields
//! by number. They make rows of matching entries, and the server merges the rows ([`ResultMerger`]).

#![forbid(unsafe_code)]

mod aggregate;
pub mod limits;
mod compile;
mod condition;
mod error;
mod result_merger;
mod grouping;
mod lexer;
mod like;
mod literal;
mod parser;
mod pattern;
mod plan;
mod row;
mod run_length;
mod scope;
mod field_reader;
mod plan_codec;
mod syntax;
mod listener_events;
mod value;
mod work;

pub use compile::{Compiled, ENTITY, Source};
pub use error::{QueryError, QueryErrorKind};
pub use result_merger::{ResultMerger, QueryResult, LimitExceeded, MergeError};
pub use plan::Plan;
pub use row::version_of;
pub use scope::Types;
pub use syntax::Statement;
pub use value::{Scalar, Value};
pub use work::{Exceeded, Work};
