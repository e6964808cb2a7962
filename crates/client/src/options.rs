//! What a handle of a cache asks for with every operation.

use std::time::Duration;

use consort_hotrod::{Expiration, Flags, Span, TimeUnit};

use crate::limits::TIMEOUT;

/// How long an entry lives. `None` is for ever.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Lifetime {
    /// From when it was written.
    pub lifespan: Option<Duration>,
    /// From when it was last used.
    pub max_idle: Option<Duration>,
}

impl Lifetime {
    /// For ever.
    pub const FOREVER: Self = Self { lifespan: None, max_idle: None };

    /// An entry that lives so long after it was written.
    pub const fn lifespan(lifespan: Duration) -> Self {
        Self { lifespan: Some(lifespan), max_idle: None }
    }

    pub(crate) fn expiration(self) -> Expiration {
        Expiration { lifespan: span(self.lifespan), max_idle: span(self.max_idle) }
    }
}

/// Milliseconds are what servers keep. Nothing is cut off: what lives for a moment does not live for ever.
fn span(span: Option<Duration>) -> Span {
    let Some(span) = span else { return Span::Infinite };
    let milliseconds = span.as_nanos().div_ceil(1_000_000).max(1);
    Span::Of(u64::try_from(milliseconds).unwrap_or(u64::MAX), TimeUnit::Milliseconds)
}

/// What a handle of a cache asks for with every operation. [`crate::Cache::with_options`] makes a handle with others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CacheOptions {
    /// How long an operation may take, waiting for room and for servers included.
    pub timeout: Duration,
    /// How long entries live that are written without saying so: as the cache's settings have it, unless it is said here.
    pub lifetime: Option<Lifetime>,
    /// What else is asked for. Previous values are asked for by the operations that return them.
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
