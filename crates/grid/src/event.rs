//! Events of a cache for its listeners: changes of keys, and gaps in their delivery.

use std::collections::BTreeMap;

use bytes::Bytes;
pub use consort_encoding::EventKind;
use consort_group::Member;

use crate::publication::{IterationError, Transform};
use crate::{NamesMembers, OperationError, Version};

/// Default maximum number of events that wait for a listener's reader. Beyond it the reader is too slow: the events
/// are dropped, and the reader gets a gap. A tenth of a second of a busy member.
pub const EVENTS_MAX: usize = 4_096;

/// Bytes of keys and values that may wait for a listener's reader; a single event may have more.
pub const EVENT_BYTES_MAX: usize = 16 * 1024 * 1024;

/// The changes that a listener gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Scope {
    /// All changes, on every member.
    #[default]
    Cluster,
    /// Changes that this member orders as the primary of their keys. It costs no message.
    Local,
}

/// The options of a listener.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListenOptions {
    /// The changes that it gets.
    pub scope: Scope,
    /// Whether it first gets the present entries, and again after each gap.
    pub with_state: bool,
    /// Whether events have values.
    pub with_values: bool,
    /// Whether events have the previous value, unchanged: with a transform they do not. Primaries then send it with
    /// each change.
    pub with_previous: bool,
    /// Filters and maps events. The transform sees a removal as an entry without value; its result is the value of
    /// the event.
    pub transform: Option<Transform>,
    /// Maximum number of events that wait for the reader.
    pub events_max: usize,
}

impl Default for ListenOptions {
    fn default() -> Self {
        Self {
            scope: Scope::default(),
            with_state: false,
            with_values: true,
            with_previous: false,
            transform: None,
            events_max: EVENTS_MAX,
        }
    }
}

/// The entry of a key before a change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Previous<V = Bytes> {
    /// Its value, which may have expired.
    pub value: V,
    /// The version of its write.
    pub version: Version,
}

/// An event of one key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EntryEvent<K = Bytes, V = Bytes> {
    /// The kind of change.
    pub kind: EventKind,
    /// The key.
    pub key: K,
    /// Its value, or the transform's result. `None` if values are not wanted, if the key is absent, or if the value
    /// was overwritten before the event could be delivered: then the next event of the key has one.
    pub value: Option<V>,
    /// The previous entry. `None` if it is not wanted, if the key was absent, or if the value is only in a store
    /// whose values a write does not wait for.
    pub previous: Option<Previous<V>>,
    /// The version of the write. Later events of one key have greater versions. With
    /// [`CacheMode::Invalidation`](crate::CacheMode::Invalidation), though, an invalidation by another member has the
    /// version of the invalidated entry.
    pub version: Version,
}

/// An event for a listener.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event<K = Bytes, V = Bytes> {
    /// A change of a key.
    Entry(EntryEvent<K, V>),
    /// All present entries were delivered. Only with [`ListenOptions::with_state`].
    Complete,
    /// Changes before this event may be missing: this member was cut off, all owners of a segment were lost, or the
    /// reader was too slow. With [`ListenOptions::with_state`] the present entries are delivered again.
    Gap,
}

/// The id of a listener on its member.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ListenerId(pub u64);

/// The reason why a listener has ended. The events delivered before are valid.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// This member does not have the transform.
    #[error("this member has no transform {0}")]
    UnknownTransform(std::sync::Arc<str>),
    /// The cache has the maximum number of listeners on this member. Nothing was changed.
    #[error(
        "the cache has {0} listeners on this member, the limit of one cache: remove others, or add it on another member"
    )]
    TooMany(usize),
    /// The present entries cannot be read.
    #[error(transparent)]
    State(#[from] IterationError),
    /// The listener cannot go on.
    #[error(transparent)]
    Operation(#[from] OperationError),
}

impl NamesMembers for ListenError {
    fn each_member(&mut self, name: &mut dyn FnMut(&mut Member)) {
        match self {
            Self::UnknownTransform(_) | Self::TooMany(_) => {}
            Self::State(error) => error.each_member(name),
            Self::Operation(error) => error.each_member(name),
        }
    }
}

/// The set of entries that a listener can reconstruct from its initial state and the events since
/// ([`ListenOptions::with_state`]). Memory use grows with the number of keys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReplicaTracker<K = Bytes> {
    /// Keys, with the version of each one's value.
    pub entries: BTreeMap<K, Version>,
    /// Whether all present entries were delivered since the last gap.
    pub is_complete: bool,
}

impl<K> Default for ReplicaTracker<K> {
    fn default() -> Self {
        Self { entries: BTreeMap::new(), is_complete: false }
    }
}

impl<K: Ord + Clone> ReplicaTracker<K> {
    /// Applies an event, which must be the next one of its listener. A gap clears the set.
    pub fn note<V>(&mut self, event: &Event<K, V>) {
        match event {
            Event::Gap => *self = Self::default(),
            Event::Complete => self.is_complete = true,
            Event::Entry(EntryEvent { kind: EventKind::Removed | EventKind::Expired, key, .. }) => {
                self.entries.remove(key);
            }
            Event::Entry(EntryEvent { key, version, .. }) => {
                self.entries.insert(key.clone(), *version);
            }
        }
    }
}
