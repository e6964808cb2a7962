//! Flags of an operation.

use std::ops::BitOr;

/// Flags that override a cache's behaviour, combined with `|`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Flags(pub(crate) u8);

impl Flags {
    /// The cache's behaviour.
    pub const NONE: Self = Self(0);

    /// No messages: a read returns this owner's entry, and a write applies here only. Other modes than
    /// [`CacheMode::Local`] and [`CacheMode::Invalidation`] refuse it, because owners would disagree.
    ///
    /// [`CacheMode::Local`]: crate::CacheMode::Local
    /// [`CacheMode::Invalidation`]: crate::CacheMode::Invalidation
    pub const LOCAL: Self = Self(1);

    /// No loads from stores. A value that only a store has reads as absent, is no previous value, and equals
    /// no value. Conditions on presence and version still work.
    pub const SKIP_LOAD: Self = Self(2);

    /// A write is acknowledged when its primary has ordered it. It is repeated to the owners as long as its
    /// caller lives, which does not learn the result. If the primary crashes, the write is lost with its
    /// caller, or is ordered anew, perhaps after later ones.
    pub const ASYNC: Self = Self(4);

    /// Listeners get no event of a write. The key's next event still distinguishes created from modified.
    pub const SKIP_LISTENERS: Self = Self(8);

    /// Whether all of `flags` are set.
    pub const fn contains(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }

    pub(crate) const fn has_any(self, flags: Self) -> bool {
        self.0 & flags.0 != 0
    }
}

impl BitOr for Flags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}
