use std::sync::atomic::{AtomicUsize, Ordering};

use consort_group::Time;

use super::outcome::Expired;
use super::shards::Shards;
use crate::Segment;

/// The next expiry begins at this segment, so that a busy segment does not starve others.
#[derive(Default)]
pub(super) struct ExpiryStart(AtomicUsize);

/// The expiry of a container's entries.
#[derive(Clone, Copy)]
pub struct Expiry<'c> {
    shards: &'c Shards,
    start: &'c ExpiryStart,
}

impl<'c> Expiry<'c> {
    pub(super) fn new(shards: &'c Shards, start: &'c ExpiryStart) -> Self {
        Self { shards, start }
    }

    /// Removes expired entries. Examines at most `looks_max` due entries; those with a `max_idle` may have
    /// been used. Call it again while [`Expiry::next_deadline`] is due.
    pub fn remove_expired(self, now: Time, looks_max: usize) -> Expired {
        self.remove_expired_in(|_| true, now, looks_max)
    }

    /// Like [`Expiry::remove_expired`], for the wanted segments only.
    pub fn remove_expired_in(
        self,
        is_wanted: impl Fn(Segment) -> bool,
        now: Time,
        looks_max: usize,
    ) -> Expired {
        let (shards, ExpiryStart(next_start)) = (self.shards, self.start);
        let mut expired = Expired::default();
        let mut looks = looks_max;
        let count = shards.count();
        let start = next_start.load(Ordering::Relaxed);
        for index in (start..count).chain(0..start) {
            if looks == 0 {
                next_start.store(index, Ordering::Relaxed);
                break;
            }
            let segment = Segment(index as u16);
            if shards.next_expiry(segment).is_none_or(|next| next > now) || !is_wanted(segment) {
                continue;
            }
            looks = shards.update(segment, |table| {
                let hash_of = |key: &[u8]| shards.hash_of(key);
                table.expire(segment, now, looks, hash_of, &mut expired)
            });
        }
        if !expired.taken.is_empty() {
            shards.statistics().note_expirations(expired.taken.len());
        }
        expired
    }

    /// The writer is about to remove the entry.
    pub(crate) fn note_expiration(self) {
        self.shards.statistics().note_expirations(1);
    }

    /// Returns the earliest time at which an entry may expire. Costs one load per segment.
    pub fn next_deadline(self) -> Option<Time> {
        self.next_deadline_in(|_| true)
    }

    /// Like [`Expiry::next_deadline`], for the wanted segments only.
    pub fn next_deadline_in(self, is_wanted: impl Fn(Segment) -> bool) -> Option<Time> {
        let deadlines = self.shards.next_expiries().filter(|&(segment, _)| is_wanted(segment));
        deadlines.map(|(_, next)| next).min()
    }
}
