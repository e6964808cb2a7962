//! Operations on one key, and their outcomes.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use consort_group::{Address, Member, Time};
use consort_memory::Shortage;

use crate::{CacheMode, Entry, Full, Lifetime, Limit, NamesMembers, Segment, Version};

/// The condition of a write.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Condition {
    /// No condition.
    Always,
    /// The key is absent.
    Absent,
    /// The key is present.
    Present,
    /// The key has this value.
    Value(Bytes),
    /// The entry has this version.
    Version(Version),
}

impl Condition {
    /// Whether the condition holds for an entry.
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
        /// The lifetime.
        lifetime: Lifetime,
    },
    /// The key becomes absent.
    Remove,
    /// All keys become absent; only for [`CacheMode::Invalidation`], where members do not know each other's
    /// keys.
    Clear,
}

/// A change under a condition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Write {
    /// The condition.
    pub condition: Condition,
    /// The change.
    pub change: Change,
    /// Whether the previous entry is sent, at a cost.
    pub wants_previous: bool,
}

/// The owner that serves a read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ReadFrom {
    /// This member if it is an owner, else another: the last acknowledged write or a newer one (regular).
    #[default]
    Nearest,
    /// The primary. Linearizable.
    Primary,
}

/// An operation on one key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// A read.
    Read(ReadFrom),
    /// A write.
    Write(Write),
}

/// The outcome of an operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The entry.
    Read(Option<Stored>),
    /// The write's result.
    Written(Written),
}

/// The result of a write.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Written {
    /// Whether the condition held. If not, nothing was changed.
    pub is_done: bool,
    /// Whether the key was present.
    pub was_present: bool,
    /// The version of the write or removal; if the condition failed, the entry's or [`Version::NONE`].
    pub version: Version,
    /// The previous entry, if wanted.
    pub previous: Option<Stored>,
}

/// An entry in a message: times are durations, because clocks differ.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stored {
    /// The value.
    pub value: Bytes,
    /// The version.
    pub version: Version,
    /// Lifespan and max-idle time.
    pub lifetime: Lifetime,
    /// Time since the write.
    pub age: Duration,
    /// Time since the last use.
    pub idle: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct EntryMetadata {
    pub(crate) version: Version,
    pub(crate) lifetime: Lifetime,
    pub(crate) age: Duration,
    pub(crate) idle: Duration,
}

impl EntryMetadata {
    pub(crate) fn created(self, now: Time) -> Time {
        ago(now, self.age)
    }

    pub(crate) fn last_used(self, now: Time) -> Time {
        ago(now, self.idle)
    }
}

impl Stored {
    /// Creates it by the clock of the entry's member.
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

    pub(crate) fn is_over(&self) -> bool {
        self.lifetime.lifespan.is_some_and(|lifespan| lifespan <= self.age)
    }

    /// Returns the entry by this receiver's clock.
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

/// Times before the clock's zero become zero.
pub(crate) fn ago(now: Time, span: Duration) -> Time {
    Time(now.0.saturating_sub(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
}

/// The text of a store's failure.
pub type StoreFailure = Arc<str>;

/// Why an operation has failed. Nothing was changed, unless the variant says otherwise.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OperationError {
    /// Owners did not respond in time, or no reachable member has a capacity. A write may be applied, also
    /// later.
    #[error("timed out after {0:?}; a write may still be applied")]
    TimedOut(Duration),
    /// This member was removed from the cluster during the write, which may be applied.
    #[error("this member was removed from the cluster; the write may have been applied")]
    Uncertain,
    /// Too many members are unreachable for the partition handling.
    #[error("cache is degraded: owners of segment {segment} are unreachable: {}", listed(away))]
    Degraded {
        /// The segment.
        segment: Segment,
        /// Its unreachable owners.
        away: Vec<Member>,
    },
    /// The primary's cache refuses new entries, or eviction would not make enough room.
    #[error("memory of {member} is full: the limit is {limit}, and the write needs {needed}")]
    MemoryFull {
        /// The full member.
        member: Member,
        /// The limit.
        limit: Limit,
        /// The size with the write after all evictions, in the limit's unit.
        needed: u64,
    },
    /// An owner's process has no memory for the write. It still accepts removals and replacements without
    /// growth.
    #[error("{member} has no memory for the write: {shortage}")]
    NoMemory {
        /// The member.
        member: Member,
        /// Limit and use.
        shortage: Shortage,
    },
    /// A store has refused the write and tries it again. Until then only its owners' memory has it.
    #[error("the write is in memory, but the store of {member} failed to write it: {why}")]
    StoreWriteFailed {
        /// The store's member.
        member: Member,
        /// The error.
        why: StoreFailure,
    },
    /// The primary's store refuses earlier writes.
    #[error("the store of {member} refuses writes: {why}")]
    StoreUnavailable {
        /// The store's member.
        member: Member,
        /// The error.
        why: StoreFailure,
    },
    /// A store cannot read the value.
    #[error("the store of {member} cannot read the value: {why}")]
    StoreReadFailed {
        /// The store's member.
        member: Member,
        /// The error.
        why: StoreFailure,
    },
    /// The key or value is too large.
    #[error("{what} has {length} bytes, {limit} are allowed")]
    TooLarge {
        /// The part.
        what: &'static str,
        /// Its bytes.
        length: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// Another member's value is larger than the caller allows.
    #[error("the value has {bytes} bytes, the limit of the caller is {limit}")]
    LargeResponse {
        /// The value's bytes.
        bytes: u32,
        /// The caller's [`SubmitOptions::response_bytes_max`].
        ///
        /// [`SubmitOptions::response_bytes_max`]: crate::SubmitOptions::response_bytes_max
        limit: u32,
    },
    /// The cache's mode does not support the request.
    #[error("{what} is not supported in a cache of mode {mode:?}")]
    Unsupported {
        /// The request.
        what: &'static str,
        /// The mode.
        mode: CacheMode,
    },
    /// The cache is not open here.
    #[error("cache is closed")]
    Closed,
    /// The member has the maximum of operations.
    #[error("{0} operations are under way already")]
    TooManyInFlight(u64),
}

impl OperationError {
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
