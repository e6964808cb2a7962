//! Events of a cache for its listeners.

use std::collections::BTreeMap;

use bytes::Bytes;
pub use consort_encoding::EventKind;
use consort_group::Member;

use crate::publication::{IterationError, Transform};
use crate::{NamesMembers, OperationError, Version};

/// The default limit of waiting events, a tenth of a second of a busy member. Beyond it a gap replaces them.
pub const EVENTS_MAX: usize = 4_096;

/// The limit of waiting bytes of keys and values; one event may have more.
pub const EVENT_BYTES_MAX: usize = 16 * 1024 * 1024;

/// The changes that a listener gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Scope {
    /// All changes, on every member.
    #[default]
    Cluster,
    /// Changes that this primary orders; needs no message.
    Local,
}

/// The options of a listener.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListenOptions {
    /// The wanted changes.
    pub scope: Scope,
    /// Whether present entries come first and after each gap.
    pub with_state: bool,
    /// Whether events have values.
    pub with_values: bool,
    /// Whether events have the previous value, sent by primaries; not with a transform.
    pub with_previous: bool,
    /// Filters and maps events. A removal is an entry without value; the result is the event's value.
    pub transform: Option<Transform>,
    /// The limit of waiting events.
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

/// A key's entry before a change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Previous<V = Bytes> {
    /// The value, perhaps expired.
    pub value: V,
    /// The version.
    pub version: Version,
}

/// An event of one key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EntryEvent<K = Bytes, V = Bytes> {
    /// The kind.
    pub kind: EventKind,
    /// The key.
    pub key: K,
    /// The value, or the transform's result. `None` if not wanted, if absent, or if overwritten before the
    /// delivery: then the key's next event has one.
    pub value: Option<V>,
    /// The previous entry. `None` if not wanted, if absent, or if only a store has it and a write does not
    /// wait.
    pub previous: Option<Previous<V>>,
    /// The write's version, greater for later events of a key. With
    /// [`CacheMode::Invalidation`](crate::CacheMode::Invalidation), another member's invalidation has the
    /// invalidated entry's version.
    pub version: Version,
}

/// An event for a listener.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event<K = Bytes, V = Bytes> {
    /// A change of a key.
    Entry(EntryEvent<K, V>),
    /// All present entries were delivered ([`ListenOptions::with_state`]).
    Complete,
    /// Changes may be missing: this member was cut off, a segment lost all owners, or the reader was too
    /// slow. With [`ListenOptions::with_state`] the present entries follow again.
    Gap,
}

/// A listener's id on its member.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ListenerId(pub u64);

/// Why a listener has ended. Earlier events are valid.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// This member lacks the transform.
    #[error("this member has no transform {0}")]
    UnknownTransform(std::sync::Arc<str>),
    /// The cache has the maximum of listeners here.
    #[error(
        "the cache has {0} listeners on this member, the limit of one cache: remove others, or add it on another member"
    )]
    TooMany(usize),
    /// The present entries cannot be read.
    #[error(transparent)]
    State(#[from] IterationError),
    /// The listener cannot continue.
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

/// The entries that a listener reconstructs with [`ListenOptions::with_state`]. Memory grows with the number
/// of keys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReplicaTracker<K = Bytes> {
    /// The versions by key.
    pub entries: BTreeMap<K, Version>,
    /// Whether all present entries arrived since the last gap.
    pub is_complete: bool,
}

impl<K> Default for ReplicaTracker<K> {
    fn default() -> Self {
        Self { entries: BTreeMap::new(), is_complete: false }
    }
}

impl<K: Ord + Clone> ReplicaTracker<K> {
    /// Applies the next event. A gap clears the set.
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
