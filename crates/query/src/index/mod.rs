//! Indexes: the indexed fields of entities ([`IndexSchema`]), their values in an order of bytes, and the search in an index that
//! finds all entities of a query ([`Search`]).

mod annotations;
mod indexed_type;
mod lookup;
mod ordered;
mod schema;
#[cfg(test)]
mod tests;

pub use lookup::{RangeEnd, Search};
pub use schema::{IndexSchema, IndexSchemaError, UnknownFields};
