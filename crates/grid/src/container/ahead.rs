//! Looking ahead: what the lookups of several keys will wait for in memory is fetched for all of them at once.
//!
//! A lookup in a large container waits for memory twice: for a line of the index, and then for the slot and the item, of
//! which the index knows where both are. Nothing else is in it that takes as long. Whoever has several keys to look up,
//! because several requests have come together, waits for all of them in the time of one.
#![allow(unsafe_code)]

use super::Container;
use super::table::KeyHash;
use crate::Segment;

/// For so many keys at a time. Their items have to be in the CPU's nearest cache still when they are looked up, and that has
/// 32 KiB or more.
pub const AHEAD_MAX: usize = 16;

/// Bytes of an item that are fetched: all of a small one, and of a large one as much as makes the CPU see by itself that it
/// is read in order. With 1,024 instead of 256 a server's reads of 1,000 bytes take 5 % less.
const ITEM_AHEAD: usize = 1024;

/// Bytes that the CPU fetches at once.
const LINE: usize = 64;

/// Begins to fetch what a value is in, or its first bytes if it is large, into the CPU's cache.
pub(super) fn fetch<T: ?Sized>(value: &T) {
    let begin = std::ptr::from_ref(value).cast::<u8>();
    for line in (0..size_of_val(value).min(ITEM_AHEAD)).step_by(LINE) {
        fetch_line(begin.wrapping_add(line));
    }
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn fetch_line(at: *const u8) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: a hint that neither reads for the program nor faults, whatever the address; every CPU of this kind has it.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
}

#[cfg(not(target_arch = "x86_64"))]
#[inline]
fn fetch_line(_: *const u8) {}

/// Where something begins in memory. Nothing is read through it: what was there may be gone.
#[derive(Clone, Copy)]
pub(super) struct Hint(usize);

impl Hint {
    pub(super) const NOWHERE: Self = Self(0);

    pub(super) fn of(bytes: &[u8]) -> Self {
        Self(bytes.as_ptr().addr())
    }
}

/// Begins to fetch the line where something begins.
#[inline]
pub(super) fn fetch_hinted(Hint(at): Hint) {
    fetch_line(std::ptr::without_provenance(at));
}

impl Container {
    /// Makes the next lookups of these keys faster, or of the first [`AHEAD_MAX`]; it shows in nothing else. Of one key
    /// there is nothing to be won.
    pub fn look_ahead<'k>(&self, keys: impl IntoIterator<Item = (Segment, &'k [u8])>) {
        let mut places = [(Segment(0), KeyHash(0), None); AHEAD_MAX];
        let mut count = 0;
        for ((segment, key), place) in keys.into_iter().zip(&mut places) {
            let hash = self.hash_of(key);
            self.lock(segment).fetch_cell(hash);
            *place = (segment, hash, None);
            count += 1;
        }
        for (segment, hash, slot) in &mut places[..count] {
            *slot = self.lock(*segment).fetch_slot(*hash);
        }
        for (segment, _, slot) in &places[..count] {
            if let Some(slot) = slot {
                self.lock(*segment).fetch_item(*slot);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::container::{ContainerSettings, Entry};
    use crate::{Lifetime, Version};
    use consort_group::Time;

    const SETTINGS: ContainerSettings =
        ContainerSettings { segment_count: 2, bound: None, is_backed: false, is_shared: false };

    #[test]
    fn keys_may_be_there_or_not_and_more_than_fit() {
        let container = Container::new(&SETTINGS, 1);
        container.own(Segment(0));
        let keys: Vec<Vec<u8>> = (0..3 * AHEAD_MAX).map(|key| vec![7; key]).collect();
        for (nth, key) in keys.iter().enumerate().step_by(2) {
            let entry = Entry {
                value: Bytes::from(vec![1; nth * 500]),
                version: Version::new(1, 1),
                created: Time::ZERO,
                last_used: Time::ZERO,
                lifetime: Lifetime::FOREVER,
            };
            container.put(Segment(0), key, entry, Time::ZERO).unwrap();
        }
        for segment in [Segment(0), Segment(1)] {
            for chunk in keys.chunks(2 * AHEAD_MAX) {
                container.look_ahead(chunk.iter().map(|key| (segment, &key[..])));
            }
        }
        container.look_ahead([]);
        for (nth, key) in keys.iter().enumerate() {
            let value = container.get_value(Segment(0), key, || Time::ZERO);
            assert_eq!(value.map(|value| value.len()), (nth % 2 == 0).then_some(nth * 500));
        }
    }

    #[test]
    fn nothing_counts_as_used() {
        let container = Container::new(&SETTINGS, 1);
        container.own(Segment(0));
        let max_idle = Lifetime { lifespan: None, max_idle: Some(std::time::Duration::from_secs(5)) };
        let entry = Entry {
            value: Bytes::new(),
            version: Version::new(1, 1),
            created: Time::ZERO,
            last_used: Time::ZERO,
            lifetime: max_idle,
        };
        container.put(Segment(0), b"key", entry.clone(), Time::ZERO).unwrap();
        container.look_ahead([(Segment(0), &b"key"[..])]);
        assert_eq!(container.peek(Segment(0), b"key"), Some(entry));
    }
}
