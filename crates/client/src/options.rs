//! The options of a cache handle.

use std::time::Duration;

use consort_hotrod::{Expiration, Flags, Span, TimeUnit};

use crate::limits::TIMEOUT;

/// The lifetime of an entry. `None` means unlimited.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Lifetime {
    /// Time since the write.
    pub lifespan: Option<Duration>,
    /// Time since the last use.
    pub max_idle: Option<Duration>,
}

impl Lifetime {
    /// No limits.
    pub const FOREVER: Self = Self { lifespan: None, max_idle: None };

    /// Returns a lifetime with this lifespan.
    pub const fn lifespan(lifespan: Duration) -> Self {
        Self { lifespan: Some(lifespan), max_idle: None }
    }

    pub(crate) fn expiration(self) -> Expiration {
        Expiration { lifespan: span(self.lifespan), max_idle: span(self.max_idle) }
    }
}

/// Converts to milliseconds, rounded up: a short span must not become unlimited.
fn span(span: Option<Duration>) -> Span {
    let Some(span) = span else { return Span::Infinite };
    let milliseconds = span.as_nanos().div_ceil(1_000_000).max(1);
    Span::Of(u64::try_from(milliseconds).unwrap_or(u64::MAX), TimeUnit::Milliseconds)
}

/// The options of a handle's operations, set by [`crate::Cache::with_options`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CacheOptions {
    /// The timeout, including waits for room and servers.
    pub timeout: Duration,
    /// The default lifetime of writes; `None` for the cache's.
    pub lifetime: Option<Lifetime>,
    /// Additional flags; requests for previous values need none.
    pub flags: Flags,
}

impl Default for CacheOptions {
    fn default() -> Self {
        Self { timeout: TIMEOUT, lifetime: None, flags: Flags::NONE }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_milliseconds_and_never_shorter_than_asked_for() {
        let of = |span: Duration| Lifetime::lifespan(span).expiration().lifespan;
        let milliseconds = |n| Span::Of(n, TimeUnit::Milliseconds);
        assert_eq!(of(Duration::from_secs(2)), milliseconds(2_000));
        assert_eq!(of(Duration::from_micros(1_500)), milliseconds(2));
        assert_eq!(of(Duration::ZERO), milliseconds(1));
        assert_eq!(Lifetime::FOREVER.expiration(), Expiration::INFINITE);
    }
}
