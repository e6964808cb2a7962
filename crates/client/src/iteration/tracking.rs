//! What a walk has given, so that it can go on at another server without giving it again.
//!
//! Servers say of a segment that it is finished when all its entries have been given. Until then its keys are remembered.

use std::collections::{BTreeMap, HashSet};

use consort_hotrod::hash::segment_of;

use crate::limits::WALKED_BYTES_MAX;

/// What a remembered key takes besides its bytes, about.
const KEY_OVERHEAD: usize = 48;

/// The keys that were given of segments that are not finished.
pub(super) struct Tracking {
    /// How many segments there are; without it all keys are of one.
    segments: Option<u32>,
    given: BTreeMap<usize, HashSet<Box<[u8]>>>,
    bytes: usize,
    bytes_max: usize,
    is_lost: bool,
}

impl Tracking {
    pub(super) const fn new(segments: Option<u32>) -> Self {
        Self { segments, given: BTreeMap::new(), bytes: 0, bytes_max: WALKED_BYTES_MAX, is_lost: false }
    }

    pub(super) const fn knows_segments(&self) -> bool {
        self.segments.is_some()
    }

    /// The segment of a key, if there is more than one.
    pub(super) fn segment(&self, key: &[u8]) -> Option<usize> {
        let segments = self.segments.filter(|segments| *segments > 0)?;
        Some(segment_of(key, segments) as usize)
    }

    /// Notes that a key is given. Whether it was not before.
    pub(super) fn is_new(&mut self, key: &[u8]) -> bool {
        if self.is_lost {
            return true;
        }
        let segment = self.segment(key).unwrap_or(0);
        let is_new = self.given.entry(segment).or_default().insert(key.into());
        if is_new {
            self.bytes += key.len() + KEY_OVERHEAD;
            if self.bytes > self.bytes_max {
                self.lose();
            }
        }
        is_new
    }

    /// All of a segment was given.
    pub(super) fn finish(&mut self, segment: usize) {
        if self.segments.is_none() {
            return;
        }
        if let Some(keys) = self.given.remove(&segment) {
            self.bytes -= keys.iter().map(|key| key.len() + KEY_OVERHEAD).sum::<usize>();
        }
    }

    /// What was given is not known any more: too much, or the server has other segments for keys than the client.
    pub(super) fn lose(&mut self) {
        self.given.clear();
        self.bytes = 0;
        self.is_lost = true;
    }

    /// Whether what was given can be told from what was not.
    pub(super) const fn is_lost(&self) -> bool {
        self.is_lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Facts 4.2: "key1" is in segment 46 of 256.
    #[test]
    fn keys_are_remembered_until_their_segment_is_finished() {
        let mut tracking = Tracking::new(Some(256));
        assert_eq!(tracking.segment(b"key1"), Some(46));
        assert!(tracking.is_new(b"key1"));
        assert!(!tracking.is_new(b"key1"));
        tracking.finish(45);
        assert!(!tracking.is_new(b"key1"));
        tracking.finish(46);
        assert_eq!(tracking.bytes, 0);
        assert!(tracking.is_new(b"key1"), "nothing of it is kept");
    }

    #[test]
    fn without_segments_all_keys_are_remembered() {
        let mut tracking = Tracking::new(None);
        assert!(tracking.is_new(b"key1"));
        tracking.finish(0);
        assert!(!tracking.is_new(b"key1"));
    }

    #[test]
    fn remembered_keys_are_bounded() {
        let mut tracking = Tracking { bytes_max: 1_000, ..Tracking::new(Some(16)) };
        for n in 0..100_u32 {
            assert!(tracking.is_new(&n.to_be_bytes()));
        }
        assert!(tracking.is_lost() && tracking.given.is_empty());
        assert!(tracking.is_new(&0_u32.to_be_bytes()), "it is not known");
    }
}
