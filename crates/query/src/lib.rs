//! Queries in Ickle over messages of protobuf, as Infinispan answers them for caches without indexes. No IO: entries are given
//! as bytes, and so is what members tell each other of them.
//!
//! A query goes three ways. Who is asked reads it ([`Statement::parse`]) and makes of it, with the descriptors of its types and
//! its parameters, what there is to do ([`Statement::compile`]). Owners need no descriptors: they are told by a [`Plan`], which
//! is all numbers of fields, and make rows of the entries that it lets through. Who was asked puts these together
//! ([`ResultMerger`]).

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
