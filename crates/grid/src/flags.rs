//! Flags of an operation, which override the behaviour of its cache.

use std::ops::BitOr;

/// Flags of an operation, which override the behaviour of its cache. Combine several with `|`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Flags(pub(crate) u8);

impl Flags {
    /// No flags: the behaviour of the cache.
    pub const NONE: Self = Self(0);

    /// No message to other members. A read returns this member's entry if it is an owner, else none. A write applies
    /// here only. The cache's mode must be [`CacheMode::Local`] or [`CacheMode::Invalidation`], because in other
    /// modes owners would disagree.
    ///
    /// [`CacheMode::Local`]: crate::CacheMode::Local
    /// [`CacheMode::Invalidation`]: crate::CacheMode::Invalidation
    pub const LOCAL: Self = Self(1);

    /// Values are not loaded from stores. A value that only a store has reads as absent, is not returned as previous
    /// value, and is not equal to any value. Conditions on the presence of the key and on its version still work.
    pub const SKIP_LOAD: Self = Self(2);

    /// A write is acknowledged when its primary has ordered it, before other owners have it. It is sent to them as
    /// always, and repeated as long as its caller lives. The caller does not learn the final result. If the primary
    /// crashes meanwhile, the write is lost with its caller, or is ordered anew, perhaps after later ones.
    pub const ASYNC: Self = Self(4);

    /// Listeners get no event of a write, here or on other members. The event of the key's next write still
    /// distinguishes created from modified.
    pub const SKIP_LISTENERS: Self = Self(8);

    /// Whether all of `flags` are set.
    pub const fn contains(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// Whether one of `flags` is set.
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
