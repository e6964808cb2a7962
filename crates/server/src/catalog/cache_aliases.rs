//! An alias is an entry among the definitions, under a name that no cache can have. One write moves it from one cache to another,
//! so that clients always find one of them.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use consort_cache::{CacheError, Lookup};

use crate::catalog::admin_error::AdminError;
use crate::catalog::caches::Caches;
use crate::catalog::registry::{Lifecycle, Registry};
use crate::names::is_internal;

const KEY: &str = "___alias ";

fn key(alias: &str) -> Bytes {
    format!("{KEY}{alias}").into()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub(crate) async fn aliases_of(definitions: &Registry, cache: &str) -> Result<BTreeSet<String>, CacheError> {
    let defined = definitions.entries().await?;
    let own = defined.iter().filter(|(_, target)| **target == cache.as_bytes());
    Ok(own.filter_map(|(name, _)| Some(text(name).strip_prefix(KEY)?.to_owned())).collect())
}

impl Caches {
    /// Does not wait: a server that changes an alias answers its client only when every server has the change.
    pub(crate) fn alias_here(&self, alias: &str) -> Option<String> {
        match self.definitions.persistent_here(&key(alias)) {
            Lookup::Hit(cache) => Some(text(&cache)),
            Lookup::Miss => None,
            Lookup::NotLocal => self.aliases.cache_of(alias),
        }
    }

    pub(crate) async fn alias(&self, alias: &str) -> Result<Option<String>, CacheError> {
        Ok(self.definitions.get(&key(alias)).await?.map(|cache| text(&cache)))
    }

    pub(crate) async fn check_aliases(
        &self,
        cache: &str,
        aliases: impl Iterator<Item = &String>,
    ) -> Result<(), AdminError> {
        for alias in aliases {
            if self.definitions.get(alias.as_bytes()).await?.is_some() {
                return Err(AdminError::Twice(alias.clone()));
            }
            if let Some(other) = self.alias(alias).await?.filter(|other| other != cache) {
                return Err(AdminError::InUse { alias: alias.clone(), cache: other });
            }
        }
        Ok(())
    }

    pub(crate) async fn assign_alias(&self, alias: &str, cache: &str) -> Result<(), AdminError> {
        if alias.is_empty() || is_internal(alias) || alias.contains(char::is_whitespace) {
            return Err(AdminError::NoAlias(alias.to_owned()));
        }
        let target = self.alias(cache).await?;
        let cache = target.as_deref().unwrap_or(cache);
        if is_internal(cache) || self.definitions.get(cache.as_bytes()).await?.is_none() {
            return Err(AdminError::NoCache(cache.to_owned()));
        }
        if self.definitions.get(alias.as_bytes()).await?.is_some() {
            return Err(AdminError::Twice(alias.to_owned()));
        }
        self.point(alias, cache).await
    }

    async fn point(&self, alias: &str, cache: &str) -> Result<(), AdminError> {
        let (key, value) = (key(alias), Bytes::copy_from_slice(cache.as_bytes()));
        // A repetition means that another change of this alias has succeeded.
        loop {
            let done = match self.definitions.get_linearizable(&key).await? {
                Some(before) => before == value || self.definitions.replace(&key, &before, &value).await?,
                None if !self.has_room_for_definition().await? => {
                    return Err(AdminError::TooMany);
                }
                None => self.definitions.add(&key, value.clone(), Lifecycle::Persistent).await?,
            };
            if done {
                self.aliases.change(|all| drop(all.insert(alias.to_owned(), cache.to_owned())));
                return Ok(());
            }
        }
    }

    /// Also removes the cache's other aliases.
    pub(crate) async fn set_aliases(
        &self,
        cache: &str,
        aliases: &BTreeSet<String>,
    ) -> Result<(), AdminError> {
        for alias in aliases {
            self.point(alias, cache).await?;
        }
        for alias in aliases_of(&self.definitions, cache).await?.difference(aliases) {
            self.forget_alias(alias).await?;
        }
        Ok(())
    }

    async fn forget_alias(&self, alias: &str) -> Result<(), CacheError> {
        self.definitions.remove(&key(alias)).await?;
        self.aliases.change(|all| drop(all.remove(alias)));
        Ok(())
    }

    /// Stores the aliases among all definitions read at this age. The first member removes aliases whose cache is gone, as
    /// volatile ones are after a full restart.
    pub(crate) async fn refresh_aliases(
        &self,
        defined: &BTreeMap<String, Bytes>,
        age: u64,
    ) -> Result<(), CacheError> {
        let all = defined.iter().filter_map(|(name, cache)| Some((name.strip_prefix(KEY)?, text(cache))));
        let all: BTreeMap<String, String> = all.map(|(alias, cache)| (alias.to_owned(), cache)).collect();
        if self.members_if_first().is_some() {
            for (alias, cache) in all.iter().filter(|(_, cache)| !defined.contains_key(*cache)) {
                // A cache that was defined after the iteration had passed its key is not gone.
                if self.definitions.get(cache.as_bytes()).await?.is_none() {
                    self.forget_alias(alias).await?;
                }
            }
        }
        self.aliases.refresh(all, age);
        Ok(())
    }
}
