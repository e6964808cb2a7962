use std::sync::{Arc, Weak};

use crate::catalog::admin_error::AdminError;
use crate::catalog::cache_rollout::wait_until_open_on_all;
use crate::catalog::caches::{Caches, IfExists};
use crate::catalog::definition::CacheDefinitions;
use crate::catalog::registry::Lifecycle;

/// Predefined caches could not be created.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PredefinedError {
    /// Caches of these names exist with another configuration. No cache was created.
    #[error(
        "{file}: these caches exist with another configuration: {}; remove and recreate them to apply the file",
        caches.join(", ")
    )]
    ConfigMismatch {
        /// The file of definitions.
        file: String,
        /// The caches.
        caches: Vec<String>,
    },
    /// A cache could not be created. Those before it in the file were.
    #[error("{file}: cache '{cache}': {reason}")]
    CreateFailed {
        /// The file of definitions.
        file: String,
        /// The cache.
        cache: String,
        /// The reason.
        reason: String,
    },
    /// A template or counter could not be created, or has another configuration.
    #[error("{file}: {what} '{name}': {reason}")]
    NotCreated {
        /// The file.
        file: String,
        /// A template or a counter.
        what: &'static str,
        /// Its name.
        name: String,
        /// The reason.
        reason: String,
    },
    /// The server has ended.
    #[error("{file}: the server has ended")]
    Ended {
        /// The file.
        file: String,
    },
}

pub(crate) async fn make(
    caches: &Caches,
    definitions: &CacheDefinitions,
) -> Result<Vec<String>, PredefinedError> {
    let file = || definitions.file.clone();
    let not_made = |cache: &str, error: &AdminError| {
        let (cache, reason) = (cache.to_owned(), error.to_string());
        PredefinedError::CreateFailed { file: file(), cache, reason }
    };
    make_templates(caches, definitions).await?;
    let mut different = Vec::new();
    for definition in &definitions.all {
        let cache = &*definition.config.name;
        let is_other = caches.differs(definition).await.map_err(|error| not_made(cache, &error))?;
        if is_other {
            different.push(cache.to_owned());
        }
    }
    if !different.is_empty() {
        return Err(PredefinedError::ConfigMismatch { file: file(), caches: different });
    }
    let mut made = Vec::new();
    for definition in &definitions.all {
        let cache = &*definition.config.name;
        match caches.create(definition, IfExists::AcceptIfSame, Lifecycle::Persistent).await {
            Ok(true) => made.push(cache.to_owned()),
            Ok(false) => {}
            // A client, or another server with another file, has just created it.
            Err(AdminError::ConfigMismatch(cache)) => {
                return Err(PredefinedError::ConfigMismatch { file: file(), caches: vec![cache] });
            }
            Err(error) => return Err(not_made(cache, &error)),
        }
    }
    for (name, config) in &definitions.counters {
        caches.counters.define(name, *config).await.map_err(|reason| PredefinedError::NotCreated {
            file: file(),
            what: "counter",
            name: name.clone(),
            reason,
        })?;
    }
    if !made.is_empty() {
        tracing::info!("created caches of {}: {}", definitions.file, made.join(", "));
    }
    Ok(made)
}

async fn make_templates(caches: &Caches, definitions: &CacheDefinitions) -> Result<(), PredefinedError> {
    for (name, template) in &definitions.templates {
        let wrong = |reason: String| PredefinedError::NotCreated {
            file: definitions.file.clone(),
            what: "template",
            name: name.clone(),
            reason,
        };
        match caches.add_template(name, template, Lifecycle::Persistent).await {
            Ok(()) => {}
            Err(AdminError::TemplateExists(_)) => {
                let existing = caches.template(name, name).await.map_err(|error| wrong(error.to_string()))?;
                if existing.is_some_and(|existing| existing != *template) {
                    return Err(wrong(
                        "it exists with another configuration; remove it to apply the file".to_owned(),
                    ));
                }
            }
            Err(error) => return Err(wrong(error.to_string())),
        }
    }
    Ok(())
}

/// A handle that creates predefined caches of a running server.
#[derive(Clone, Debug)]
pub struct CachesHandle(Weak<Caches>);

impl CachesHandle {
    pub(crate) fn new(caches: &Arc<Caches>) -> Self {
        Self(Arc::downgrade(caches))
    }

    /// Creates those that do not exist, on all servers. Returns their names. Caches that are no longer in the file stay.
    ///
    /// # Errors
    ///
    /// [`PredefinedError`], which says whether some were created nevertheless.
    pub async fn make(&self, definitions: &CacheDefinitions) -> Result<Vec<String>, PredefinedError> {
        let ended = || PredefinedError::Ended { file: definitions.file.clone() };
        let caches = self.0.upgrade().ok_or_else(ended)?;
        let made = make(&caches, definitions).await?;
        wait_until_open_on_all(&caches, &made).await;
        Ok(made)
    }
}
