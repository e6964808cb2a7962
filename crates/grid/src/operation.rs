//! Operations on one key of a cache, and their outcomes.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use consort_group::{Address, Member, Time};
use consort_memory::Shortage;

use crate::{CacheMode, Entry, Full, Lifetime, Limit, NamesMembers, Segment, Version};

/// The condition of a write.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Condition {
    /// None: the write is always carried out.
    Always,
    /// The key is absent.
    Absent,
    /// The key is present.
    Present,
    /// The key has this value.
    Value(Bytes),
    /// The key's entry has this version.
    Version(Version),
}

impl Condition {
    /// Whether the condition holds for the key's entry.
    pub fn holds(&self, entry: Option<&Entry>) -> bool {
        match self {
            Self::Always => true,
            Self::Absent => entry.is_none(),
            Self::Present => entry.is_some(),
            // A value that is only in the store cannot be compared.
            Self::Value(value) => entry.is_some_and(|entry| !entry.is_passive() && entry.value == value),
            Self::Version(version) => entry.is_some_and(|entry| entry.version == *version),
        }
    }
}

/// The effect of a write.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// The key gets this value.
    Put {
        /// The value.
        value: Bytes,
        /// Its lifetime.
        lifetime: Lifetime,
    },
    /// The key becomes absent.
    Remove,
    /// All keys become absent, whichever key the request has. Only with [`CacheMode::Invalidation`], where a member
    /// does not know the keys of other members.
    Clear,
}

/// A write: one change under one condition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Write {
    /// The condition.
    pub condition: Condition,
    /// The change.
    pub change: Change,
    /// Whether the caller wants the previous entry. Its transfer has a cost, so it is only sent on request.
    pub wants_previous: bool,
}

/// The owner that serves a read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ReadFrom {
    /// The nearest owner: this member if it is one, else one of the owners. Regular: the last acknowledged write or a
    /// newer one.
    #[default]
    Nearest,
    /// The primary only. Linearizable.
    Primary,
}

/// An operation on one key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Reads the key's entry.
    Read(ReadFrom),
    /// A write.
    Write(Write),
}

/// The outcome of an operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The key's entry.
    Read(Option<Stored>),
    /// The result of a write.
    Written(Written),
}

/// The result of a write.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Written {
    /// Whether the condition held. If not, nothing was changed.
    pub is_done: bool,
    /// Whether the key was present before.
    pub was_present: bool,
    /// The version of the write, also of a removal. If the condition did not hold, the version of the key's entry;
    /// [`Version::NONE`] if it has none.
    pub version: Version,
    /// The previous entry, if the caller wanted it and the key was present.
    pub previous: Option<Stored>,
}

/// An entry in a message: times are durations, because members' clocks differ.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stored {
    /// The value.
    pub value: Bytes,
    /// Its version.
    pub version: Version,
    /// Its lifespan and max-idle time.
    pub lifetime: Lifetime,
    /// Time since it was written.
    pub age: Duration,
    /// Time since it was last used.
    pub idle: Duration,
}

/// The metadata of an entry in a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct EntryMetadata {
    pub(crate) version: Version,
    pub(crate) lifetime: Lifetime,
    pub(crate) age: Duration,
    pub(crate) idle: Duration,
}

impl EntryMetadata {
    /// Returns the time of the entry's first write, by the clock of a member that has just received it.
    pub(crate) fn created(self, now: Time) -> Time {
        ago(now, self.age)
    }

    /// Returns the time of its last use, by the same clock.
    pub(crate) fn last_used(self, now: Time) -> Time {
        ago(now, self.idle)
    }
}

impl Stored {
    /// Creates it from an entry, by the clock of the member that has the entry.
    pub fn of(entry: Entry, now: Time) -> Self {
        Self {
            age: now.since(entry.created),
            idle: now.since(entry.last_used),
            value: entry.value,
            version: entry.version,
            lifetime: entry.lifetime,
        }
    }

    pub(crate) fn stamped(value: Bytes, stamp: EntryMetadata) -> Self {
        let EntryMetadata { version, lifetime, age, idle } = stamp;
        Self { value, version, lifetime, age, idle }
    }

    pub(crate) fn stamp(&self) -> EntryMetadata {
        let &Self { version, lifetime, age, idle, .. } = self;
        EntryMetadata { version, lifetime, age, idle }
    }

    /// Whether its lifespan has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.lifetime.lifespan.is_some_and(|lifespan| lifespan <= self.age)
    }

    /// Returns the entry, by the clock of a member that has just received it.
    pub fn into_entry(self, now: Time) -> Entry {
        Entry {
            created: ago(now, self.age),
            last_used: ago(now, self.idle),
            value: self.value,
            version: self.version,
            lifetime: self.lifetime,
        }
    }
}

/// Returns the time `span` before now; the clock's zero if that is earlier.
pub(crate) fn ago(now: Time, span: Duration) -> Time {
    Time(now.0.saturating_sub(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
}

/// The reason why a store has failed, as text.
pub type StoreFailure = Arc<str>;

/// The reason why an operation has failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OperationError {
    /// Not all owners have responded within the timeout, or no reachable member has a capacity for the cache. The
    /// write may have been applied, or may still be applied.
    #[error("timed out after {0:?}; a write may still be applied")]
    TimedOut(Duration),
    /// This member was removed from the cluster while the write was in progress. The write may have been applied.
    #[error("this member was removed from the cluster; the write may have been applied")]
    Uncertain,
    /// Too many members are unreachable, and the cache's partition handling does not allow the operation. Nothing was
    /// changed.
    #[error("cache is degraded: owners of segment {segment} are unreachable: {}", listed(away))]
    Degraded {
        /// The key's segment.
        segment: Segment,
        /// The segment's unreachable owners.
        away: Vec<Member>,
    },
    /// The key's primary has no room for the entry: its cache refuses new entries, or evicting all evictable entries
    /// would not make enough room. Nothing was changed.
    #[error("memory of {member} is full: the limit is {limit}, and the write needs {needed}")]
    MemoryFull {
        /// The member whose memory is full.
        member: Member,
        /// Its limit.
        limit: Limit,
        /// The size with the write after evicting all evictable entries, in the unit of the limit.
        needed: u64,
    },
    /// The process of the key's primary, or of another owner, has no memory for the additional bytes of the write.
    /// Nothing was changed. Entries can be read, removed, and replaced by values that are not larger.
    #[error("{member} has no memory for the write: {shortage}")]
    NoMemory {
        /// The member.
        member: Member,
        /// Its limit, and its memory in use.
        shortage: Shortage,
    },
    /// A member's store has not accepted the write. The write is in the memory of its owners, and the store tries it
    /// again. Until then it is lost if all owners stop.
    #[error("the write is in memory, but the store of {member} failed to write it: {why}")]
    StoreWriteFailed {
        /// The member whose store failed.
        member: Member,
        /// The store's error.
        why: StoreFailure,
    },
    /// The store of the key's primary does not accept earlier writes. Nothing was changed.
    #[error("the store of {member} refuses writes: {why}")]
    StoreUnavailable {
        /// The member whose store failed.
        member: Member,
        /// The store's error.
        why: StoreFailure,
    },
    /// A member's store has the value and cannot read it. Nothing was changed.
    #[error("the store of {member} cannot read the value: {why}")]
    StoreReadFailed {
        /// The member whose store failed.
        member: Member,
        /// The store's error.
        why: StoreFailure,
    },
    /// The key or value is larger than a cache allows. Nothing was changed.
    #[error("{what} has {length} bytes, {limit} are allowed")]
    TooLarge {
        /// The key or the value.
        what: &'static str,
        /// Its length in bytes.
        length: usize,
        /// The maximum length in bytes.
        limit: usize,
    },
    /// The value in the response of another member is larger than the caller allows. Nothing was changed.
    #[error("the value has {bytes} bytes, the limit of the caller is {limit}")]
    LargeResponse {
        /// Bytes of the value.
        bytes: u32,
        /// The caller's [`SubmitOptions::response_bytes_max`].
        ///
        /// [`SubmitOptions::response_bytes_max`]: crate::SubmitOptions::response_bytes_max
        limit: u32,
    },
    /// The cache's mode does not support the request. Nothing was changed.
    #[error("{what} is not supported in a cache of mode {mode:?}")]
    Unsupported {
        /// The unsupported request.
        what: &'static str,
        /// The cache's mode.
        mode: CacheMode,
    },
    /// The cache is not open on this member, or no longer. Nothing was changed.
    #[error("cache is closed")]
    Closed,
    /// The member has the maximum number of operations in progress. Nothing was changed.
    #[error("{0} operations are under way already")]
    TooManyInFlight(u64),
}

impl OperationError {
    /// Creates the error of a member without room.
    pub(crate) fn full(member: &Address, Full { limit, needed }: Full) -> Self {
        Self::MemoryFull { member: member.clone().into(), limit, needed }
    }
}

impl NamesMembers for OperationError {
    fn each_member(&mut self, name: &mut dyn FnMut(&mut Member)) {
        match self {
            Self::Degraded { away, .. } => away.iter_mut().for_each(name),
            Self::MemoryFull { member, .. }
            | Self::NoMemory { member, .. }
            | Self::StoreWriteFailed { member, .. }
            | Self::StoreUnavailable { member, .. }
            | Self::StoreReadFailed { member, .. } => name(member),
            Self::TimedOut(_)
            | Self::Uncertain
            | Self::TooLarge { .. }
            | Self::LargeResponse { .. }
            | Self::Unsupported { .. }
            | Self::Closed
            | Self::TooManyInFlight(_) => {}
        }
    }
}

fn listed(members: &[Member]) -> String {
    members.iter().map(Member::to_string).collect::<Vec<_>>().join(", ")
}
