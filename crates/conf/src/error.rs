//! What can be wrong with a configuration, with the place where it is.

use std::fmt;

use consort_group::config::Position;
use consort_group::protocols::registry::ValueError;

/// A configuration cannot be used. Displayed as `file:line:column: what`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConfigError {
    /// The file, or the name under which it was asked for.
    pub source: String,
    /// Where in it, if it is about a place.
    pub position: Option<Position>,
    /// What is wrong.
    pub what: String,
}

impl ConfigError {
    pub(crate) fn new(source: &str, position: impl Into<Option<Position>>, what: impl Into<String>) -> Self {
        Self { source: source.to_owned(), position: position.into(), what: what.into() }
    }

    /// A value that a protocol did not take, in this file.
    pub fn value(source: &str, error: &ValueError) -> Self {
        Self::new(source, error.position, error.to_string())
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.position {
            Some(position) => write!(f, "{}:{position}: {}", self.source, self.what),
            None => write!(f, "{}: {}", self.source, self.what),
        }
    }
}

impl std::error::Error for ConfigError {}
