//! Templates of clients: definitions under names that no cache can have. A cache from a template has no link to it.

use bytes::Bytes;

use crate::catalog::admin_error::AdminError;
use crate::catalog::caches::Caches;
use crate::catalog::definition::{self, Definition, DefinitionError};
use crate::catalog::registry::Lifecycle;
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
