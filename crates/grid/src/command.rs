//! The commands between members of a cache.

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

/// The cluster-wide id of an operation, also of its repetitions.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct OperationId {
    pub(crate) caller: Address,
    pub(crate) number: u64,
}

/// A receiver with an older topology keeps the command until it installs the sender's topology.
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
    /// The write is applied.
    Ack(Ack),
    /// The called member to the caller.
    Reply { number: u64, reply: Reply },
    /// Write owner to a segment's new primary, or read owner to the segment's receiver.
    Handover(Vec<HandedSegment>),
    /// Primary to write owners: it has sent all records of these segments and of gone callers. One write
    /// owner forwards it to listening members.
    Settled(Vec<Segment>),
    /// Pending owner to a read owner, or primary to an owner in a partition to be merged.
    Pull(Pull),
    /// The response to [`Body::Pull`].
    Chunk(Chunk),
    /// Reader to a read owner.
    Fetch(Fetch),
    /// The response to [`Body::Fetch`].
    Fetched(Fetched),
    /// Write owner to a listening member, which acknowledges the event like a backup command.
    Notify(Notify),
    /// Owner to primary or back: here this entry has exceeded its max-idle time.
    Idle { segment: Segment, key: Bytes, version: Version, number: u64 },
    /// The response to [`Body::Idle`]; also to all other write owners if it changes their state.
    LastUse(LastUse),
    /// A former read owner to the primary: it has sent all its last uses of these segments.
    LastUsesSent(Vec<Segment>),
    /// Primary to write owners, after a merge of the segment, and when lineages begin or merges end.
    HistoryUpdate { segment: Segment, history: SegmentHistory },
    /// A member to all others of the view.
    Memory { shortage: Option<Shortage> },
    /// A member to the coordinator.
    ToCoordinator(ToCoordinator),
    /// The coordinator to all members that have promised it this ballot.
    Install { ballot: Ballot, topology: Box<Topology> },
    /// To a member that may not join.
    Refused(OpenError),
    /// To a member on which nothing depends any more.
    Left,
    /// The coordinator of a new view to its members, or to new ones.
    StatusRequest { ballot: Ballot },
}

impl Body {
    pub(crate) const fn key(&self) -> Option<&Bytes> {
        match self {
            Self::Call(Call { key, .. }) | Self::Backup(Backup { key, .. }) => Some(key),
            _ => None,
        }
    }

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

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Call {
    pub(crate) number: u64,
    /// It may already be carried out.
    pub(crate) is_repeated: bool,
    pub(crate) flags: Flags,
    pub(crate) key: Bytes,
    pub(crate) action: Action,
    /// A member with a larger value does nothing.
    pub(crate) response_bytes_max: u32,
}

impl Call {
    pub(crate) const ANY_BYTES: u32 = u32::MAX;
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Backup {
    pub(crate) segment: Segment,
    pub(crate) operation: OperationId,
    /// The primary knows that this caller has finished every lower number.
    pub(crate) finished: u64,
    pub(crate) key: Bytes,
    pub(crate) version: Version,
    pub(crate) effect: Effect,
    /// The write owners that acknowledge this command in this epoch.
    pub(crate) expected_acks: u16,
    pub(crate) sends_outcome: bool,
    pub(crate) outcome: Option<Outcome>,
    pub(crate) skips_listeners: bool,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Effect {
    Put(Stored),
    /// An entry of another partition, no write of this one.
    Copy(Stored),
    Remove,
    /// Another partition removed the key; this is no write of this one.
    CopyRemoval,
    /// Later writes have replaced the effect, but the write owner remembers and acknowledges the operation.
    Superseded,
    /// The entry of this operation expired or was evicted without a write. Older entries are removed.
    Gone,
    /// The acknowledgement says that everything before this command has arrived.
    Nothing,
    /// The receiver's entry is stale, whatever its version.
    Invalidate,
    /// The receiver's entries of all keys are stale.
    InvalidateAll,
}

impl Effect {
    pub(crate) fn is_copied(&self) -> bool {
        matches!(self, Self::Copy(_) | Self::CopyRemoval)
    }
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct LastUse {
    pub(crate) segment: Segment,
    pub(crate) key: Bytes,
    pub(crate) version: Version,
    /// The request; 0 without one.
    pub(crate) number: u64,
    /// The time since the last use; `None` if the sender has not used the entry or lacks it.
    pub(crate) idle: Option<Duration>,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Notify {
    pub(crate) segment: Segment,
    pub(crate) operation: OperationId,
    pub(crate) key: Bytes,
    pub(crate) version: Version,
    pub(crate) kind: EventKind,
    pub(crate) value: Option<Bytes>,
    pub(crate) previous: Option<Previous>,
    pub(crate) expected_acks: u16,
    pub(crate) outcome: Option<Outcome>,
    /// The event counts as delivered, but listeners do not receive it.
    pub(crate) skips_listeners: bool,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Ack {
    pub(crate) number: u64,
    pub(crate) epoch: u32,
    pub(crate) expected_acks: u16,
    pub(crate) outcome: Option<Outcome>,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Reply {
    Done(Outcome),
    /// The receiver is not the primary in its topology, which the response has.
    Misdirected,
    Failed(OperationError),
    /// The primary has applied the write, and its caller does not wait for the write owners.
    Ordered(Outcome),
    /// Not carried out: the value has this number of bytes, more than the call allows.
    Larger(u32),
}

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
    pub(crate) skips_listeners: bool,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Pull {
    pub(crate) rebalance: u32,
    pub(crate) side: Option<SideId>,
    pub(crate) segment: Segment,
    /// `None` is the beginning of the segment.
    pub(crate) cursor: Option<(u64, u64)>,
    pub(crate) bytes_max: u32,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Chunk {
    pub(crate) rebalance: u32,
    pub(crate) side: Option<SideId>,
    pub(crate) segment: Segment,
    pub(crate) cursor: Option<(u64, u64)>,
    pub(crate) entries: EncodedEntries,
    /// `None` in the last chunk.
    pub(crate) next: Option<(u64, u64)>,
    /// The sender's history of the segment, with the last chunk.
    pub(crate) history: Option<SegmentHistory>,
    /// The sender lacks the segment: the receiver asks another owner.
    pub(crate) is_refused: bool,
    /// Approximately, of the whole segment at the sender.
    pub(crate) segment_bytes: u64,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Fetch {
    pub(crate) iteration: u64,
    pub(crate) nth: u32,
    pub(crate) segments: Vec<Segment>,
    pub(crate) cursor: Option<(u64, u64)>,
    pub(crate) items_max: u32,
    pub(crate) projection: Projection,
    pub(crate) transform: Option<Transform>,
    /// The reader has no other outstanding request.
    pub(crate) is_only: bool,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Fetched {
    pub(crate) iteration: u64,
    pub(crate) nth: u32,
    pub(crate) parts: Vec<Part>,
    pub(crate) items: Items,
    pub(crate) cursor: Option<(u64, u64)>,
    pub(crate) applied: Applied,
    pub(crate) failed: Option<OperationError>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Applied {
    Done,
    Unknown,
    Panicked,
}

impl Body {
    pub(crate) fn bulk_len(&self) -> usize {
        match self {
            Self::Chunk(chunk) => chunk.entries.content_bytes(),
            _ => 0,
        }
    }
}

impl Chunk {
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
    pub(crate) fn nothing(iteration: u64, nth: u32) -> Self {
        let (parts, items) = (Vec::new(), Items::default());
        Self { iteration, nth, parts, items, cursor: None, applied: Applied::Done, failed: None }
    }
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Part {
    pub(crate) segment: Segment,
    pub(crate) count: u32,
    pub(crate) end: PartEnd,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PartEnd {
    Complete,
    More,
    Refused,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) enum ToCoordinator {
    Join {
        config: CacheConfig,
        member: CacheMember,
        restored: Option<Box<Restored>>,
    },
    Leave,
    /// No record of an owner that the next topology replaces is outstanding.
    Confirm,
    Pulled {
        rebalance: u32,
    },
    /// The remaining data suffices.
    MakeAvailable,
    Status(Box<Status>),
    Merged,
    Listen(Interest),
    /// A listening member acknowledges no events.
    Deaf(Address),
    Outbid(Ballot),
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Status {
    pub(crate) ballot: Ballot,
    pub(crate) caches: Vec<CacheStatus>,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct CacheStatus {
    pub(crate) config: CacheConfig,
    pub(crate) member: CacheMember,
    pub(crate) topology: Option<Topology>,
    pub(crate) frozen: Option<Topology>,
    pub(crate) pulled: u32,
    pub(crate) is_leaving: bool,
    /// No member relies on this one's data: neither this process nor one in the store's record was a member
    /// of the cache.
    pub(crate) is_fresh: bool,
    pub(crate) restored: Option<Restored>,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Restored {
    pub(crate) formerly: Address,
    pub(crate) topology: Topology,
}
