use std::path::Path;

use consort_hotrod::ops::counter::CounterConfig;

use super::document::{self, DocumentError};
use super::{Definition, DefinitionError};

/// An unusable file of cache definitions; no cache was created.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CacheDefinitionsError {
    /// The file cannot be read.
    #[error("{file}: {reason}")]
    Unreadable {
        /// The file.
        file: String,
        /// The reason.
        reason: String,
    },
    /// An invalid document, or one with other elements.
    #[error("{file}: {error}")]
    Document {
        /// The file.
        file: String,
        /// The error.
        error: DefinitionError,
    },
    /// An invalid definition of a cache.
    #[error("{file}: cache '{cache}': {error}")]
    Cache {
        /// The file.
        file: String,
        /// The cache.
        cache: String,
        /// The error.
        error: DefinitionError,
    },
    /// Two files define a cache of the same name.
    #[error("{file}: cache '{cache}': it is defined in {first}, too; remove one of the definitions")]
    Twice {
        /// The second file.
        file: String,
        /// The cache.
        cache: String,
        /// The first file.
        first: String,
    },
}

/// Named definitions of caches in XML, JSON or YAML (docs/server.md).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CacheDefinitions {
    pub(crate) file: String,
    pub(crate) all: Vec<Definition>,
    /// Under their names.
    pub(crate) templates: Vec<(String, Definition)>,
    pub(crate) counters: Vec<(String, CounterConfig)>,
}

impl CacheDefinitions {
    pub(crate) fn none(file: &str) -> Self {
        Self { file: file.to_owned(), all: Vec::new(), templates: Vec::new(), counters: Vec::new() }
    }

    /// Reads a file.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, CacheDefinitionsError> {
        let file = path.as_ref().display().to_string();
        match std::fs::read_to_string(path.as_ref()) {
            Ok(text) => Self::parse(&file, &text),
            Err(error) => Err(CacheDefinitionsError::Unreadable { file, reason: error.to_string() }),
        }
    }

    /// Parses the text of a file of this name.
    pub fn parse(file: &str, text: &str) -> Result<Self, CacheDefinitionsError> {
        let file = file.to_owned();
        match document::read_all(text) {
            Ok(all) => Ok(Self { all, ..Self::none(&file) }),
            Err(DocumentError { cache: Some(cache), error }) => {
                Err(CacheDefinitionsError::Cache { file, cache, error })
            }
            Err(DocumentError { cache: None, error }) => Err(CacheDefinitionsError::Document { file, error }),
        }
    }

    /// Adds those of another file.
    ///
    /// # Errors
    ///
    /// If both files define a cache of the same name.
    pub fn with(&self, other: Self) -> Result<Self, CacheDefinitionsError> {
        let has = |name: &str| self.all.iter().any(|own| *own.config.name == *name);
        if let Some(second) = other.all.iter().find(|cache| has(&cache.config.name)) {
            let (cache, first) = (second.config.name.to_string(), self.file.clone());
            return Err(CacheDefinitionsError::Twice { file: other.file, cache, first });
        }
        let mut both = self.clone();
        both.file = format!("{} and {}", self.file, other.file);
        both.all.extend(other.all);
        both.templates.extend(other.templates);
        both.counters.extend(other.counters);
        Ok(both)
    }
}
