//! Requests for all entries of a cache.

use std::sync::Arc;

use bytes::Bytes;
use consort_group::Member;

use crate::{Entry, Items, NamesMembers, OperationError, ReadFrom, Segment};

/// The default limit of unconsumed entries of all members: a transfer chunk's size in the field's other grids
/// (S004-2).
pub const BATCH: usize = 512;

/// The bytes after which a response takes no more items; one item may be larger.
pub const FETCH_BYTES: usize = 1024 * 1024;

/// The limit of members with an outstanding request, which share the batch (S004-8).
pub const LANES_MAX: usize = 4;

/// How often an entry present throughout is returned.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Guarantee {
    /// Never twice; a lost owner's segment ends.
    AtMostOnce,
    /// Never missed; a lost owner's segment begins again.
    AtLeastOnce,
    /// Exactly once. The reader remembers the keys of up to [`LANES_MAX`] incomplete segments.
    #[default]
    ExactlyOnce,
}

/// The projection of each entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Projection {
    /// Key, value and version.
    #[default]
    Entries,
    /// Key and version.
    Keys,
    /// Key and version for the removal of every key. Includes keys with a removal in progress from an owner
    /// that has not seen it, whatever the guarantee, perhaps twice.
    Removable,
    /// Only the count.
    Count,
    /// Partial results of the reduction in [`Publication::transform`], without keys, at least one for each
    /// segment with a result. Each entry present throughout is in exactly one; with
    /// [`Guarantee::AtMostOnce`], in one at most.
    Reduced,
}

/// A registered function that owners apply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Transform {
    /// The name.
    pub name: Arc<str>,
    /// The arguments.
    pub arguments: Bytes,
}

/// Transforms a key, an entry and arguments into the value to be sent; `None` skips the entry. It runs under
/// a segment's lock: it must be quick and not use the cache. A panic fails the request; a listener gets a
/// gap.
pub type TransformFn = dyn Fn(&[u8], &Entry, &[u8]) -> Option<Bytes> + Send + Sync;

/// Adds a key, an entry and arguments to its result, empty at first and sent unless empty. A
/// [`TransformFn`]'s conditions apply.
pub type ReduceFn = dyn Fn(&mut Vec<u8>, &[u8], &Entry, &[u8]) + Send + Sync;

/// A request to all owners.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Publication {
    /// The projection.
    pub projection: Projection,
    /// The guarantee.
    pub guarantee: Guarantee,
    /// Filters, maps or reduces entries at their owners.
    pub transform: Option<Transform>,
    /// The requested segments; `None` = all.
    pub segments: Option<Arc<[Segment]>>,
    /// The limit of unconsumed entries.
    pub batch: usize,
    /// Members with an outstanding request, up to [`LANES_MAX`]; 1 means one member after the other.
    pub lanes: usize,
    /// The owner to read from. [`ReadFrom::Nearest`]: the reader's own member, else the owner with the fewest
    /// segments to send. [`ReadFrom::Primary`]: the primary, or another owner while it is unreachable.
    pub from: ReadFrom,
    /// Whether the reader borrows items ([`Items::iter`], [`crate::IntoItems::rest`]).
    pub whole: bool,
}

impl Default for Publication {
    fn default() -> Self {
        Self {
            projection: Projection::default(),
            guarantee: Guarantee::default(),
            transform: None,
            segments: None,
            batch: BATCH,
            lanes: LANES_MAX,
            from: ReadFrom::Nearest,
            whole: false,
        }
    }
}

/// An iteration's id on its member.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct IterationId(pub u64);

/// The result of taking items.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Next {
    /// Items of one member; not empty.
    Items(Items),
    /// No items have arrived; [`crate::NodeEvent::Fetched`] follows.
    Nothing,
    /// The end.
    End {
        /// Items counted or returned.
        count: u64,
    },
}

/// Why an iteration has failed. Items returned before are valid.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IterationError {
    /// A member lacks the transform or reduction.
    #[error("{member} has no transform {name}")]
    UnknownTransform {
        /// The member.
        member: Member,
        /// The name.
        name: Arc<str>,
    },
    /// The function has panicked; the member's standard error has the reason.
    #[error("{name} has panicked at {member}")]
    Panicked {
        /// The member.
        member: Member,
        /// The name.
        name: Arc<str>,
    },
    /// The iteration cannot continue.
    #[error(transparent)]
    Operation(#[from] OperationError),
}

impl NamesMembers for IterationError {
    fn each_member(&mut self, name: &mut dyn FnMut(&mut Member)) {
        match self {
            Self::UnknownTransform { member, .. } | Self::Panicked { member, .. } => name(member),
            Self::Operation(error) => error.each_member(name),
        }
    }
}
