use std::time::Duration;

use bytes::Bytes;
pub use consort_encoding::Lifetime;
use consort_group::Time;

use crate::Version;

pub(super) trait Deadlines {
    fn is_over(&self, created: Time, now: Time) -> bool;

    /// When to check again an entry that exceeded its max-idle time here: after half a `max_idle`, at least 1
    /// s, or at the end of its lifespan.
    fn ask_again(&self, created: Time, now: Time) -> Time;

    fn end(&self, created: Time, last_used: Time) -> Option<Time>;
}

impl Deadlines for Lifetime {
    fn is_over(&self, created: Time, now: Time) -> bool {
        self.lifespan.is_some_and(|lifespan| created + lifespan <= now)
    }

    fn ask_again(&self, created: Time, now: Time) -> Time {
        let later = now + (self.max_idle.unwrap_or_default() / 2).max(Duration::from_secs(1));
        self.lifespan.map_or(later, |lifespan| later.min(created + lifespan))
    }

    fn end(&self, created: Time, last_used: Time) -> Option<Time> {
        let lifespan = self.lifespan.map(|lifespan| created + lifespan);
        let idle = self.max_idle.map(|max_idle| last_used + max_idle);
        match (lifespan, idle) {
            (Some(lifespan), Some(idle)) => Some(lifespan.min(idle)),
            (one, other) => one.or(other),
        }
    }
}

/// Recognised by its address, because an empty value is valid.
static PASSIVE: [u8; 1] = [0];

/// An entry without its key. Clones share the value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The value.
    pub value: Bytes,
    /// The write's version.
    pub version: Version,
    /// The first write's time.
    pub created: Time,
    /// The last read's time for entries with a `max_idle`, else `created`.
    pub last_used: Time,
    /// Lifespan and max-idle time.
    pub lifetime: Lifetime,
}

impl Entry {
    /// Creates an entry, written now, that never expires.
    pub fn new(value: Bytes, version: Version, now: Time) -> Self {
        Self { value, version, created: now, last_used: now, lifetime: Lifetime::FOREVER }
    }

    /// Sets the lifetime.
    #[must_use]
    pub fn with_lifetime(mut self, lifetime: Lifetime) -> Self {
        self.lifetime = lifetime;
        self
    }

    /// Removes the value, which the store has.
    #[must_use]
    pub fn passivated(self) -> Self {
        Self { value: passive(), ..self }
    }

    /// Whether only the store has its value.
    pub fn is_passive(&self) -> bool {
        is_passive(&self.value)
    }

    /// Returns when it expires without a further use; none if never.
    pub fn expiry(&self) -> Option<Time> {
        self.lifetime.end(self.created, self.last_used)
    }

    /// Whether it exceeded its `max_idle` here, but lives if another member has used it.
    pub fn is_idle(&self, now: Time) -> bool {
        self.is_expired(now) && !self.lifetime.is_over(self.created, now)
    }

    /// Whether it has expired.
    pub fn is_expired(&self, now: Time) -> bool {
        self.expiry().is_some_and(|end| end <= now)
    }
}

pub(super) fn passive() -> Bytes {
    Bytes::from_static(&PASSIVE[..0])
}

#[inline]
pub(super) fn is_passive(value: &Bytes) -> bool {
    value.is_empty() && std::ptr::eq(value.as_ptr(), PASSIVE.as_ptr())
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn entry_expires_by_whichever_end_comes_first() {
        let lifetime = Lifetime { lifespan: Some(10 * S), max_idle: Some(4 * S) };
        let mut entry = Entry::new(Bytes::new(), Version::new(1, 1), Time::ZERO).with_lifetime(lifetime);
        assert_eq!(entry.expiry(), Some(Time::ZERO + 4 * S));
        entry.last_used = Time::ZERO + 9 * S;
        assert_eq!(entry.expiry(), Some(Time::ZERO + 10 * S));
        assert!(entry.is_expired(Time::ZERO + 10 * S) && !entry.is_expired(Time::ZERO + 9 * S));
        assert_eq!(entry.with_lifetime(Lifetime::FOREVER).expiry(), None);
    }

    #[test]
    fn an_empty_value_is_not_one_that_only_the_store_has() {
        for empty in [Bytes::new(), Bytes::from_static(&[]), Bytes::from(vec![1]).slice(1..)] {
            let entry = Entry::new(empty, Version::new(1, 1), Time::ZERO);
            assert!(!entry.is_passive() && entry.passivated().clone().is_passive());
        }
    }
}
