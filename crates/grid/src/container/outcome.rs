//! The results of reads and writes of a container.

use bytes::Bytes;

#[cfg(doc)]
use super::Container;
use super::entry::Entry;
use crate::{Segment, Version};

/// The result of [`Container::look_up`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Lookup<T> {
    /// The entry or value.
    Hit(T),
    /// The key is absent.
    Miss,
    /// This member does not know: the segment is not readable here, only the store has the value, or the entry
    /// exceeded its max-idle time here and other members may have used it.
    NotLocal,
}

/// The result of a write.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Put {
    /// The previous entry, unless it had expired.
    pub previous: Option<Entry>,
    /// The evicted entries, perhaps expired. With a store, their keys are still here.
    pub evicted: Vec<Taken>,
}

/// The result of a removal.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Removed {
    /// The previous entry, unless it had expired.
    pub previous: Option<Entry>,
}

/// An entry that the container has removed by itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Taken {
    /// Its segment.
    pub segment: Segment,
    /// Its key.
    pub key: Bytes,
    /// The entry.
    pub entry: Entry,
}

/// The result of an expiry.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Expired {
    /// Removed entries.
    pub taken: Vec<Taken>,
    /// If other members use copies: entries that exceeded their `max_idle` here. They are not removed, and
    /// are reported again after half of that time.
    pub idle: Vec<Idle>,
}

/// An entry that exceeded its `max_idle` here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Idle {
    /// Its segment.
    pub segment: Segment,
    /// Its key.
    pub key: Bytes,
    /// The write's version.
    pub version: Version,
}
