//! What can be asked of all entries of a cache: which, in what form, and how surely each comes once.

use std::sync::Arc;

use bytes::Bytes;
use consort_group::Member;

use crate::{Entry, Items, NamesMembers, OperationError, ReadFrom, Segment};

/// Entries that may be fetched and not consumed yet, from all members together, unless a publication says otherwise:
/// as many as a chunk of a state transfer has in the field's other grids (S004-2).
pub const BATCH: usize = 512;

/// Bytes of items in an answer, beyond which no more are added: large values must not fill a member's memory, however many items a
/// batch has. One item may have more.
pub const FETCH_BYTES: usize = 1024 * 1024;

/// Members that are asked at the same time; they share the batch (S004-8).
pub const LANES_MAX: usize = 4;

/// How often an entry that is there from the first to the last moment comes, whatever members join or leave meanwhile.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Guarantee {
    /// Never twice; what had not come of a segment when its owner was lost does not come.
    AtMostOnce,
    /// Never missed; a segment whose owner was lost comes again.
    AtLeastOnce,
    /// Once. The keys of segments that have come in part are remembered for that: of up to [`LANES_MAX`] segments.
    #[default]
    ExactlyOnce,
}

/// What comes of each entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum What {
    /// Key, value and version.
    #[default]
    Entries,
    /// Key and version.
    Keys,
    /// The same for who removes whatever anybody may be given: with the keys whose removal may be under way, which an owner gives
    /// that has not heard of it. These come whatever the guarantee, and perhaps twice.
    Removable,
    /// Nothing: entries are counted.
    Count,
    /// What a reduction makes of many of them, which [`Publication::transform`] names. Items are parts of the whole, at least
    /// one for each segment of which it has made something, and have no keys. Each entry that is there throughout is in one of
    /// them, whatever the guarantee; with [`Guarantee::AtMostOnce`], in one at most.
    Reduced,
}

/// A function that owners apply to their entries, by the name under which all members have registered it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Transform {
    /// Its name.
    pub name: Arc<str>,
    /// What it is given besides the entry.
    pub arguments: Bytes,
}

/// What a transform does with a key, an entry and its arguments: the value to be sent, or nothing if the entry is not
/// wanted. It is called under a segment's lock: it must be quick and must not use the cache. If it panics, what asked for it
/// fails, and a listener is told of a gap.
pub type TransformFn = dyn Fn(&[u8], &Entry, &[u8]) -> Option<Bytes> + Send + Sync;

/// A reduction: adds a key, an entry and its arguments to what it has made of others, which is empty at first. What stays
/// empty is not sent. It is called as a [`TransformFn`] is.
pub type ReduceFn = dyn Fn(&mut Vec<u8>, &[u8], &Entry, &[u8]) + Send + Sync;

/// A question to all owners.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Publication {
    /// What comes of each entry.
    pub what: What,
    /// How surely.
    pub guarantee: Guarantee,
    /// Filters and maps where the entries are, or reduces, if that is what comes of them.
    pub transform: Option<Transform>,
    /// Only these segments; `None` = all.
    pub segments: Option<Arc<[Segment]>>,
    /// Entries that may be fetched and not consumed, from all members together.
    pub batch: usize,
    /// Members asked at the same time, up to [`LANES_MAX`]; one = one member after the other.
    pub lanes: usize,
    /// Whom a segment's entries come from. [`ReadFrom::Nearest`]: the reader's own member, if that is an owner, else the one that has
    /// fewest to give. [`ReadFrom::Primary`]: the primary, or another owner while it is away.
    pub from: ReadFrom,
    /// Items are looked at where they lie ([`Items::iter`], [`crate::IntoItems::rest`]), rather than taken one by one: then
    /// nothing is made of each before.
    pub whole: bool,
}

impl Default for Publication {
    fn default() -> Self {
        Self {
            what: What::default(),
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

/// An iteration on the member that has begun it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct IterationId(pub u64);

/// What an iteration has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Next {
    /// The next items, of one member; not empty.
    Items(Items),
    /// Nothing has come yet. [`crate::NodeEvent::Fetched`] will say when to ask again.
    Nothing,
    /// Everything has been given. For [`What::Count`]: how many there were.
    End {
        /// Entries that were counted or given.
        count: u64,
    },
}

/// Why an iteration has failed. What was given before was right.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IterationError {
    /// A member does not know the transform, or the reduction.
    #[error("{member} has no transform {name}")]
    UnknownTransform {
        /// Who.
        member: Member,
        /// Which.
        name: Arc<str>,
    },
    /// The transform, or the reduction, has panicked at a member, which has told why on its standard error.
    #[error("{name} has panicked at {member}")]
    Panicked {
        /// Who.
        member: Member,
        /// Which.
        name: Arc<str>,
    },
    /// It cannot go on.
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
