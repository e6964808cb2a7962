//! Queries in Ickle over protobuf messages, with the semantics of Infinispan's unindexed caches. Without IO: entries and messages
//! between members are bytes.
//!
//! ```
//! use consort_query::Statement;
//!
//! assert!(Statement::parse("FROM shop.Order o WHERE o.total > 100 ORDER BY o.id").is_ok());
//! let error = Statement::parse("FROM shop.Order WHERE").unwrap_err();
//! println!("{error}");
//! ```
//!
//! The server that gets a query parses ([`Statement::parse`]) and compiles it with types and parameters ([`Statement::compile`]).
//! Owners need no types: a [`Plan`] refers to fields by number. The server merges their rows ([`ResultMerger`]).

#![forbid(unsafe_code)]

mod aggregate;
mod compile;
mod condition;
mod entity;
mod error;
mod field_reader;
mod grouping;
mod index;
mod lexer;
mod like;
pub mod limits;
mod listener_events;
mod literal;
mod parser;
mod pattern;
mod plan;
mod plan_codec;
mod result_merger;
mod row;
mod run_length;
mod scope;
mod syntax;
mod value;
mod work;

pub use compile::{Compiled, ENTITY, Source};
pub use error::{QueryError, QueryErrorKind};
pub use index::{IndexSchema, IndexSchemaError, RangeEnd, Search, UnknownFields};
pub use plan::Plan;
pub use result_merger::{LimitExceeded, MergeError, QueryResult, ResultMerger};
pub use row::version_of;
pub use scope::Types;
pub use syntax::Statement;
pub use value::{Scalar, Value};
pub use work::{Exceeded, Work};
