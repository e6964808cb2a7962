//! Entries as commands speak of them.

use std::time::Duration;

use bytes::Bytes;
use consort_group::Time;

use super::cache::Cache;
use super::cx::Cx;
use crate::operation::Stored;
use crate::{Entry, Lifetime, Segment, Version};

/// An entry as it travels.
pub(crate) fn stored(entry: Entry, now: Time) -> Stored {
    Stored {
        age: now.since(entry.created),
        idle: now.since(entry.last_used),
        value: entry.value,
        version: entry.version,
        lifetime: entry.lifetime,
    }
}

/// An entry that has travelled.
pub(crate) fn unpacked(stored: Stored, now: Time) -> Entry {
    let ago = |span: Duration| Time(now.0.saturating_sub(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)));
    Entry {
        created: ago(stored.age),
        last_used: ago(stored.idle),
        value: stored.value,
        version: stored.version,
        lifetime: stored.lifetime,
    }
}

impl Cache {
    /// What a key has, for a decision: no use of it.
    pub(super) fn entry(&self, now: Time, segment: Segment, key: &[u8]) -> Option<Entry> {
        self.container.peek(segment, key).filter(|entry| !entry.is_expired(now))
    }

    /// What a key has, for somebody else.
    pub(super) fn stored(&self, now: Time, segment: Segment, key: &[u8]) -> Option<Stored> {
        self.container.get(segment, key, || now).map(|entry| stored(entry, now))
    }

    /// Writes as the primary. Returns whether there was room.
    pub(super) fn put_new(
        &self,
        cx: &mut Cx,
        segment: Segment,
        key: &[u8],
        value: Bytes,
        version: Version,
        lifetime: Lifetime,
    ) -> bool {
        let now = cx.now;
        cx.has_mortals |= !lifetime.is_forever();
        let entry = Entry { value, version, created: now, last_used: now, lifetime };
        self.container.put(segment, key, entry, now).is_ok()
    }

    /// Writes what another owner has, unless something as new is known.
    pub(super) fn put_copy(&self, cx: &mut Cx, segment: Segment, key: &[u8], stored: Stored) {
        let now = cx.now;
        cx.has_mortals |= !stored.lifetime.is_forever();
        // Who has no room for what the primary had room for lacks it, as if it had been evicted.
        let _ = self.container.put_if_newer(segment, key, unpacked(stored, now), now);
    }

    /// Removes, unless something as new is known.
    pub(super) fn erase(&self, now: Time, segment: Segment, key: &[u8], version: Version) {
        let _ = self.container.remove_if_newer(segment, key, version, now);
    }
}
