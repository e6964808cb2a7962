use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};

/// For times at which this server does not have the definitions.
#[derive(Default)]
pub(crate) struct Aliases(RwLock<KnownAliases>);

#[derive(Default)]
struct KnownAliases {
    all: BTreeMap<String, String>,
    age: u64,
}

impl Aliases {
    pub(crate) fn cache_of(&self, alias: &str) -> Option<String> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).all.get(alias).cloned()
    }

    pub(crate) fn age(&self) -> u64 {
        self.0.read().unwrap_or_else(PoisonError::into_inner).age
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut BTreeMap<String, String>)) {
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        known.age += 1;
        change(&mut known.all);
    }

    /// Stores nothing if clients have changed aliases since this age: the next read comes soon.
    pub(crate) fn refresh(&self, all: BTreeMap<String, String>, age: u64) {
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if known.age == age {
            known.all = all;
        }
    }
}
