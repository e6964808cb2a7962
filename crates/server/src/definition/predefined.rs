//! Files with the caches that a server is to have from its start on.

use std::path::Path;

use super::document::{self, Wrong};
use super::{Definition, DefinitionError};

/// A file with definitions of caches that cannot be used. Nothing was made.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CacheDefinitionsError {
    /// It cannot be read.
    #[error("{file}: {reason}")]
    Unreadable {
        /// The file.
        file: String,
        /// Why not.
        reason: String,
    },
    /// It is no document with caches, or has something else, too.
    #[error("{file}: {error}")]
    Document {
        /// The file.
        file: String,
        /// What is wrong with it.
        error: DefinitionError,
    },
    /// One of its caches cannot be like that.
    #[error("{file}: cache '{cache}': {error}")]
    Cache {
        /// The file.
        file: String,
        /// The cache.
        cache: String,
        /// What is wrong with it.
        error: DefinitionError,
    },
}

/// Definitions of caches, each with its name, in XML, JSON or YAML (docs/server.md).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CacheDefinitions {
    pub(crate) file: String,
    pub(crate) all: Vec<Definition>,
}

impl CacheDefinitions {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// With the file, the cache, and what is wrong with it.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, CacheDefinitionsError> {
        let file = path.as_ref().display().to_string();
        match std::fs::read_to_string(path.as_ref()) {
            Ok(text) => Self::parse(&file, &text),
            Err(error) => Err(CacheDefinitionsError::Unreadable { file, reason: error.to_string() }),
        }
    }

    /// Reads what is in a file of this name.
    ///
    /// # Errors
    ///
    /// With the file, the cache, and what is wrong with it.
    pub fn parse(file: &str, text: &str) -> Result<Self, CacheDefinitionsError> {
        let file = file.to_owned();
        match document::read_all(text) {
            Ok(all) => Ok(Self { file, all }),
            Err(Wrong { cache: Some(cache), error }) => {
                Err(CacheDefinitionsError::Cache { file, cache, error })
            }
            Err(Wrong { cache: None, error }) => Err(CacheDefinitionsError::Document { file, error }),
        }
    }
}
