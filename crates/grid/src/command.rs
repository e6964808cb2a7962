//! The commands that members of a cache send each other.

use std::time::Duration;

use bytes::Bytes;
use consort_group::Address;
use consort_memory::Shortage;

use crate::encoded_entries::EncodedEntries;
use crate::event::{EventKind, Previous};
use crate::history::SegmentHistory;
use crate::items::Items;
use crate::merge::SideId;
use crate::operation::{Action, OperationError, Outcome, Stored};
use crate::publication::{Projection, Transform};
use crate::topology::Interest;
use crate::{Ballot, CacheConfig, CacheId, CacheMember, Flags, OpenError, Segment, Topology, Version};

/// The cluster-wide id of an operation: its caller and the caller's number for it. A repeated request has the same
/// id.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct OperationId {
    pub(crate) caller: Address,
    pub(crate) number: u64,
}

/// A command and its cache. `topology` is the sender's topology id. A receiver with an older topology keeps the
/// command until it installs that topology.
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
    /// Write owner to caller: the backup command is applied.
    Ack(Ack),
    /// The called member to the caller: the complete response.
    Reply { number: u64, reply: Reply },
    /// Write owner to a segment's new primary, or read owner to the member that pulls a segment.
    Handover(Vec<HandedSegment>),
    /// Primary to write owners: the primary has sent all that it had for these segments, and for callers that are no
    /// longer members. One of the write owners forwards it to members with listeners.
    Settled(Vec<Segment>),
    /// Pending owner to a read owner, or primary to an owner in a partition that is being merged.
    Pull(Pull),
    /// The response to [`Body::Pull`].
    Chunk(Chunk),
    /// Reader to a read owner: request for entries of these segments.
    Fetch(Fetch),
    /// The response to [`Body::Fetch`].
    Fetched(Fetched),
    /// Write owner to a member with listeners: an event. The receiver acknowledges it like a backup command.
    Notify(Notify),
    /// Owner to primary, or primary to owner: at the sender, this entry has exceeded its max-idle time.
    Idle { segment: Segment, key: Bytes, version: Version, number: u64 },
    /// The response to [`Body::Idle`]. It also goes to all other write owners if it changes their state.
    LastUse(LastUse),
    /// A member that is no longer a read owner, to the primary: it has sent all last uses of entries of these
    /// segments that it knows.
    LastUsesSent(Vec<Segment>),
    /// Primary to write owners: the history of this partition for a segment. The primary sends it after a merge of
    /// the segment, and with every topology in which lineages begin or merges end.
    HistoryUpdate { segment: Segment, history: SegmentHistory },
    /// A member to all others of the view: whether it is short of memory for more entries.
    Memory { shortage: Option<Shortage> },
    /// A member to the coordinator.
    ToCoordinator(ToCoordinator),
    /// The coordinator to all members that have promised it this ballot: a topology.
    Install { ballot: Ballot, topology: Box<Topology> },
    /// The coordinator to a member that may not join: the reason.
    Refused(OpenError),
    /// The coordinator to a member that has left: nothing depends on that member any more.
    Left,
    /// The coordinator of a new view to all its members, or to new members: request for the status and for the
    /// promise.
    StatusRequest { ballot: Ballot },
}

impl Body {
    /// Returns the key that the receiver looks up for this command, for the frequent kinds of commands.
    pub(crate) const fn key(&self) -> Option<&Bytes> {
        match self {
            Self::Call(Call { key, .. }) | Self::Backup(Backup { key, .. }) => Some(key),
            _ => None,
        }
    }

    /// Returns the segment that this command concerns, if it is of a kind that concerns exactly one.
    pub(crate) const fn segment(&self) -> Option<Segment> {
        match self {
            Self::Backup(Backup { segment, .. })
            | Self::Pull(Pull { segment, .. })
            | Self::Chunk(Chunk { segment, .. })
            | Self::Notify(Notify { segment, .. })
            | Self::Idle { segment, .. }
            | Self::LastUse(LastUse { segment, .. })
            | Self::HistoryUpdate { segment, .. } => Some(*segment),
            _ => None,
        }
    }
}

/// The request of an operation.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Call {
    pub(crate) number: u64,
    /// Whether the operation may have been carried out already.
    pub(crate) is_repeated: bool,
    pub(crate) flags: Flags,
    pub(crate) key: Bytes,
    pub(crate) action: Action,
    /// Maximum size in bytes of the value in the response. A member with a larger value does nothing.
    pub(crate) response_bytes_max: u32,
}

impl Call {
    /// No limit for the size of the response.
    pub(crate) const ANY_BYTES: u32 = u32::MAX;
}

/// The command of a primary to a write owner.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Backup {
    pub(crate) segment: Segment,
    pub(crate) operation: OperationId,
    /// Every operation of that caller below this number is finished, as far as the primary knows.
    pub(crate) finished: u64,
    pub(crate) key: Bytes,
    pub(crate) version: Version,
    pub(crate) effect: Effect,
    /// Number of write owners that acknowledge this command in this epoch.
    pub(crate) expected_acks: u16,
    /// Whether this owner sends the outcome to the caller.
    pub(crate) sends_outcome: bool,
    /// The outcome of the operation.
    pub(crate) outcome: Option<Outcome>,
    /// Whether listeners get no event.
    pub(crate) skips_listeners: bool,
}

/// The effect of a backup command on its key.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Effect {
    /// The key has this entry.
    Put(Stored),
    /// The key has this entry, which comes from another partition: it is not a write of this partition.
    Copy(Stored),
    /// The key is absent.
    Remove,
    /// The key is absent because another partition removed it: this is not a write of this partition.
    CopyRemoval,
    /// Later writes have replaced the effect. The write owner remembers the operation and acknowledges it.
    Superseded,
    /// The entry that this operation put is absent without a write: it expired or was evicted. Older entries are
    /// removed.
    Gone,
    /// No effect. The acknowledgement says that everything before this command has arrived.
    Nothing,
    /// This member's entry of the key is stale, whatever its version.
    Invalidate,
    /// This member's entries of all keys are stale.
    InvalidateAll,
}

impl Effect {
    /// Whether the effect comes from another partition, with a version of that partition.
    pub(crate) fn is_copied(&self) -> bool {
        matches!(self, Self::Copy(_) | Self::CopyRemoval)
    }
}

/// Whether an entry that exceeded its max-idle time at one owner is still in use.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct LastUse {
    pub(crate) segment: Segment,
    pub(crate) key: Bytes,
    pub(crate) version: Version,
    /// Number of the request; 0 if there was no request.
    pub(crate) number: u64,
    /// Time since the last use, if the entry lives. `None` if the sender has not used the entry or does not have it.
    pub(crate) idle: Option<Duration>,
}

/// An event of a change, for a member with listeners.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Notify {
    pub(crate) segment: Segment,
    pub(crate) operation: OperationId,
    pub(crate) key: Bytes,
    pub(crate) version: Version,
    pub(crate) kind: EventKind,
    /// The value, if the listeners want it and it is still current.
    pub(crate) value: Option<Bytes>,
    /// The previous value, if the listeners want it.
    pub(crate) previous: Option<Previous>,
    /// As in [`Backup`].
    pub(crate) expected_acks: u16,
    /// The outcome of the operation, if this member sends it to the caller.
    pub(crate) outcome: Option<Outcome>,
    /// Whether listeners get no event. The event then counts as delivered.
    pub(crate) skips_listeners: bool,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Ack {
    pub(crate) number: u64,
    /// The epoch that the write owners belong to.
    pub(crate) epoch: u32,
    pub(crate) expected_acks: u16,
    pub(crate) outcome: Option<Outcome>,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Reply {
    /// All write owners have applied the operation.
    Done(Outcome),
    /// The operation was not carried out, because the receiver is not the primary in its topology, which the response
    /// has.
    Misdirected,
    /// The operation was not carried out.
    Failed(OperationError),
    /// The primary has applied the operation, and the write owners will acknowledge it. For callers that do not wait
    /// for them.
    Ordered(Outcome),
    /// The operation was not carried out: the value of the response has this number of bytes, more than the call
    /// allows.
    Larger(u32),
}

/// The unfinished writes of a segment at one write owner.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct HandedSegment {
    pub(crate) segment: Segment,
    pub(crate) primary_term: u32,
    pub(crate) records: Vec<HandedRecord>,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct HandedRecord {
    pub(crate) operation: OperationId,
    pub(crate) key: Bytes,
    pub(crate) version: Version,
    pub(crate) effect: Effect,
    pub(crate) outcome: Outcome,
    /// Whether listeners get no event.
    pub(crate) skips_listeners: bool,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Pull {
    pub(crate) rebalance: u32,
    /// The partition whose entries are requested, in a merge.
    pub(crate) side: Option<SideId>,
    pub(crate) segment: Segment,
    /// Position at which the chunk begins; `None` = the beginning of the segment.
    pub(crate) cursor: Option<(u64, u64)>,
    pub(crate) bytes_max: u32,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Chunk {
    pub(crate) rebalance: u32,
    pub(crate) side: Option<SideId>,
    pub(crate) segment: Segment,
    /// Position at which the chunk begins, as in the request.
    pub(crate) cursor: Option<(u64, u64)>,
    pub(crate) entries: EncodedEntries,
    /// Position at which the next chunk begins; `None` = this chunk is the last.
    pub(crate) next: Option<(u64, u64)>,
    /// The sender's history of the segment, with the last chunk.
    pub(crate) history: Option<SegmentHistory>,
    /// The sender does not have the segment: the receiver asks another owner.
    pub(crate) is_refused: bool,
    /// Approximate bytes of keys and values of the whole segment at the sender.
    pub(crate) segment_bytes: u64,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Fetch {
    pub(crate) iteration: u64,
    /// Number of the request within the iteration.
    pub(crate) nth: u32,
    pub(crate) segments: Vec<Segment>,
    /// Position in the first of the segments.
    pub(crate) cursor: Option<(u64, u64)>,
    pub(crate) items_max: u32,
    pub(crate) projection: Projection,
    pub(crate) transform: Option<Transform>,
    /// The reader has no other request outstanding: it waits for this response.
    pub(crate) is_only: bool,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Fetched {
    pub(crate) iteration: u64,
    pub(crate) nth: u32,
    /// The requested segments, in order, up to the last one that the response covers.
    pub(crate) parts: Vec<Part>,
    /// The items of the parts, in the order of the parts.
    pub(crate) items: Items,
    /// Position at which the last part continues.
    pub(crate) cursor: Option<(u64, u64)>,
    /// The result of applying the transform.
    pub(crate) applied: Applied,
    /// The error if the sender cannot read its store.
    pub(crate) failed: Option<OperationError>,
}

/// Whether a transform was applied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Applied {
    /// It was applied, or there is none.
    Done,
    /// This member does not have a transform of this name.
    Unknown,
    /// It panicked.
    Panicked,
}

impl Body {
    /// Bytes of the entries in this command, if it is of a kind that may have many.
    pub(crate) fn bulk_len(&self) -> usize {
        match self {
            Self::Chunk(chunk) => chunk.entries.content_bytes(),
            _ => 0,
        }
    }
}

impl Chunk {
    /// Returns an empty last chunk for this request.
    pub(crate) fn nothing_for(pull: &Pull) -> Self {
        let &Pull { rebalance, side, segment, cursor, .. } = pull;
        Self {
            rebalance,
            side,
            segment,
            cursor,
            entries: EncodedEntries::default(),
            next: None,
            history: None,
            is_refused: false,
            segment_bytes: 0,
        }
    }
}

impl Fetched {
    /// Returns an empty response.
    pub(crate) fn nothing(iteration: u64, nth: u32) -> Self {
        let (parts, items) = (Vec::new(), Items::default());
        Self { iteration, nth, parts, items, cursor: None, applied: Applied::Done, failed: None }
    }
}

/// The result of one segment in a response.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Part {
    pub(crate) segment: Segment,
    pub(crate) count: u32,
    pub(crate) end: PartEnd,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PartEnd {
    /// The segment is complete.
    Complete,
    /// The segment has more entries.
    More,
    /// The sender does not have the segment, or no longer: this response has no item of it.
    Refused,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) enum ToCoordinator {
    Join {
        config: CacheConfig,
        member: CacheMember,
        /// The state that the member has restored from its store.
        restored: Option<Box<Restored>>,
    },
    Leave,
    /// A topology is installed, and no record of an owner that the next topology replaces is outstanding.
    Confirm,
    /// The member has received all segments of a rebalance.
    Pulled {
        rebalance: u32,
    },
    /// Makes a degraded cache available with the remaining data, and accepts the loss of the rest.
    MakeAvailable,
    Status(Box<Status>),
    /// This member has merged the entries of all partitions for the segments whose primary it is.
    Merged,
    /// The events that the member's listeners want.
    Listen(Interest),
    /// This member has listeners, and does not acknowledge events.
    Deaf(Address),
    /// The member has promised a higher ballot than the coordinator's.
    Outbid(Ballot),
}

/// The state of a member's caches that a coordinator needs.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Status {
    /// The ballot of the request, which the member has promised.
    pub(crate) ballot: Ballot,
    pub(crate) caches: Vec<CacheStatus>,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct CacheStatus {
    pub(crate) config: CacheConfig,
    pub(crate) member: CacheMember,
    /// The newest topology that the member has installed.
    pub(crate) topology: Option<Topology>,
    /// The topology whose entries the member keeps for a merge.
    pub(crate) frozen: Option<Topology>,
    /// The last rebalance whose segments the member has received.
    pub(crate) pulled: u32,
    pub(crate) is_leaving: bool,
    /// The member has never been a member of the cache, in this process or in one that its store has a record of.
    /// Therefore it has lost no data that others rely on.
    pub(crate) is_fresh: bool,
    /// The state from the store, if there is no topology yet.
    pub(crate) restored: Option<Restored>,
}

/// The state that a member's store has from an earlier process.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Restored {
    /// The member's address in the earlier process.
    pub(crate) formerly: Address,
    /// The newest topology that it had installed.
    pub(crate) topology: Topology,
}
