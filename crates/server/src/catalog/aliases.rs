//! The aliases of caches as far as this server knows them.

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};

/// The cache of each alias as far as this server knows, for times at which it does not have the definitions.
#[derive(Default)]
pub(crate) struct Aliases(RwLock<KnownAliases>);

#[derive(Default)]
struct KnownAliases {
    all: BTreeMap<String, String>,
    /// The number of changes by clients of this server.
    age: u64,
}

impl Aliases {
    /// The cache of an alias.
    pub(crate) fn cache_of(&self, alias: &str) -> Option<String> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).all.get(alias).cloned()
    }

    /// Returns the number of changes, which [`Aliases::refresh`] compares.
    pub(crate) fn age(&self) -> u64 {
        self.0.read().unwrap_or_else(PoisonError::into_inner).age
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut BTreeMap<String, String>)) {
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        known.age += 1;
        change(&mut known.all);
    }

    /// Stores the aliases that were read since this age. If clients have changed aliases meanwhile, the next read comes
    /// soon.
    pub(crate) fn refresh(&self, all: BTreeMap<String, String>, age: u64) {
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if known.age == age {
            known.all = all;
        }
    }
}
