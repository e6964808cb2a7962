//! Whether the coordinator balances the owners of a cache.

use std::collections::BTreeSet;

use crate::CacheId;

/// The caches whose owners are balanced: by default all.
///
/// In a cache that is not balanced, members that join own no segments, and the copies of members that are lost or leave are not
/// replaced. If the last owner of a segment leaves, the segment gets new ones all the same; if that owner crashes, its entries are
/// lost. A new cache is balanced until its segments have had all their owners (two in a replicated cache), or another member becomes
/// coordinator. In an
/// invalidation cache each member owns all segments in any case.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Rebalancing {
    /// Whether the caches are not balanced.
    pub is_disabled: bool,
    /// The caches to which the opposite applies.
    pub exceptions: BTreeSet<CacheId>,
}

impl Rebalancing {
    /// Returns whether the owners of a cache are balanced.
    pub fn is_enabled(&self, cache: CacheId) -> bool {
        self.is_disabled == self.exceptions.contains(&cache)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caches_are_balanced_unless_they_or_all_others_are_not() {
        let [one, other] = ["one", "other"].map(CacheId::of);
        let enabled = |rebalancing: &Rebalancing| [one, other].map(|cache| rebalancing.is_enabled(cache));
        assert_eq!(enabled(&Rebalancing::default()), [true, true]);
        let exceptions = BTreeSet::from([one]);
        let one_disabled = Rebalancing { is_disabled: false, exceptions };
        assert_eq!(enabled(&one_disabled), [false, true]);
        assert_eq!(enabled(&Rebalancing { is_disabled: true, ..one_disabled }), [true, false]);
    }
}
