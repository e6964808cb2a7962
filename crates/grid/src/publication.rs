//! Requests for all entries of a cache: the selection, the projection, and the delivery guarantee.

use std::sync::Arc;

use bytes::Bytes;
use consort_group::Member;

use crate::{Entry, Items, NamesMembers, OperationError, ReadFrom, Segment};

/// Default maximum number of fetched and not yet consumed entries, from all members together: the size of a state
/// transfer chunk in the field's other grids (S004-2).
pub const BATCH: usize = 512;

/// Bytes of items in a response beyond which no more items are added, so that large values do not fill a member's
/// memory. One item may be larger.
pub const FETCH_BYTES: usize = 1024 * 1024;

/// Maximum number of members with an outstanding request; they share the batch (S004-8).
pub const LANES_MAX: usize = 4;

/// The number of times that the iteration returns an entry that is present throughout, whatever members join or leave
/// meanwhile.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Guarantee {
    /// Never twice. The rest of a segment whose owner was lost is not returned.
    AtMostOnce,
    /// Never missed. A segment whose owner was lost is returned again from its beginning.
    AtLeastOnce,
    /// Exactly once. For that the reader remembers the keys of segments that are partly returned: of up to
    /// [`LANES_MAX`] segments.
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
    /// Key and version, for a caller that removes every key it gets. The keys include those whose removal may be in
    /// progress, from an owner that has not seen the removal. The latter are returned whatever the guarantee, perhaps
    /// twice.
    Removable,
    /// No items: entries are counted.
    Count,
    /// The result of a reduction of many entries, which [`Publication::transform`] names. Items are partial results
    /// without keys, at least one for each segment with a result. Each entry that is present throughout is in exactly
    /// one of them; with [`Guarantee::AtMostOnce`], in one at most.
    Reduced,
}

/// A function that owners apply to their entries, by the name under which all members have registered it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Transform {
    /// Its name.
    pub name: Arc<str>,
    /// Its arguments besides the entry.
    pub arguments: Bytes,
}

/// A transform of a key, an entry and arguments: it returns the value to be sent, or `None` to skip the entry. It is
/// called under a segment's lock: it must be quick and must not use the cache. If it panics, the request fails, and a
/// listener gets a gap.
pub type TransformFn = dyn Fn(&[u8], &Entry, &[u8]) -> Option<Bytes> + Send + Sync;

/// A reduction: adds a key, an entry and arguments to its result of earlier entries, which is empty at first. An
/// empty result is not sent. It is called under the same conditions as a [`TransformFn`].
pub type ReduceFn = dyn Fn(&mut Vec<u8>, &[u8], &Entry, &[u8]) + Send + Sync;

/// A request to all owners.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Publication {
    /// The projection of each entry.
    pub projection: Projection,
    /// The delivery guarantee.
    pub guarantee: Guarantee,
    /// Filters and maps entries at their owners, or reduces them with [`Projection::Reduced`].
    pub transform: Option<Transform>,
    /// The requested segments; `None` = all.
    pub segments: Option<Arc<[Segment]>>,
    /// Maximum number of fetched and not yet consumed entries, from all members together.
    pub batch: usize,
    /// Number of members with an outstanding request, up to [`LANES_MAX`]; 1 = one member after the other.
    pub lanes: usize,
    /// The owner from which a segment's entries are read. [`ReadFrom::Nearest`]: the reader's own member, if that is
    /// an owner, else the owner with the fewest segments to send. [`ReadFrom::Primary`]: the primary, or another
    /// owner while the primary is unreachable.
    pub from: ReadFrom,
    /// Whether the reader borrows items ([`Items::iter`], [`crate::IntoItems::rest`]) instead of taking them one by
    /// one: then no owned items are built.
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

/// The id of an iteration on the member that has begun it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct IterationId(pub u64);

/// The result of a request for the next items.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Next {
    /// The next items, of one member; not empty.
    Items(Items),
    /// No items have arrived. [`crate::NodeEvent::Fetched`] says when to ask again.
    Nothing,
    /// All items were returned. For [`Projection::Count`]: the number of entries.
    End {
        /// Number of entries counted or returned.
        count: u64,
    },
}

/// The reason why an iteration has failed. The items returned before are valid.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IterationError {
    /// A member does not have the transform, or the reduction.
    #[error("{member} has no transform {name}")]
    UnknownTransform {
        /// The member.
        member: Member,
        /// The name.
        name: Arc<str>,
    },
    /// The transform, or the reduction, has panicked at a member, which has written the reason to its standard error.
    #[error("{name} has panicked at {member}")]
    Panicked {
        /// The member.
        member: Member,
        /// The name.
        name: Arc<str>,
    },
    /// The iteration cannot go on.
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
