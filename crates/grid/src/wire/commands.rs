//! The wire form of commands.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use consort_memory::Shortage;

use crate::codec::{FrameError, Result, Wire, need, put_bytes, read_fields, wire_enum, wire_struct};
use crate::command::{
    Ack, Applied, Backup, Body, CacheStatus, Call, Chunk, Effect, Fetch, Fetched, HandedRecord,
    HandedSegment, LastUse, Notify, OperationId, Part, PartEnd, Pull, Reply, Restored, Status, ToCoordinator,
};
use crate::event::{EventKind, Previous};
use crate::history::{Lineage, SegmentHistory};
use crate::items::Items;
use crate::merge::{PartitionSide, SplitPoint};
use crate::operation::{
    Action, Change, Condition, OperationError, Outcome, ReadFrom, Stored, Write, Written,
};
use crate::publication::{Projection, Transform};
use crate::topology::{Availability, Interest, Listening, Membership, Phase};
use crate::{
    Ballot, CacheConfig, CacheMember, CacheMode, CapacityFactor, ConsistentHash, Flags, Grouper, Grouping,
    Lifetime, Limit, Location, MergePolicy, OpenError, Owners, PartitionHandling, Segment, Topology, Version,
};

impl Wire for Segment {
    fn put(&self, out: &mut BytesMut) {
        self.0.put(out);
    }

    fn read(from: &mut Bytes) -> Result<Self> {
        u16::read(from).map(Self)
    }
}

impl Wire for Version {
    fn put(&self, out: &mut BytesMut) {
        self.0.put(out);
    }

    fn read(from: &mut Bytes) -> Result<Self> {
        u64::read(from).map(Self)
    }
}

impl Wire for Flags {
    fn put(&self, out: &mut BytesMut) {
        self.0.put(out);
    }

    fn read(from: &mut Bytes) -> Result<Self> {
        u8::read(from).map(Self)
    }
}

impl Wire for CapacityFactor {
    fn put(&self, out: &mut BytesMut) {
        self.thousandths().put(out);
    }

    fn read(from: &mut Bytes) -> Result<Self> {
        u32::read(from).map(Self::from_thousandths)
    }
}

/// Indexes of missing members are refused.
impl Wire for ConsistentHash {
    fn put(&self, out: &mut BytesMut) {
        self.members().len().put(out);
        self.members().iter().for_each(|member| member.put(out));
        self.owner_count().put(out);
        self.segment_count().put(out);
        for segment in self.segments() {
            let places = self.places(segment);
            places.len().put(out);
            places.iter().for_each(|place| place.put(out));
        }
    }

    fn read(from: &mut Bytes) -> Result<Self> {
        let members = Vec::<CacheMember>::read(from)?;
        let owner_count = u16::read(from)?;
        let owners = Vec::<Owners>::read(from)?;
        Self::from_parts(members, owner_count, owners)
            .map_err(|value| FrameError::Invalid { what: "owner", value })
    }
}

/// All parts must have the same number of segments.
impl Wire for Topology {
    fn put(&self, out: &mut BytesMut) {
        let Self {
            id,
            phase,
            members,
            current,
            pending,
            rebalance,
            epochs,
            primary_terms,
            quorum,
            availability,
            available,
            origin,
            lineages,
            split_points,
            merged,
            merging,
            quorum_to_be,
            forgone,
            ballot,
        } = self;
        (*id, *phase).put(out);
        members.put(out);
        current.put(out);
        pending.put(out);
        rebalance.put(out);
        epochs.put(out);
        primary_terms.put(out);
        quorum.put(out);
        availability.put(out);
        available.put(out);
        origin.put(out);
        lineages.put(out);
        split_points.put(out);
        merged.put(out);
        merging.put(out);
        quorum_to_be.put(out);
        forgone.put(out);
        ballot.put(out);
    }

    fn read(from: &mut Bytes) -> Result<Self> {
        let (id, phase) = Wire::read(from)?;
        let topology = Self {
            id,
            phase,
            members: Wire::read(from)?,
            current: Wire::read(from)?,
            pending: Wire::read(from)?,
            rebalance: Wire::read(from)?,
            epochs: Wire::read(from)?,
            primary_terms: Wire::read(from)?,
            quorum: Wire::read(from)?,
            availability: Wire::read(from)?,
            available: Wire::read(from)?,
            origin: Wire::read(from)?,
            lineages: Wire::read(from)?,
            split_points: Wire::read(from)?,
            merged: Wire::read(from)?,
            merging: Wire::read(from)?,
            quorum_to_be: Wire::read(from)?,
            forgone: Wire::read(from)?,
            ballot: Wire::read(from)?,
        };
        let count = usize::from(topology.current.segment_count());
        let others = [
            topology.pending.as_ref().map_or(count, |pending| pending.segment_count().into()),
            topology.epochs.len(),
            topology.primary_terms.len(),
        ];
        if topology.id > Version::TOPOLOGY_MAX {
            // Its writes would have no distinct versions, and it could have no successor.
            return Err(FrameError::Invalid { what: "topology", value: topology.id.into() });
        }
        let sides = topology.merging.iter().map(|side| usize::from(side.owners.segment_count()));
        match others.into_iter().chain(sides).find(|&other| other != count) {
            Some(other) => Err(FrameError::Invalid { what: "number of segments", value: other as u64 }),
            None if count == 0 => Err(FrameError::Invalid { what: "number of segments", value: 0 }),
            None => Ok(topology),
        }
    }
}

/// Other errors never leave their member.
impl Wire for OperationError {
    fn put(&self, out: &mut BytesMut) {
        match self {
            Self::Degraded { segment, away } => {
                1_u8.put(out);
                segment.put(out);
                away.put(out);
            }
            Self::MemoryFull { member, limit, needed } => {
                2_u8.put(out);
                member.put(out);
                limit.put(out);
                needed.put(out);
            }
            Self::Uncertain => 3_u8.put(out),
            Self::StoreWriteFailed { member, why } => put_failure(4, member, why, out),
            Self::StoreUnavailable { member, why } => put_failure(5, member, why, out),
            Self::StoreReadFailed { member, why } => put_failure(6, member, why, out),
            Self::NoMemory { member, shortage } => {
                7_u8.put(out);
                member.put(out);
                shortage.put(out);
            }
            _ => 0_u8.put(out),
        }
    }

    fn read(from: &mut Bytes) -> Result<Self> {
        match u8::read(from)? {
            0 => Ok(Self::Closed),
            1 => Ok(Self::Degraded { segment: Wire::read(from)?, away: Wire::read(from)? }),
            2 => {
                let (member, limit) = (Wire::read(from)?, Wire::read(from)?);
                Ok(Self::MemoryFull { member, limit, needed: Wire::read(from)? })
            }
            3 => Ok(Self::Uncertain),
            4 => Ok(Self::StoreWriteFailed { member: Wire::read(from)?, why: Wire::read(from)? }),
            5 => Ok(Self::StoreUnavailable { member: Wire::read(from)?, why: Wire::read(from)? }),
            6 => Ok(Self::StoreReadFailed { member: Wire::read(from)?, why: Wire::read(from)? }),
            7 => Ok(Self::NoMemory { member: Wire::read(from)?, shortage: Wire::read(from)? }),
            value => Err(FrameError::Invalid { what: "error", value: value.into() }),
        }
    }
}

fn put_failure(tag: u8, member: &impl Wire, why: &impl Wire, out: &mut BytesMut) {
    tag.put(out);
    member.put(out);
    why.put(out);
}

wire_enum!(Applied { 0 = Done, 1 = Unknown, 2 = Panicked });
wire_enum!(Limit { 0 = Entries(amount), 1 = Bytes(amount) });
wire_enum!(Phase { 0 = Stable, 1 = ReadOldWriteAll, 2 = ReadNewWriteAll, 3 = Restoring });
wire_enum!(Availability { 0 = Available, 1 = Degraded { away } });
wire_enum!(Interest { 0 = Nothing, 1 = Keys, 2 = Entries, 3 = Previous });
wire_struct!(Listening { since, changed, interest });
wire_struct!(Membership { member, since, listening, formerly });
wire_struct!(Location { site, rack, machine });
wire_struct!(CacheMember { address, capacity, location });
wire_enum!(CacheMode { 0 = Replicated, 1 = Distributed { owners }, 2 = Local, 3 = Invalidation });
wire_enum!(PartitionHandling { 0 = DenyReadWrites, 1 = AllowReads, 2 = AllowReadWrites });
wire_enum!(MergePolicy { 0 = PreferredAlways, 1 = PreferredNonNull, 2 = RemoveAll, 3 = Custom(name) });
wire_struct!(CacheConfig { name, mode, segments, partitions, merge, grouping, encoding, is_transactional });

impl Wire for Grouper {
    fn put(&self, out: &mut BytesMut) {
        self.name().put(out);
    }

    fn read(from: &mut Bytes) -> Result<Self> {
        Wire::read(from).map(Self::named)
    }
}

wire_enum!(Grouping { 0 = None, 1 = Tag, 2 = Custom(grouper) });
wire_enum!(OpenError {
    0 = Invalid { cache, setting, value },
    1 = AlreadyOpen(cache),
    2 = ConfigMismatch { cache, setting, ours, theirs },
    3 = ForeignStore { cache, ours, theirs },
    4 = StoreConfigMismatch { cache, setting, ours, theirs },
    5 = IncompatibleWire { cache, member, theirs, ours },
    6 = TooMany { cache, limit },
});

wire_struct!(Lifetime { lifespan, max_idle });

wire_struct!(Stored { value, version, lifetime, age, idle });

wire_enum!(Condition { 0 = Always, 1 = Absent, 2 = Present, 3 = Value(value), 4 = Version(version) });
wire_enum!(Change { 0 = Put { value, lifetime }, 1 = Remove, 2 = Clear });
wire_struct!(Write { condition, change, wants_previous });
wire_enum!(ReadFrom { 0 = Nearest, 1 = Primary });
wire_enum!(Action { 0 = Read(from), 1 = Write(write) });
wire_struct!(Written { is_done, was_present, version, previous });
wire_enum!(Outcome { 0 = Read(entry), 1 = Written(written) });

wire_struct!(OperationId { caller, number });

/// Members of an older release send no limit of the response.
impl Wire for Call {
    fn put(&self, out: &mut BytesMut) {
        self.number.put(out);
        self.is_repeated.put(out);
        self.flags.put(out);
        self.key.put(out);
        self.action.put(out);
        if self.response_bytes_max != Self::ANY_BYTES {
            self.response_bytes_max.put(out);
        }
    }

    fn read(from: &mut Bytes) -> Result<Self> {
        Ok(Self {
            number: Wire::read(from)?,
            is_repeated: Wire::read(from)?,
            flags: Wire::read(from)?,
            key: Wire::read(from)?,
            action: Wire::read(from)?,
            response_bytes_max: if from.is_empty() { Self::ANY_BYTES } else { Wire::read(from)? },
        })
    }
}

wire_enum!(Effect {
    0 = Put(entry),
    1 = Remove,
    2 = Superseded,
    3 = Nothing,
    4 = Copy(entry),
    5 = Invalidate,
    6 = InvalidateAll,
    7 = Gone,
    8 = CopyRemoval,
});
wire_struct!(Backup {
    segment,
    operation,
    finished,
    key,
    version,
    effect,
    expected_acks,
    sends_outcome,
    outcome,
    skips_listeners
});
wire_enum!(EventKind { 0 = Created, 1 = Modified, 2 = Removed, 3 = Expired, 4 = Existing });
wire_struct!(Previous { value, version });
wire_struct!(LastUse { segment, key, version, number, idle });
wire_struct!(Notify {
    segment,
    operation,
    key,
    version,
    kind,
    value,
    previous,
    expected_acks,
    outcome,
    skips_listeners
});
wire_struct!(Ack { number, epoch, expected_acks, outcome });
wire_enum!(Reply { 0 = Done(outcome), 1 = Misdirected, 2 = Failed(error), 3 = Ordered(outcome), 4 = Larger(bytes) });
wire_struct!(HandedRecord { operation, key, version, effect, outcome, skips_listeners });
wire_struct!(HandedSegment { segment, primary_term, records });
wire_struct!(SplitPoint { id, by });
wire_struct!(Ballot { number, by });
wire_struct!(PartitionSide { since, nth, owners, split_points });
wire_struct!(Lineage { id, by });
wire_struct!(SegmentHistory { seen, older, removals });
wire_struct!(Pull { rebalance, side, segment, cursor, bytes_max });

impl Wire for Chunk {
    fn put(&self, out: &mut BytesMut) {
        self.put_with(out, |out| self.entries.put(out));
    }

    fn read(from: &mut Bytes) -> Result<Self> {
        read_fields!(
            from,
            rebalance,
            side,
            segment,
            cursor,
            entries,
            next,
            history,
            is_refused,
            segment_bytes
        )
    }
}

impl Chunk {
    fn put_with(&self, out: &mut BytesMut, entries: impl FnOnce(&mut BytesMut)) {
        self.rebalance.put(out);
        self.side.put(out);
        self.segment.put(out);
        self.cursor.put(out);
        entries(out);
        self.next.put(out);
        self.history.put(out);
        self.is_refused.put(out);
        self.segment_bytes.put(out);
    }

    pub(crate) fn put_body(&self, out: &mut BytesMut, count: usize, entries: impl FnOnce(&mut BytesMut)) {
        out.put_u8(CHUNK);
        self.put_with(out, |out| {
            count.put(out);
            entries(out);
        });
    }
}

wire_enum!(Projection { 0 = Entries, 1 = Keys, 2 = Count, 3 = Reduced, 4 = Removable });
wire_struct!(Transform { name, arguments });
wire_struct!(Shortage { used, limit, of });
wire_enum!(PartEnd { 0 = Complete, 1 = More, 2 = Refused });
wire_struct!(Part { segment, count, end });
wire_struct!(Fetch { iteration, nth, segments, cursor, items_max, projection, transform, is_only });

/// Two lengths and a version take three bytes.
const ITEM_BYTES_LEAST: usize = 3;

/// The items come first, after their number in four bytes: an owner writes them before it knows the other
/// fields.
impl Wire for Fetched {
    fn put(&self, out: &mut BytesMut) {
        out.put_u32(self.items.len() as u32);
        self.items.iter().for_each(|item| put_item(out, item.key, item.value, item.version));
        self.put_rest(out);
    }

    fn read(from: &mut Bytes) -> Result<Self> {
        need(from, "number of items", 4)?;
        let count = from.get_u32() as usize;
        need(from, "items", count.saturating_mul(ITEM_BYTES_LEAST))?;
        Ok(Self {
            items: Items::read(from, count)?,
            iteration: Wire::read(from)?,
            nth: Wire::read(from)?,
            parts: Wire::read(from)?,
            cursor: Wire::read(from)?,
            applied: Wire::read(from)?,
            failed: Wire::read(from)?,
        })
    }
}

pub(super) fn put_item(out: &mut BytesMut, key: &[u8], value: &[u8], version: Version) {
    put_bytes(out, key);
    put_bytes(out, value);
    version.put(out);
}

impl Fetched {
    pub(super) fn put_rest(&self, out: &mut BytesMut) {
        self.iteration.put(out);
        self.nth.put(out);
        self.parts.put(out);
        self.cursor.put(out);
        self.applied.put(out);
        self.failed.put(out);
    }
}

wire_struct!(Restored { formerly, topology });
wire_struct!(CacheStatus { config, member, topology, frozen, pulled, is_leaving, is_fresh, restored });
wire_struct!(Status { ballot, caches });

impl<T: Wire> Wire for Box<T> {
    fn put(&self, out: &mut BytesMut) {
        (**self).put(out);
    }

    fn read(from: &mut Bytes) -> Result<Self> {
        T::read(from).map(Self::new)
    }
}

wire_enum!(ToCoordinator {
    0 = Join { config, member, restored },
    1 = Leave,
    2 = Confirm,
    3 = Pulled { rebalance },
    4 = MakeAvailable,
    5 = Status(status),
    6 = Merged,
    7 = Listen(interest),
    8 = Deaf(member),
    9 = Outbid(ballot),
});

const CHUNK: u8 = 7;

pub(super) const FETCHED: u8 = 14;

/// The reader skips unknown tags.
pub(super) const BODY_TAGS: u8 = 21;

wire_enum!(Body {
    0 = Call(call),
    1 = Backup(backup),
    2 = Ack(ack),
    3 = Reply { number, reply },
    4 = Handover(segments),
    5 = Settled(segments),
    6 = Pull(pull),
    7 = Chunk(chunk),
    8 = ToCoordinator(told),
    9 = Install { ballot, topology },
    10 = Refused(error),
    11 = Left,
    12 = StatusRequest { ballot },
    13 = Fetch(fetch),
    14 = Fetched(fetched),
    15 = Notify(tell),
    16 = Idle { segment, key, version, number },
    17 = LastUse(used),
    18 = LastUsesSent(segments),
    19 = HistoryUpdate { segment, history },
    20 = Memory { shortage },
});
