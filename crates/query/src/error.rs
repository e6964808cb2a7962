//! What is wrong with a query, and where.

use std::fmt;

use crate::limits::{
    COLUMNS_MAX, CONSTANTS_BYTES_MAX, DEPTH_MAX, JOINS_MAX, MISSPELLED_MAX, PATH_MAX, PATTERN_MAX,
    PATTERNS_MAX, SIMILAR_MAX, TEXT_MAX,
};

/// A query that cannot be answered. Nothing was done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueryError {
    /// What is wrong.
    pub kind: QueryErrorKind,
    /// The line, from 1, and the character in it, from 1; nothing if it is of no place.
    pub place: Option<(usize, usize)>,
}

/// What is wrong with a query. The texts have the numbers of Infinispan's where it has some, by which people look for them.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QueryErrorKind {
    /// Something else has to stand there.
    #[error("ISPN028526: Invalid query: {expected} is expected, not {found}")]
    Syntax {
        /// What would be right.
        expected: String,
        /// What is there.
        found: String,
    },
    /// A character that no query has there, or a text that does not end.
    #[error("ISPN028526: Invalid query: {0}")]
    Characters(String),
    /// It is longer than queries may be.
    #[error("the query has {0} bytes, {TEXT_MAX} are allowed")]
    Long(usize),
    /// Brackets within brackets.
    #[error("brackets are nested deeper than {DEPTH_MAX}")]
    Deep,
    /// A path with too many names.
    #[error("a path has {PATH_MAX} names at most")]
    Path,
    /// A pattern that is too long.
    #[error("a pattern of LIKE has {PATTERN_MAX} characters at most")]
    Pattern,
    /// Too many patterns.
    #[error("a query has {PATTERNS_MAX} patterns of LIKE at most")]
    Patterns,
    /// Values and patterns that are too long together.
    #[error(
        "a query compares fields with values and patterns of {CONSTANTS_BYTES_MAX} bytes at most, all together"
    )]
    Constants,
    /// Too many paths are joined.
    #[error("a query joins {JOINS_MAX} paths at most")]
    Joins,
    /// It asks for too many fields.
    #[error("a query has {COLUMNS_MAX} fields at most")]
    Columns,
    /// A type that no schema has.
    #[error("ISPN028510: Unknown entity name {name}{}", suggestion(.nearest))]
    Type {
        /// Its name.
        name: String,
        /// One that there is.
        nearest: Option<String>,
    },
    /// A field that the type does not have.
    #[error("ISPN028501: The type {of} does not have an accessible property named '{name}'.{}", suggestion(.nearest))]
    Field {
        /// The type.
        of: String,
        /// The field's name.
        name: String,
        /// One that it has.
        nearest: Option<String>,
    },
    /// A first name of a path that is neither an alias nor a field.
    #[error("ISPN028502: Unknown alias: {name}.{}", suggestion(.nearest))]
    Alias {
        /// The name.
        name: String,
        /// One that there is.
        nearest: Option<String>,
    },
    /// A text where a number is wanted, or a number that the field cannot have.
    #[error("ISPN028505: Invalid numeric literal '{0}'")]
    Number(String),
    /// What is neither true nor false.
    #[error("ISPN028507: Invalid boolean literal '{0}'")]
    Bool(String),
    /// What is no value of an enum.
    #[error("ISPN028508: Invalid enum literal '{value}' for enum type {of}{}", suggestion(.nearest))]
    Enum {
        /// What was given.
        value: String,
        /// The enum.
        of: String,
        /// A value that it has.
        nearest: Option<String>,
    },
    /// A parameter that was given no value.
    #[error("ISPN014825: Query parameter '{0}' was not set")]
    Unset(String),
    /// A parameter's value that is nothing for the field.
    #[error("query parameter '{name}' is {value}, which is nothing for '{field}'")]
    Parameter {
        /// Its name.
        name: String,
        /// What it was set to.
        value: String,
        /// The field that it stands beside.
        field: String,
    },
    /// A field that is compared or told as a whole, and is a message.
    #[error("ISPN028504: The property {0} is an embedded entity and does not allow comparison predicates")]
    Embedded(String),
    /// The same where it is to be told.
    #[error("ISPN028503: Property {name} can not be selected from type {of} since it is an embedded entity.")]
    Selected {
        /// The type.
        of: String,
        /// The field.
        name: String,
    },
    /// A condition on the entity itself.
    #[error("ISPN028519: Cannot apply predicates directly to an entity alias: {0}")]
    Entity(String),
    /// A field that may have several values, where one is needed.
    #[error("ISPN0140{number}: The property path '{name}' cannot be {place} because it is multi-valued")]
    Repeated {
        /// Of Infinispan's message.
        number: u8,
        /// The field.
        name: String,
        /// What it cannot be.
        place: &'static str,
    },
    /// Bytes where something with an order is needed.
    #[error("'{name}' has {has}, of which there is no {wanted}")]
    Kind {
        /// The field.
        name: String,
        /// What it has.
        has: &'static str,
        /// What is wanted of it.
        wanted: &'static str,
    },
    /// A sum in a WHERE, or in a GROUP BY.
    #[error("ISPN0285{number}: Cannot have aggregate functions in the {clause} clause : {function}.")]
    Aggregate {
        /// Of Infinispan's message.
        number: u8,
        /// Where.
        clause: &'static str,
        /// Which.
        function: &'static str,
    },
    /// Groups without anything that is told of them.
    #[error("ISPN014021: Queries containing grouping and aggregation functions must use projections.")]
    Projections,
    /// Something that is not the same within a group.
    #[error(
        "ISPN014026: The expression '{0}' must be part of an aggregate function or it should be included in the GROUP BY clause"
    )]
    Grouped(String),
    /// What only an index can answer.
    #[error("{what} cannot be answered without an index, and there are no indexes: {instead}")]
    Index {
        /// What it is.
        what: &'static str,
        /// What can be done.
        instead: &'static str,
    },
    /// A DELETE with a part of what it finds.
    #[error("ISPN014057: DELETE statements cannot use paging (firstResult/maxResults)")]
    Paging,
    /// Something of the language that is not here.
    #[error("{0}")]
    Unsupported(&'static str),
}

fn suggestion(nearest: &Option<String>) -> String {
    nearest.as_ref().map_or_else(String::new, |nearest| format!(" Did you mean {nearest}?"))
}

impl QueryError {
    /// It is wrong at this byte of the query.
    pub(crate) fn at(text: &str, at: usize, kind: QueryErrorKind) -> Self {
        let before = text.get(..at).unwrap_or(text);
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().map_or(0, |last| last.chars().count()) + 1;
        Self { kind, place: Some((line, column)) }
    }
}

impl From<QueryErrorKind> for QueryError {
    /// It is of no place.
    fn from(kind: QueryErrorKind) -> Self {
        Self { kind, place: None }
    }
}

impl fmt::Display for QueryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place {
            Some((line, column)) => write!(f, "{} (line {line}, character {column})", self.kind),
            None => write!(f, "{}", self.kind),
        }
    }
}

impl std::error::Error for QueryError {}

/// Of several names the one that was meant, if one is like it.
pub(crate) fn nearest<'a>(wrong: &str, names: impl Iterator<Item = &'a str>) -> Option<String> {
    if wrong.len() > MISSPELLED_MAX {
        return None;
    }
    let wanted = wrong.to_lowercase();
    let names = names.filter(|name| name.len() <= MISSPELLED_MAX).take(SIMILAR_MAX);
    let distance = |name: &str| strsim::damerau_levenshtein(&wanted, &name.to_lowercase());
    let (distance, name) = names.map(|name| (distance(name), name)).min()?;
    (distance <= 2.max(wanted.chars().count() / 3)).then(|| name.to_owned())
}
