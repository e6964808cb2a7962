//! What listeners are told of a cache: which changes, in what form, and that some may have been missed.

use std::collections::BTreeMap;

use bytes::Bytes;
use consort_group::Member;

use crate::publication::{IterationError, Transform};
use crate::{NamesMembers, OperationError, Version};

/// Events that wait for a listener's reader unless it says otherwise. Beyond that its reader is too slow: they are dropped,
/// and it is told so. A tenth of a second of a busy member.
pub const EVENTS_MAX: usize = 4_096;

/// Bytes of keys and values that may wait for a listener's reader; a single event may have more.
pub const EVENT_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Whose changes a listener is told of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Scope {
    /// All, wherever they happen.
    #[default]
    Cluster,
    /// Those that this member orders as the primary of their keys. It costs no message.
    Local,
}

/// What a listener wants.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listen {
    /// Whose changes.
    pub scope: Scope,
    /// Whether it is told first of what is there, and again after each gap.
    pub with_state: bool,
    /// Whether values come, too.
    pub with_values: bool,
    /// Whether what was there before comes, too, as it was: with a transform it does not. Primaries then send it along with
    /// each change.
    pub with_previous: bool,
    /// Filters and maps. It sees a removal as an entry without value, and what it makes of it comes as the value.
    pub transform: Option<Transform>,
    /// Events that may wait for the reader.
    pub events_max: usize,
}

impl Default for Listen {
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

/// What has happened to a key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum EventKind {
    /// It was absent, and has a value now.
    Created,
    /// It has another value now.
    Modified,
    /// It is absent now.
    Removed,
    /// Its time was over.
    Expired,
    /// Nothing: it is there.
    Existing,
}

/// What a key had before a change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Previous<V = Bytes> {
    /// Its value, which may have been over.
    pub value: V,
    /// Which write it was of.
    pub version: Version,
}

/// An event of one key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EntryEvent<K = Bytes, V = Bytes> {
    /// What has happened.
    pub kind: EventKind,
    /// The key.
    pub key: K,
    /// Its value, or what the transform has made of it; none if no values are wanted, if it has none any more, or if it was
    /// overwritten before it could be told: then the next event of the key has one.
    pub value: Option<V>,
    /// What was there before this change; nothing if it is not wanted, if there was nothing, or if its value lies in a store
    /// whose values a write does not wait for.
    pub previous: Option<Previous<V>>,
    /// Which write it is of. Of one key, later events have greater versions; but with
    /// [`CacheMode::Invalidation`](crate::CacheMode::Invalidation), what another member has taken away comes with the version
    /// that it had.
    pub version: Version,
}

/// What a listener is told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event<K = Bytes, V = Bytes> {
    /// Something has happened to a key.
    Entry(EntryEvent<K, V>),
    /// What was there has come. Only with [`Listen::with_state`].
    Complete,
    /// Changes before this may not have been told: this member was cut off, all owners of something were lost, or the
    /// reader was too slow. With [`Listen::with_state`] what is there comes again.
    Gap,
}

/// A listener on the member that has it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ListenerId(pub u64);

/// Why a listener has ended. What was told before was right.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// This member does not know the transform.
    #[error("this member has no transform {0}")]
    UnknownTransform(std::sync::Arc<str>),
    /// The cache has as many listeners on this member as it may have. Nothing was changed.
    #[error(
        "the cache has {0} listeners on this member, the limit of one cache: remove others, or add it on another member"
    )]
    TooMany(usize),
    /// What is there cannot be read.
    #[error(transparent)]
    State(#[from] IterationError),
    /// It cannot go on.
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

/// What whoever keeps what a listener [with state](Listen::with_state) is told knows to be there. It takes as much memory as
/// the cache has keys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Replica<K = Bytes> {
    /// Keys, and the write that each one's value is of.
    pub entries: BTreeMap<K, Version>,
    /// Whether all that was there has come since the last gap.
    pub is_complete: bool,
}

impl<K> Default for Replica<K> {
    fn default() -> Self {
        Self { entries: BTreeMap::new(), is_complete: false }
    }
}

impl<K: Ord + Clone> Replica<K> {
    /// After this event, which has to be the next one of its listener. A gap begins it anew.
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
