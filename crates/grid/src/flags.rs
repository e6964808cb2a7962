//! What an operation does otherwise than its cache.

use std::ops::BitOr;

/// What an operation does otherwise than its cache. Several at once are joined with `|`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Flags(pub(crate) u8);

impl Flags {
    /// Nothing: as the cache does it.
    pub const NONE: Self = Self(0);

    /// Nobody else is asked or told. A read gives what this member has as an owner, else nothing. A write is done here
    /// only, for which the cache's mode must be [`CacheMode::Local`] or [`CacheMode::Invalidation`]: elsewhere owners would
    /// disagree.
    ///
    /// [`CacheMode::Local`]: crate::CacheMode::Local
    /// [`CacheMode::Invalidation`]: crate::CacheMode::Invalidation
    pub const LOCAL: Self = Self(1);

    /// Values are not loaded from stores. What only a store has reads as if it were absent, is no previous value, and is
    /// not equal to any; that the key is there, and its version, is known all the same.
    pub const SKIP_LOAD: Self = Self(2);

    /// A write is acknowledged when its primary has ordered it, before other owners have it. It is sent to them as always,
    /// and sent again for as long as its caller lives; what becomes of it then nobody is told. If the primary crashes
    /// meanwhile, the write is lost with its caller, or is ordered anew, perhaps after later ones.
    pub const ASYNC: Self = Self(4);

    /// Nobody who listens is told of a write, here or on other members. What the next write of the key was, created or modified,
    /// is told as it is.
    pub const SKIP_LISTENERS: Self = Self(8);

    /// Whether all of these are among them.
    pub const fn contains(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// Whether one of these is among them.
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
