//! The removal of expired entries, by the clock of this member.

use std::time::Duration;

use consort_group::Time;

use super::Caches;
use crate::cx::Cx;

/// The interval at which expired entries are removed. Until then they cannot be read, and use memory.
const EXPIRE_EVERY: Duration = Duration::from_secs(1);

/// Due entries that are checked in one batch: about 1 ms of work.
const EXPIRE_LOOKS: usize = 4_096;

/// The time until the next batch, if more entries are due.
const EXPIRE_PAUSE: Duration = Duration::from_millis(5);

/// The schedule of the removal of expired entries, for all caches of a member.
#[derive(Default)]
pub(super) struct ExpirySchedule {
    /// The next time at which entries may have expired.
    next: Option<Time>,
}

impl ExpirySchedule {
    /// Returns when entries may have expired.
    pub(super) fn next(&self) -> Option<Time> {
        self.next
    }

    /// Removes expired entries periodically.
    pub(super) fn expire(&mut self, cx: &mut Cx, caches: &mut Caches) {
        let now = cx.now;
        if self.next.is_none_or(|next| next > now) {
            return;
        }
        let mut is_all = true;
        for cache in caches.values_mut() {
            cache.expire(cx, EXPIRE_LOOKS);
            is_all &= !cache.shared.may_expire(cx);
        }
        self.next = if is_all { next_expiry(caches, now) } else { Some(now + EXPIRE_PAUSE) };
    }

    /// Notes that entries with an expiry were written.
    pub(super) fn note(&mut self, cx: &mut Cx) {
        if let Some(next) = cx.next_mortal.take() {
            // The new expiry may precede all known ones.
            let next = next.max(cx.now + EXPIRE_EVERY);
            self.next = Some(self.next.map_or(next, |known| known.min(next)));
        }
    }
}

/// Returns when entries may have expired, including those that other members remove while they are primaries.
fn next_expiry(caches: &Caches, now: Time) -> Option<Time> {
    let next = caches.values().filter_map(|cache| cache.shared.container.next_expiry()).min()?;
    Some(next.max(now + EXPIRE_EVERY))
}
