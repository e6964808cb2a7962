//! Lifetimes of entries.

use std::time::Duration;

/// The lifetime of an entry. By default unlimited. In an embedded cache an entry with a time of zero expires at once:
/// its key is absent. The client sends whole milliseconds, at least one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Lifetime {
    /// The lifespan, from its write; `None` means unlimited.
    pub lifespan: Option<Duration>,
    /// The max-idle time, from its last use by any owner; `None` means unlimited. The first of both times to end
    /// counts.
    pub max_idle: Option<Duration>,
}

impl Lifetime {
    /// An unlimited lifetime.
    pub const FOREVER: Self = Self { lifespan: None, max_idle: None };

    /// Returns a lifetime with this lifespan.
    pub const fn lifespan(lifespan: Duration) -> Self {
        Self { lifespan: Some(lifespan), max_idle: None }
    }

    /// Whether it is unlimited.
    pub fn is_forever(&self) -> bool {
        *self == Self::FOREVER
    }
}
