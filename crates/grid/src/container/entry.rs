//! Entries as the container hands them out, and how long they live.

use std::time::Duration;

use bytes::Bytes;
use consort_group::Time;

use crate::Version;

/// How long an entry lives. By default for ever.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Lifetime {
    /// From when it was created.
    pub lifespan: Option<Duration>,
    /// From when it was last used.
    pub max_idle: Option<Duration>,
}

impl Lifetime {
    /// For ever.
    pub const FOREVER: Self = Self { lifespan: None, max_idle: None };

    /// Whether it never ends.
    pub fn is_forever(&self) -> bool {
        *self == Self::FOREVER
    }

    /// When an entry with these times has expired.
    pub(super) fn end(&self, created: Time, last_used: Time) -> Option<Time> {
        let lifespan = self.lifespan.map(|lifespan| created + lifespan);
        let idle = self.max_idle.map(|max_idle| last_used + max_idle);
        match (lifespan, idle) {
            (Some(lifespan), Some(idle)) => Some(lifespan.min(idle)),
            (one, other) => one.or(other),
        }
    }
}

/// What stands in place of a value that only the store has. It is told by where it is: an empty value is something else.
static PASSIVE: [u8; 1] = [0];

/// An entry without its key. A clone shares the value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The value, in an allocation of its own.
    pub value: Bytes,
    /// Which write it is of.
    pub version: Version,
    /// When it was written first.
    pub created: Time,
    /// When it was last read. Noted only for entries with a `max_idle`, else it is `created`.
    pub last_used: Time,
    /// How long it lives.
    pub lifetime: Lifetime,
}

impl Entry {
    /// An entry that is written now and lives for ever.
    pub fn new(value: Bytes, version: Version, now: Time) -> Self {
        Self { value, version, created: now, last_used: now, lifetime: Lifetime::FOREVER }
    }

    /// The same with a lifetime.
    #[must_use]
    pub fn with_lifetime(mut self, lifetime: Lifetime) -> Self {
        self.lifetime = lifetime;
        self
    }

    /// The same without its value, which the store has.
    #[must_use]
    pub fn passivated(self) -> Self {
        Self { value: Bytes::from_static(&PASSIVE[..0]), ..self }
    }

    /// Whether only the store has its value.
    pub fn is_passive(&self) -> bool {
        is_passive(&self.value)
    }

    /// When it has expired unless it is used before; none if never.
    pub fn expiry(&self) -> Option<Time> {
        self.lifetime.end(self.created, self.last_used)
    }

    /// Whether it has expired.
    pub fn is_expired(&self, now: Time) -> bool {
        self.expiry().is_some_and(|end| end <= now)
    }
}

/// Whether a value is only in the store.
#[inline]
pub(super) fn is_passive(value: &Bytes) -> bool {
    value.is_empty() && std::ptr::eq(value.as_ptr(), PASSIVE.as_ptr())
}

/// The bytes in an allocation that is exactly theirs, so that a small value does not keep a large receive buffer. It is
/// the allocation that they come in if nobody else uses that and it is the right size; else they are copied.
pub(super) fn right_sized(value: Bytes) -> Bytes {
    let value = Bytes::from(Vec::from(value).into_boxed_slice());
    // The first clone of such bytes allocates their count of references. Better here than under the lock of a read.
    drop(value.clone());
    value
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
    fn small_value_does_not_keep_the_buffer_that_it_came_in() {
        let buffer = Bytes::from(vec![7; 100_000]);
        for value in [buffer.slice(100..200), buffer.slice(..100), buffer.slice(99_900..)] {
            let mut kept = None;
            let used = allocation_counter::measure(|| kept = Some(right_sized(value)));
            assert_eq!(kept.as_deref(), Some(&[7; 100][..]));
            assert!(used.bytes_max < 200, "{used:?}");
        }
        // The last slice of a buffer that is otherwise gone has all of it for itself, and still must not keep it.
        let last = buffer.slice(99_900..);
        drop(buffer);
        let used = allocation_counter::measure(|| drop(std::hint::black_box(right_sized(last))));
        assert!(used.bytes_current <= -100_000, "{used:?}");
    }

    #[test]
    fn an_empty_value_is_not_one_that_only_the_store_has() {
        let empty = Entry::new(right_sized(Bytes::new()), Version::new(1, 1), Time::ZERO);
        assert!(
            !empty.is_passive() && !Entry { value: Bytes::from_static(&[]), ..empty.clone() }.is_passive()
        );
        assert!(empty.passivated().clone().is_passive());
    }

    #[test]
    fn value_that_nobody_else_uses_is_not_copied() {
        let value = Bytes::from(vec![7; 100_000]);
        let place = value.as_ptr();
        assert_eq!(right_sized(value).as_ptr(), place);
    }

    #[test]
    fn clone_of_a_kept_value_allocates_nothing() {
        let value = right_sized(Bytes::from(vec![7; 100]));
        let used = allocation_counter::measure(|| drop(std::hint::black_box(value.clone())));
        assert_eq!(used.count_total, 0);
    }
}
