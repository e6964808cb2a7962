//! Entries of a store, independent of the grid's types. Times are wall-clock milliseconds since the Unix
//! epoch, because they must stay valid across restarts.

use bytes::Bytes;

/// A segment of a cache, from 0.
pub type Segment = u16;

/// An entry of a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The segment, as given by the caller.
    pub segment: Segment,
    /// The key.
    pub key: Bytes,
    /// The value.
    pub value: Bytes,
    /// The grid's version.
    pub version: u64,
    /// The creation time and lifetime.
    pub times: Times,
}

impl Entry {
    /// Creates an entry of version 0 without expiry.
    pub fn immortal(segment: Segment, key: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        Self { segment, key: key.into(), value: value.into(), version: 0, times: Times::default() }
    }
}

/// Creation, last use and lifetime, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// The time of the write.
    pub created: u64,
    /// The last known use, initially `created`.
    pub used: u64,
    /// The lifespan from `created`; `None`: unlimited.
    pub lifespan: Option<u64>,
    /// The time since the last use; `None`: unlimited.
    pub max_idle: Option<u64>,
}

impl Times {
    /// Returns when the entry expires; `None` if never.
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
    /// Sets the entry of a key.
    Put(Entry),
    /// Removes a key.
    Remove {
        /// The key's segment.
        segment: Segment,
        /// The key.
        key: Bytes,
    },
}

impl Change {
    /// Returns the key's segment.
    pub fn segment(&self) -> Segment {
        match self {
            Self::Put(entry) => entry.segment,
            Self::Remove { segment, .. } => *segment,
        }
    }

    /// Returns the key.
    pub fn key(&self) -> &Bytes {
        match self {
            Self::Put(entry) => &entry.key,
            Self::Remove { key, .. } => key,
        }
    }

    /// Returns the bytes of key and value.
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
