use std::time::Duration;

use consort_encoding::Lifetime;
use consort_hotrod::{Expiration, Flags, Span, TimeUnit};

use crate::limits::TIMEOUT;

pub(crate) fn expiration(lifetime: Lifetime) -> Expiration {
    Expiration { lifespan: span(lifetime.lifespan), max_idle: span(lifetime.max_idle) }
}

/// In milliseconds, rounded up: a short span must not become unlimited.
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
        let of = |span: Duration| expiration(Lifetime::lifespan(span)).lifespan;
        let milliseconds = |n| Span::Of(n, TimeUnit::Milliseconds);
        assert_eq!(of(Duration::from_secs(2)), milliseconds(2_000));
        assert_eq!(of(Duration::from_micros(1_500)), milliseconds(2));
        assert_eq!(of(Duration::ZERO), milliseconds(1));
        assert_eq!(expiration(Lifetime::FOREVER), Expiration::INFINITE);
    }
}
