//! Templates of clients: definitions under names that no cache can have. A cache from a template has no link to it.

use bytes::Bytes;

use crate::catalog::admin_error::AdminError;
use crate::catalog::caches::Caches;
use crate::catalog::definition::{self, Definition, DefinitionError};
use crate::catalog::registry::Lifecycle;
use crate::catalog::wildcards::{has_wildcards, matches};
use crate::limits::CACHE_NAME_MAX;

const KEY: &str = "___template ";

fn key(template: &str) -> Bytes {
    format!("{KEY}{template}").into()
}

impl Caches {
    pub(crate) async fn add_template(
        &self,
        name: &str,
        definition: &Definition,
        keeping: Lifecycle,
    ) -> Result<(), AdminError> {
        if name.is_empty() {
            return Err(AdminError::Missing("name"));
        }
        if name.len() > CACHE_NAME_MAX {
            return Err(AdminError::LongName(name.len()));
        }
        if definition::is_template(name) {
            return Err(AdminError::OwnTemplate(name.to_owned()));
        }
        if definition.aliases.as_ref().is_some_and(|aliases| !aliases.is_empty()) {
            let (setting, reason) =
                ("aliases of a template".to_owned(), "an alias names one cache".to_owned());
            return Err(DefinitionError::Refused { setting, reason }.into());
        }
        if !self.has_room_for_definition().await? {
            return Err(AdminError::TooMany);
        }
        let text = definition::to_stored(definition, None).into();
        let is_new = self.definitions.add(&key(name), text, keeping).await?;
        if is_new { Ok(()) } else { Err(AdminError::TemplateExists(name.to_owned())) }
    }

    pub(crate) async fn remove_template(&self, name: &str) -> Result<(), AdminError> {
        if definition::is_template(name) {
            return Err(AdminError::OwnTemplate(name.to_owned()));
        }
        self.definitions.remove(&key(name)).await?;
        Ok(())
    }

    pub(crate) async fn template(&self, cache: &str, name: &str) -> Result<Option<Definition>, AdminError> {
        let Some(text) = self.definitions.get_linearizable(&key(name)).await? else { return Ok(None) };
        Ok(Some(definition::from_stored(cache, &String::from_utf8_lossy(&text))?.0))
    }

    pub(crate) fn templates_among(names: &[Bytes]) -> Vec<String> {
        let made = names
            .iter()
            .filter_map(|name| String::from_utf8_lossy(name).strip_prefix(KEY).map(str::to_owned));
        definition::templates().map(str::to_owned).chain(made).collect()
    }
}

/// As in Infinispan, a template whose name has wildcards stands for the names that it matches, if none has exactly this name.
pub(crate) async fn matching(
    caches: &Caches,
    cache: &str,
    name: &str,
) -> Result<Option<Definition>, AdminError> {
    if let Some(exact) = caches.template(cache, name).await? {
        return Ok(Some(exact));
    }
    let keys = caches.definitions.names_with_prefix(KEY.as_bytes()).await?;
    let names = keys.iter().map(|key| String::from_utf8_lossy(&key[KEY.len()..]));
    let mut matching = names.filter(|own| has_wildcards(own) && matches(own, name));
    match (matching.next(), matching.next()) {
        (Some(pattern), None) => caches.template(cache, &pattern).await,
        (Some(_), Some(_)) => Err(AdminError::ManyTemplates(name.to_owned())),
        (None, _) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::single_member::caches;

    #[tokio::test]
    async fn template_with_wildcards_stands_for_the_names_that_it_matches() {
        let caches = caches("wildcards", Arc::default()).await;
        for (name, owners) in [("org.*", 1), ("org.b*", 3), ("org.exact", 4)] {
            let text = format!("<distributed-cache owners=\"{owners}\"/>");
            let template = definition::from_text(name, &text).unwrap();
            caches.add_template(name, &template, Lifecycle::Persistent).await.unwrap();
        }
        let owners = async |name| {
            let found = matching(&caches, "cache", name).await.unwrap();
            found.map(|definition| {
                assert_eq!(&*definition.config.name, "cache");
                definition::to_text(&definition).to_string()
            })
        };
        assert!(owners("org.a").await.unwrap().contains("\"owners\":1"));
        assert!(owners("org.exact").await.unwrap().contains("\"owners\":4"));
        assert_eq!(owners("com.a").await, None);
        let error = matching(&caches, "cache", "org.b1").await.unwrap_err().to_string();
        assert_eq!(error, "ISPN000485: Configuration 'org.b1' matches multiple wildcard templates");
    }
}
