//! The keys that an iteration has yielded, kept until their segment is reported as finished, so that it can resume elsewhere
//! without duplicates.

use std::collections::{BTreeMap, HashSet};

use consort_hotrod::hash::segment_of;

use crate::limits::WALKED_BYTES_MAX;

/// Approximate.
const KEY_OVERHEAD: usize = 48;

pub(super) struct Tracking {
    /// `None`: all keys count as one segment.
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

    pub(super) fn segment(&self, key: &[u8]) -> Option<usize> {
        let segments = self.segments.filter(|segments| *segments > 0)?;
        Some(segment_of(key, segments) as usize)
    }

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

    pub(super) fn finish(&mut self, segment: usize) {
        if self.segments.is_none() {
            return;
        }
        if let Some(keys) = self.given.remove(&segment) {
            self.bytes -= keys.iter().map(|key| key.len() + KEY_OVERHEAD).sum::<usize>();
        }
    }

    /// Gives up: the keys take too much memory, or the server maps keys to segments differently.
    pub(super) fn lose(&mut self) {
        self.given.clear();
        self.bytes = 0;
        self.is_lost = true;
    }

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
        assert!(tracking.is_new(b"key1"), "the key was dropped");
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
        assert!(tracking.is_new(&0_u32.to_be_bytes()), "tracking was given up");
    }
}
