use std::time::Duration;

use consort_group::Time;

use super::Caches;
use crate::cx::Cx;

/// Until then expired entries are unreadable and use memory.
const EXPIRE_EVERY: Duration = Duration::from_secs(1);

/// About 1 ms of work.
const EXPIRE_LOOKS: usize = 4_096;

const EXPIRE_PAUSE: Duration = Duration::from_millis(5);

#[derive(Default)]
pub(super) struct ExpirySchedule {
    next: Option<Time>,
}

impl ExpirySchedule {
    pub(super) fn next(&self) -> Option<Time> {
        self.next
    }

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

    pub(super) fn note(&mut self, cx: &mut Cx) {
        if let Some(next) = cx.next_mortal.take() {
            // The new expiry may precede all known ones.
            let next = next.max(cx.now + EXPIRE_EVERY);
            self.next = Some(self.next.map_or(next, |known| known.min(next)));
        }
    }
}

/// Entries that other members remove while they are primaries count, too.
fn next_expiry(caches: &Caches, now: Time) -> Option<Time> {
    let next = caches.values().filter_map(|cache| cache.shared.container.expiry().next_deadline()).min()?;
    Some(next.max(now + EXPIRE_EVERY))
}
