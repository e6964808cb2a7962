use std::fmt;

use crate::limits::{
    COLUMNS_MAX, CONSTANTS_BYTES_MAX, DEPTH_MAX, JOINS_MAX, MISSPELLED_MAX, PATH_MAX, PATTERN_MAX,
    PATTERNS_MAX, SIMILAR_MAX, TEXT_MAX,
};

/// An invalid query; nothing was done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueryError {
    /// The kind of error.
    pub kind: QueryErrorKind,
    /// Line and column, both from 1, if known.
    pub place: Option<(usize, usize)>,
}

/// The kind of error; texts have Infinispan's message numbers, because users search for them.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QueryErrorKind {
    /// A syntax error.
    #[error("ISPN028526: Invalid query: {expected} is expected, not {found}")]
    Syntax {
        /// The expected token.
        expected: String,
        /// The found token.
        found: String,
    },
    /// An invalid character or unterminated string.
    #[error("ISPN028526: Invalid query: {0}")]
    Characters(String),
    /// A too long query.
    #[error("the query has {0} bytes; the limit is {TEXT_MAX}")]
    Long(usize),
    /// Too deeply nested brackets.
    #[error("brackets are nested deeper than {DEPTH_MAX}")]
    Deep,
    /// Too many names in a path.
    #[error("a path can have at most {PATH_MAX} names")]
    Path,
    /// A too long pattern.
    #[error("a LIKE pattern can have at most {PATTERN_MAX} characters")]
    Pattern,
    /// Too many patterns.
    #[error("a query can have at most {PATTERNS_MAX} LIKE patterns")]
    Patterns,
    /// Too long values and patterns in total.
    #[error("the values and patterns of a query can have at most {CONSTANTS_BYTES_MAX} bytes in total")]
    Constants,
    /// Too many joined paths.
    #[error("a query can join at most {JOINS_MAX} paths")]
    Joins,
    /// Too many fields.
    #[error("a query can have at most {COLUMNS_MAX} fields")]
    Columns,
    /// An unknown type.
    #[error("ISPN028510: Unknown entity name {name}{}", suggestion(.nearest))]
    Type {
        /// Its name.
        name: String,
        /// A similar name.
        nearest: Option<String>,
    },
    /// An unknown field.
    #[error("ISPN028501: The type {of} does not have an accessible property named '{name}'.{}", suggestion(.nearest))]
    Field {
        /// The type.
        of: String,
        /// The field's name.
        name: String,
        /// A similar name.
        nearest: Option<String>,
    },
    /// A path begins with no alias or field.
    #[error("ISPN028502: Unknown alias: {name}.{}", suggestion(.nearest))]
    Alias {
        /// The name.
        name: String,
        /// A similar name.
        nearest: Option<String>,
    },
    /// No number, or one outside the field's range.
    #[error("ISPN028505: Invalid numeric literal '{0}'")]
    Number(String),
    /// Neither true nor false.
    #[error("ISPN028507: Invalid boolean literal '{0}'")]
    Bool(String),
    /// An unknown enum value.
    #[error("ISPN028508: Invalid enum literal '{value}' for enum type {of}{}", suggestion(.nearest))]
    Enum {
        /// The value.
        value: String,
        /// The enum.
        of: String,
        /// A similar value.
        nearest: Option<String>,
    },
    /// A parameter without a value.
    #[error("ISPN014825: Query parameter '{0}' was not set")]
    Unset(String),
    /// A parameter of the wrong type.
    #[error("query parameter '{name}' is {value}, which is not a value of '{field}'")]
    Parameter {
        /// The parameter's name.
        name: String,
        /// Its value.
        value: String,
        /// The compared field.
        field: String,
    },
    /// A compared message.
    #[error("ISPN028504: The property {0} is an embedded entity and does not allow comparison predicates")]
    Embedded(String),
    /// A selected message.
    #[error("ISPN028503: Property {name} can not be selected from type {of} since it is an embedded entity.")]
    Selected {
        /// The type.
        of: String,
        /// The field.
        name: String,
    },
    /// A condition on the entity.
    #[error("ISPN028519: Cannot apply predicates directly to an entity alias: {0}")]
    Entity(String),
    /// Several values where one is needed.
    #[error("ISPN0140{number}: The property path '{name}' cannot be {place} because it is multi-valued")]
    Repeated {
        /// Infinispan's last digits.
        number: u8,
        /// The field.
        name: String,
        /// The unsupported use.
        place: &'static str,
    },
    /// An operation that the type does not support.
    #[error("cannot compute {wanted} of '{name}': its type is {has}")]
    Kind {
        /// The field.
        name: String,
        /// The field's type.
        has: &'static str,
        /// The operation.
        wanted: &'static str,
    },
    /// An aggregate in WHERE or GROUP BY.
    #[error("ISPN0285{number}: Cannot have aggregate functions in the {clause} clause : {function}.")]
    Aggregate {
        /// Infinispan's last digits.
        number: u8,
        /// The clause.
        clause: &'static str,
        /// The function.
        function: &'static str,
    },
    /// Grouping without a projection.
    #[error("ISPN014021: Queries containing grouping and aggregation functions must use projections.")]
    Projections,
    /// Neither grouped nor aggregated.
    #[error(
        "ISPN014026: The expression '{0}' must be part of an aggregate function or it should be included in the GROUP BY clause"
    )]
    Grouped(String),
    /// A feature with an index.
    #[error("{what} needs an index, and indexes are not supported: {instead}")]
    Index {
        /// The feature.
        what: &'static str,
        /// The alternative.
        instead: &'static str,
    },
    /// A DELETE with paging.
    #[error("ISPN014057: DELETE statements cannot use paging (firstResult/maxResults)")]
    Paging,
    /// An unsupported feature.
    #[error("{0}")]
    Unsupported(&'static str),
}

fn suggestion(nearest: &Option<String>) -> String {
    nearest.as_ref().map_or_else(String::new, |nearest| format!(" Did you mean {nearest}?"))
}

impl QueryError {
    pub(crate) fn at(text: &str, at: usize, kind: QueryErrorKind) -> Self {
        let before = text.get(..at).unwrap_or(text);
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().map_or(0, |last| last.chars().count()) + 1;
        Self { kind, place: Some((line, column)) }
    }
}

impl From<QueryErrorKind> for QueryError {
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

/// `None` if no name is similar enough.
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
