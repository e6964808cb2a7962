//! What reads and writes of a container say.

use bytes::Bytes;

#[cfg(doc)]
use super::Container;
use super::entry::Entry;
use crate::{Segment, Version};

/// What a read on this member finds, see [`Container::look_up`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Lookup<T> {
    /// The key has this.
    Hit(T),
    /// The key has nothing.
    Miss,
    /// The segment is not read here, the store has the value, or the entry was not used here for too long and others may
    /// have used it: others know.
    Elsewhere,
}

/// What a write did.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Put {
    /// The entry before, unless it had expired.
    pub previous: Option<Entry>,
    /// What had to make room for it; it may be about to expire, or have expired. With a store, what is left of it
    /// is still here.
    pub evicted: Vec<Taken>,
}

/// What a removal did.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Removed {
    /// The entry before, unless it had expired.
    pub previous: Option<Entry>,
}

/// An entry that the container has taken out by itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Taken {
    /// Where it was.
    pub segment: Segment,
    /// Its key.
    pub key: Bytes,
    /// What it was.
    pub entry: Entry,
}

/// What has come to its end.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Expired {
    /// Entries that are taken out.
    pub taken: Vec<Taken>,
    /// Where copies are used elsewhere: entries that were not used here for their `max_idle`. They are still there, and are
    /// named again after half of that.
    pub idle: Vec<Idle>,
}

/// An entry that was not used here for its `max_idle`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Idle {
    /// Where it is.
    pub segment: Segment,
    /// Its key.
    pub key: Bytes,
    /// Which write it is of.
    pub version: Version,
}
