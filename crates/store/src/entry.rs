//! What a store keeps: entries by segment and key, with the times by which they expire.
//!
//! These are values of the store's own, so that it depends on nothing of the grid. Times are wall-clock milliseconds
//! since the Unix epoch, because they must mean the same after a restart.

use bytes::Bytes;

/// A segment of a cache. Numbers begin at 0 and are less than the store's number of segments.
pub type Segment = u16;

/// One entry of a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Segment that the key belongs to. The store takes the caller's word for it.
    pub segment: Segment,
    /// Key as it is stored.
    pub key: Bytes,
    /// Value as it is stored.
    pub value: Bytes,
    /// Version that the grid gave the write. The store keeps it and does not compare it.
    pub version: u64,
    /// When the entry was made and how long it lives.
    pub times: Times,
}

impl Entry {
    /// An entry of version 0 that lives for ever.
    pub fn immortal(segment: Segment, key: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        Self { segment, key: key.into(), value: value.into(), version: 0, times: Times::default() }
    }
}

/// When an entry was made and used, and how long it lives, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// When the entry was written.
    pub created: u64,
    /// The last use that the store has been told of; the time of writing if of none.
    pub used: u64,
    /// How long the entry lives after `created`. None: for ever.
    pub lifespan: Option<u64>,
    /// How long the entry lives after its last use. None: for ever.
    pub max_idle: Option<u64>,
}

impl Times {
    /// The moment from which on the entry has expired, None if it never does.
    pub fn expires_at(&self) -> Option<u64> {
        let by_age = self.lifespan.map(|lifespan| self.created.saturating_add(lifespan));
        let by_use = self.max_idle.map(|max_idle| self.used.saturating_add(max_idle));
        match (by_age, by_use) {
            (Some(age), Some(idle)) => Some(age.min(idle)),
            (age, idle) => age.or(idle),
        }
    }
}

/// A change of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The key has this value from now on.
    Put(Entry),
    /// The key has no value from now on.
    Remove {
        /// Segment of the key.
        segment: Segment,
        /// The key.
        key: Bytes,
    },
}

impl Change {
    /// Segment of the key that changes.
    pub fn segment(&self) -> Segment {
        match self {
            Self::Put(entry) => entry.segment,
            Self::Remove { segment, .. } => *segment,
        }
    }

    /// The key that changes.
    pub fn key(&self) -> &Bytes {
        match self {
            Self::Put(entry) => &entry.key,
            Self::Remove { key, .. } => key,
        }
    }

    /// Bytes of key and value.
    pub fn bytes_len(&self) -> usize {
        match self {
            Self::Put(entry) => entry.key.len() + entry.value.len(),
            Self::Remove { key, .. } => key.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_expires_at_the_earlier_of_lifespan_and_max_idle() {
        let times = |lifespan, max_idle| Times { created: 100, used: 150, lifespan, max_idle };
        assert_eq!(times(None, None).expires_at(), None);
        assert_eq!(times(Some(10), None).expires_at(), Some(110));
        assert_eq!(times(None, Some(10)).expires_at(), Some(160));
        assert_eq!(times(Some(100), Some(10)).expires_at(), Some(160));
        assert_eq!(times(Some(u64::MAX), None).expires_at(), Some(u64::MAX), "no overflow");
    }
}
