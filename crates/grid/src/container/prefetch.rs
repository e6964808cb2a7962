//! Prefetch: the memory that lookups of several keys will read is fetched for all of them at once.
//!
//! A lookup in a large container waits for memory twice, and no other part takes as long: for a line of the
//! index, and then for the slot and the item, whose addresses the index has. A caller with several keys,
//! because several requests have arrived together, waits for all in the time of one.
#![allow(unsafe_code)]

use super::Container;
use super::key_hash::KeyHash;
use crate::Segment;

/// The limit of keys in one call. Their items must still be in the CPU's nearest cache, of 32 KiB or more, at
/// the lookup.
pub const PREFETCH_MAX: usize = 16;

/// The prefetched bytes of an item: all of a small one, and enough of a large one for the CPU to detect a
/// sequential read. With 1,024 instead of 256 a server's reads of 1,000 bytes take 5 % less.
const ITEM_AHEAD: usize = 1024;

const LINE: usize = 64;

/// All lines of a value, or those of its first bytes if it is large.
pub(super) fn fetch<T: ?Sized>(value: &T) {
    let begin = std::ptr::from_ref(value).cast::<u8>();
    // A value that begins in the middle of a line has one line more than its size.
    let before = begin.addr() % LINE;
    let end = before + size_of_val(value).min(ITEM_AHEAD);
    for line in (0..end).step_by(LINE) {
        fetch_line(begin.wrapping_add(line).wrapping_sub(before));
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

/// Never dereferenced: the object may be freed.
#[derive(Clone, Copy, Default)]
pub(super) struct SlotAddress(usize);

/// The cache line of an address, in 32 bits.
#[derive(Clone, Copy)]
pub(super) struct PrefetchHint(u32);

impl PrefetchHint {
    pub(super) const NOWHERE: Self = Self(0);
}

impl SlotAddress {
    #[inline]
    pub(super) fn from_bytes(bytes: &[u8]) -> Self {
        Self(bytes.as_ptr().addr())
    }

    #[inline]
    pub(super) fn hint(self) -> PrefetchHint {
        PrefetchHint((self.0 / LINE) as u32)
    }

    /// Of the lines with the hint's bits, the nearest to this address. Such lines are 256 GiB apart, so the
    /// result is right if all allocations lie within half of that. A wrong line only makes the prefetch
    /// useless.
    #[inline]
    fn line(self, hint: PrefetchHint) -> usize {
        let here = self.0 / LINE;
        let apart = hint.0.wrapping_sub(here as u32) as i32;
        here.wrapping_add_signed(apart as isize).wrapping_mul(LINE)
    }

    #[inline]
    pub(super) fn fetch(self, hint: PrefetchHint) {
        fetch_line(std::ptr::without_provenance(self.line(hint)));
    }
}

impl Container {
    /// Makes the next lookups of these keys faster, or of the first [`PREFETCH_MAX`]; there is no other effect. One key
    /// alone gains nothing.
    pub fn prefetch<'k>(&self, keys: impl IntoIterator<Item = (Segment, &'k [u8])>) {
        let mut places = [(Segment(0), KeyHash(0), None); PREFETCH_MAX];
        let mut count = 0;
        for ((segment, key), place) in keys.into_iter().zip(&mut places) {
            let hash = self.shards.hash_of(key);
            self.shards.lock(segment).fetch_cell(hash);
            *place = (segment, hash, None);
            count += 1;
        }
        for (segment, hash, slot) in &mut places[..count] {
            *slot = self.shards.lock(*segment).fetch_slot(*hash);
        }
        for (segment, _, slot) in &places[..count] {
            if let Some(slot) = slot {
                self.shards.lock(*segment).fetch_item(*slot);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn a_hint_means_the_line_that_it_was_made_of_from_either_side_of_it() {
        let bytes = vec![0; 10_000];
        let here = bytes.as_ptr().addr();
        for at in (0..bytes.len()).step_by(100) {
            let meant = SlotAddress::from_bytes(&bytes[at..]).hint();
            let line = (here + at) / LINE * LINE;
            let far = 100 << 30;
            for near in [here, here + at, here + far, here.saturating_sub(far)] {
                assert_eq!(SlotAddress(near).line(meant), line);
            }
        }
    }
    use crate::container::{ContainerSettings, Entry};
    use crate::{Lifetime, Version};
    use consort_group::Time;

    const SETTINGS: ContainerSettings =
        ContainerSettings { segment_count: 2, bound: None, is_backed: false, is_shared: false };

    #[test]
    fn keys_may_be_there_or_not_and_more_than_fit() {
        let container = Container::new(&SETTINGS, 1);
        container.own(Segment(0));
        let keys: Vec<Vec<u8>> = (0..3 * PREFETCH_MAX).map(|key| vec![7; key]).collect();
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
            for chunk in keys.chunks(2 * PREFETCH_MAX) {
                container.prefetch(chunk.iter().map(|key| (segment, &key[..])));
            }
        }
        container.prefetch([]);
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
        container.prefetch([(Segment(0), &b"key"[..])]);
        assert_eq!(container.peek(Segment(0), b"key"), Some(entry));
    }
}
