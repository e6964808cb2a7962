//! Versions of entries, which order the writes of a key. The primary counts a segment's writes behind the
//! topology id, so that a new primary's writes are newer than all of the previous one.

use std::fmt;

/// 2^40 writes of a segment in one topology are 34 years at 1,000 writes a second; 2^24 topologies are 31
/// years at one a minute.
const COUNT_BITS: u32 = 40;
const COUNT_MAX: u64 = (1 << COUNT_BITS) - 1;

/// A topology's id and the count of a segment's writes in it. Later versions are greater.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Version(pub u64);

impl Version {
    /// The last topology id with distinct versions.
    pub const TOPOLOGY_MAX: u32 = (1 << (u64::BITS - COUNT_BITS)) - 1;

    /// No version: older than every entry's.
    pub const NONE: Self = Self(0);

    /// Returns a version. A number that does not fit becomes the greatest that does: the order holds, but
    /// versions beyond are not distinct.
    pub const fn new(topology: u32, count: u64) -> Self {
        let topology = if topology > Self::TOPOLOGY_MAX { Self::TOPOLOGY_MAX } else { topology };
        let count = if count > COUNT_MAX { COUNT_MAX } else { count };
        Self((topology as u64) << COUNT_BITS | count)
    }

    /// Returns the topology's id.
    pub const fn topology(self) -> u32 {
        (self.0 >> COUNT_BITS) as u32
    }

    /// Returns the count.
    pub const fn count(self) -> u64 {
        self.0 & COUNT_MAX
    }

    /// Whether it is no version.
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.topology(), self.count())
    }
}

impl fmt::Debug for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_topology_is_newer_than_any_count() {
        assert!(Version::new(3, 0) > Version::new(2, COUNT_MAX));
        assert!(Version::new(2, 8) > Version::new(2, 7));
        assert!(Version::new(0, 1) > Version::NONE && Version::NONE.is_none());
    }

    #[test]
    fn parts_are_given_back() {
        let version = Version::new(7, 5_000_000_000);
        assert_eq!((version.topology(), version.count()), (7, 5_000_000_000));
        assert_eq!(version.to_string(), "7.5000000000");
    }

    #[test]
    fn version_part_that_overflows_leaves_the_other_part_unchanged() {
        assert_eq!(Version::new(1, u64::MAX), Version::new(1, COUNT_MAX));
        assert_eq!(Version::new(u32::MAX, 3), Version::new(Version::TOPOLOGY_MAX, 3));
    }
}
