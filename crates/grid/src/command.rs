//! What members of a cache say to each other.

use std::time::Duration;

use bytes::Bytes;
use consort_group::Address;
use consort_memory::Shortage;

use crate::event::{EventKind, Previous};
use crate::items::Items;
use crate::merge::SideId;
use crate::operation::{Action, OperationError, Outcome, Stored};
use crate::past::Past;
use crate::publication::{Transform, What};
use crate::topology::Interest;
use crate::wire::Copies;
use crate::{Ballot, CacheConfig, CacheMember, Flags, OpenError, Segment, Topology, Version};

/// A cache among the caches of a cluster: a hash of its name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CacheId(pub u32);

impl CacheId {
    /// The id of the cache with this name.
    pub fn of(name: &str) -> Self {
        Self(consort_hotrod::hash::hash(name.as_bytes()) as u32)
    }
}

/// An operation among all of a cluster: who has begun it, and its number there. It is the same when it is sent again.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct OperationId {
    pub(crate) caller: Address,
    pub(crate) number: u64,
}

/// A command and the cache that it is for. `topology` is the sender's: whoever has an older one keeps the command until
/// it has that.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Command {
    pub(crate) cache: CacheId,
    pub(crate) topology: u32,
    pub(crate) body: Body,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Body {
    /// Caller to primary, or for reads to an owner.
    Call(Call),
    /// Primary to the other write owners.
    Backup(Backup),
    /// Write owner to caller: it has what a backup command said.
    Ack(Ack),
    /// Whoever was called to the caller: all that there will be.
    Reply { number: u64, reply: Reply },
    /// Write owner to the primary of a new reign, or owner that is read to who pulls a segment.
    Handover(Vec<HandedSegment>),
    /// Primary to write owners: of these segments, and of callers that are not members any more, it has sent what it had.
    /// One of them passes it on to members with listeners.
    Settled(Vec<Segment>),
    /// Pending owner to an owner that is read, or primary to an owner of a side that is being merged.
    Pull(Pull),
    /// The answer.
    Chunk(Chunk),
    /// Reader to an owner that is read: entries of these segments.
    Fetch(Fetch),
    /// The answer.
    Fetched(Fetched),
    /// A write owner to a member with listeners, which acknowledges it like a backup.
    Tell(Tell),
    /// Owner to primary, or primary to owner: here this entry was not used for too long.
    Idle { segment: Segment, key: Bytes, version: Version, number: u64 },
    /// The answer, and to all other write owners if that is news to them.
    Used(Used),
    /// Who is read no more to primary: it has told all uses of entries of these segments that it knows of.
    UsesTold(Vec<Segment>),
    /// Primary to write owners, when it has merged a segment and with every topology in which lines begin or merges end: what
    /// this side has seen.
    Known { segment: Segment, past: Past },
    /// A member to all others of the view: whether it has no memory for more entries.
    Memory { shortage: Option<Shortage> },
    /// To the coordinator.
    ToCoordinator(ToCoordinator),
    /// The coordinator to all members that have promised it this ballot.
    Install { ballot: Ballot, topology: Box<Topology> },
    /// The coordinator to a member that may not join.
    Refused(OpenError),
    /// The coordinator to a member that has left: nothing depends on it any more.
    Left,
    /// The coordinator of a new view to everybody in it, or to who is new in it: asks for the status, and for the promise.
    StatusRequest { ballot: Ballot },
}

impl Body {
    /// The key that is looked up for it, of those that come often.
    pub(crate) const fn key(&self) -> Option<&Bytes> {
        match self {
            Self::Call(Call { key, .. }) | Self::Backup(Backup { key, .. }) => Some(key),
            _ => None,
        }
    }
}

/// An operation on its way.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Call {
    pub(crate) number: u64,
    /// Whether it may have been carried out already.
    pub(crate) is_repeated: bool,
    pub(crate) flags: Flags,
    pub(crate) key: Bytes,
    pub(crate) action: Action,
    /// Bytes of the largest value that the response may have. A member that has a larger one does nothing.
    pub(crate) response_bytes_max: u32,
}

impl Call {
    /// What the caller waits for may have any size.
    pub(crate) const ANY_BYTES: u32 = u32::MAX;
}

/// What a write owner has to do.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Backup {
    pub(crate) segment: Segment,
    pub(crate) operation: OperationId,
    /// Everything of that caller below this number is finished, as far as the primary has heard.
    pub(crate) finished: u64,
    pub(crate) key: Bytes,
    pub(crate) version: Version,
    pub(crate) effect: Effect,
    /// How many write owners will acknowledge this in this epoch.
    pub(crate) acks: u16,
    /// Whether this owner tells the caller the outcome.
    pub(crate) tells: bool,
    /// What came of the operation.
    pub(crate) outcome: Option<Outcome>,
    /// Whether no listener is told.
    pub(crate) is_silent: bool,
}

/// What a backup command does to the key.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Effect {
    /// It has this entry.
    Put(Stored),
    /// It has this entry, which another side of a partition had: no write of this one.
    Copy(Stored),
    /// It is absent.
    Remove,
    /// It is absent, which another side of a partition had brought about: no write of this one.
    CopyRemoval,
    /// What it did was done and undone by later writes. It is remembered, and acknowledged.
    Superseded,
    /// What it put is not there any more, by no write: its time was over, or there was no room. What is older goes.
    Gone,
    /// Nothing: the acknowledgement says that everything before it has arrived.
    Nothing,
    /// What this member has of it is old, whatever its version.
    Invalidate,
    /// The same of all keys.
    InvalidateAll,
}

impl Effect {
    /// Whether it is of another side, with a version of that side's.
    pub(crate) fn is_copied(&self) -> bool {
        matches!(self, Self::Copy(_) | Self::CopyRemoval)
    }
}

/// Whether an entry lives that somebody has not used for too long.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Used {
    pub(crate) segment: Segment,
    pub(crate) key: Bytes,
    pub(crate) version: Version,
    /// Of the question; 0 if nobody asked.
    pub(crate) number: u64,
    /// How long ago it was used, if it lives; else it has not been used where this comes from, or is not there.
    pub(crate) idle: Option<Duration>,
}

/// A change, for a member with listeners.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Tell {
    pub(crate) segment: Segment,
    pub(crate) operation: OperationId,
    pub(crate) key: Bytes,
    pub(crate) version: Version,
    pub(crate) kind: EventKind,
    /// The value, if it is wanted and still stands.
    pub(crate) value: Option<Bytes>,
    /// What was there before, if it is wanted.
    pub(crate) previous: Option<Previous>,
    /// As in [`Backup`].
    pub(crate) acks: u16,
    /// What came of the operation, if this member is the one to tell the caller.
    pub(crate) outcome: Option<Outcome>,
    /// Whether no listener is told: it counts as told.
    pub(crate) is_silent: bool,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Ack {
    pub(crate) number: u64,
    /// The epoch that the write owners are of.
    pub(crate) epoch: u32,
    pub(crate) acks: u16,
    pub(crate) outcome: Option<Outcome>,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Reply {
    /// It is done everywhere.
    Done(Outcome),
    /// Nothing was done: it was sent to the wrong member, whose topology says so.
    Misdirected,
    /// Nothing was done.
    Failed(OperationError),
    /// It is done here, and the write owners will acknowledge it: for callers that do not wait for them.
    Ordered(Outcome),
    /// Nothing was done: the response would have a value of so many bytes, more than the call allows.
    Larger(u32),
}

/// The unfinished writes of a segment, as one write owner has them.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct HandedSegment {
    pub(crate) segment: Segment,
    pub(crate) reign: u32,
    pub(crate) records: Vec<HandedRecord>,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct HandedRecord {
    pub(crate) operation: OperationId,
    pub(crate) key: Bytes,
    pub(crate) version: Version,
    pub(crate) effect: Effect,
    pub(crate) outcome: Outcome,
    /// Whether no listener is told.
    pub(crate) is_silent: bool,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Pull {
    pub(crate) rebalance: u32,
    /// The side whose entries are wanted, if it is to be merged.
    pub(crate) side: Option<SideId>,
    pub(crate) segment: Segment,
    /// Where to go on; `None` = from the beginning.
    pub(crate) cursor: Option<(u64, u64)>,
    pub(crate) bytes_max: u32,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Chunk {
    pub(crate) rebalance: u32,
    pub(crate) side: Option<SideId>,
    pub(crate) segment: Segment,
    /// Where it begins, as it was asked for.
    pub(crate) cursor: Option<(u64, u64)>,
    pub(crate) entries: Copies,
    /// Where the next one begins; `None` = that was all.
    pub(crate) next: Option<(u64, u64)>,
    /// What the giver remembers of the segment; with the last chunk.
    pub(crate) past: Option<Past>,
    /// The giver does not have the segment: ask somebody else.
    pub(crate) is_refused: bool,
    /// What keys and values of the whole segment take at the giver, about.
    pub(crate) segment_bytes: u64,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Fetch {
    pub(crate) iteration: u64,
    /// Which request of the iteration this is.
    pub(crate) nth: u32,
    pub(crate) segments: Vec<Segment>,
    /// Where to go on in the first of them.
    pub(crate) cursor: Option<(u64, u64)>,
    pub(crate) items_max: u32,
    pub(crate) what: What,
    pub(crate) transform: Option<Transform>,
    /// Nobody else is asked meanwhile: the reader has nothing to do until this is answered.
    pub(crate) is_only: bool,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Fetched {
    pub(crate) iteration: u64,
    pub(crate) nth: u32,
    /// The segments that were asked for, in order, as far as it went.
    pub(crate) parts: Vec<Part>,
    /// The items of the parts, one part after the other.
    pub(crate) items: Items,
    /// Where to go on in the last part.
    pub(crate) cursor: Option<(u64, u64)>,
    /// What has become of the transform.
    pub(crate) applied: Applied,
    /// Its giver cannot read its store.
    pub(crate) failed: Option<OperationError>,
}

/// Whether a function could be applied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Applied {
    /// It was, or there is none.
    Done,
    /// Nobody knows it here.
    Unknown,
    /// It has panicked.
    Panicked,
}

impl Body {
    /// Bytes of the entries in it, where it is one that may have many.
    pub(crate) fn bulk_len(&self) -> usize {
        match self {
            Self::Chunk(chunk) => chunk.entries.content_bytes(),
            _ => 0,
        }
    }
}

impl Chunk {
    /// An answer with nothing in it, as if that were all.
    pub(crate) fn nothing_for(pull: &Pull) -> Self {
        let &Pull { rebalance, side, segment, cursor, .. } = pull;
        Self {
            rebalance,
            side,
            segment,
            cursor,
            entries: Copies::default(),
            next: None,
            past: None,
            is_refused: false,
            segment_bytes: 0,
        }
    }
}

impl Fetched {
    /// An answer with nothing in it.
    pub(crate) fn nothing(iteration: u64, nth: u32) -> Self {
        let (parts, items) = (Vec::new(), Items::default());
        Self { iteration, nth, parts, items, cursor: None, applied: Applied::Done, failed: None }
    }
}

/// What came of a segment.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Part {
    pub(crate) segment: Segment,
    pub(crate) count: u32,
    pub(crate) end: PartEnd,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PartEnd {
    /// That was all.
    Complete,
    /// There is more.
    More,
    /// The giver does not have it, or not any more: nothing came of it in this answer.
    Refused,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) enum ToCoordinator {
    Join {
        config: CacheConfig,
        member: CacheMember,
        /// What it comes back with.
        restored: Option<Box<Restored>>,
    },
    Leave,
    /// A topology is installed, and no record of an owner that the next one relieves is still to come.
    Confirm,
    /// All segments of a rebalance have been pulled.
    Pulled {
        rebalance: u32,
    },
    /// What was lost at once is given up: use what is left.
    MakeAvailable,
    Status(Box<Status>),
    /// All sides' entries are merged where this member is primary.
    Merged,
    /// What it wants to be told of all changes.
    Listen(Interest),
    /// This member has listeners, and does not acknowledge what it is told.
    Deaf(Address),
    /// It has promised a higher ballot than the coordinator's.
    Outbid(Ballot),
}

/// All that a coordinator has to know of a member's caches.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Status {
    /// What it was asked for under, and has promised.
    pub(crate) ballot: Ballot,
    pub(crate) caches: Vec<CacheStatus>,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct CacheStatus {
    pub(crate) config: CacheConfig,
    pub(crate) member: CacheMember,
    /// The newest topology installed.
    pub(crate) topology: Option<Topology>,
    /// The topology whose entries it keeps for a merge.
    pub(crate) frozen: Option<Topology>,
    /// The last rebalance whose segments it has pulled.
    pub(crate) pulled: u32,
    pub(crate) is_leaving: bool,
    /// It has never been a member, in this life or one that its store knows of: so it has forgotten nothing that others count on.
    pub(crate) is_fresh: bool,
    /// What it has come back with, if there is no topology yet.
    pub(crate) restored: Option<Restored>,
}

/// What a member's store has kept of an earlier life.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Restored {
    /// Who it was.
    pub(crate) formerly: Address,
    /// The newest topology that it had installed.
    pub(crate) topology: Topology,
}
