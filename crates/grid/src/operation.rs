//! What can be asked of a cache for one key, and what comes of it.

use std::time::Duration;

use bytes::Bytes;
use consort_group::{Address, Member, Time};
use consort_memory::Shortage;

use crate::persistence::StoreFailure;
use crate::{CacheMode, Entry, Full, Lifetime, Limit, NamesMembers, Segment, Version};

/// When a write is done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Condition {
    /// In any case.
    Always,
    /// If the key is absent.
    Absent,
    /// If the key is present.
    Present,
    /// If the key has this value.
    Value(Bytes),
    /// If the key's entry has this version.
    Version(Version),
}

impl Condition {
    /// Whether it holds for what the key has.
    pub fn holds(&self, entry: Option<&Entry>) -> bool {
        match self {
            Self::Always => true,
            Self::Absent => entry.is_none(),
            Self::Present => entry.is_some(),
            // A value that is not at hand is not known to be this one.
            Self::Value(value) => entry.is_some_and(|entry| !entry.is_passive() && entry.value == value),
            Self::Version(version) => entry.is_some_and(|entry| entry.version == *version),
        }
    }
}

/// What a write does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// The key has this value from now on.
    Put {
        /// The value.
        value: Bytes,
        /// For how long.
        lifetime: Lifetime,
    },
    /// The key is absent from now on.
    Remove,
    /// All keys are absent from now on, whatever key is named. Only with [`CacheMode::Invalidation`], where nobody knows
    /// which keys the others have.
    Clear,
}

/// A write: one change under one condition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Write {
    /// When it is done.
    pub condition: Condition,
    /// What is done.
    pub change: Change,
    /// Whether the caller wants what the key had before. It costs its transfer, so it is only sent if wanted.
    pub wants_previous: bool,
}

/// Which owner answers a read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ReadFrom {
    /// Whoever is nearest: this member if it is an owner, else one of the owners. Regular: the last acknowledged write
    /// or a newer one.
    #[default]
    Nearest,
    /// The primary only. Linearizable.
    Primary,
}

/// An operation on one key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// What does the key have?
    Read(ReadFrom),
    /// A write.
    Write(Write),
}

/// What came of an operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// What the key has.
    Read(Option<Stored>),
    /// What a write did.
    Written(Written),
}

/// What a write did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Written {
    /// Whether the condition held. If not, nothing was changed.
    pub is_done: bool,
    /// Whether the key was present before.
    pub was_present: bool,
    /// The version of what was done, be it a removal; if nothing was done, that of the entry that the key has,
    /// [`Version::NONE`] if it has none.
    pub version: Version,
    /// What the key had before, if that was wanted and there was something.
    pub previous: Option<Stored>,
}

/// An entry as it travels: times as spans, because clocks differ.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stored {
    /// The value.
    pub value: Bytes,
    /// Its version.
    pub version: Version,
    /// How long it lives.
    pub lifetime: Lifetime,
    /// How long ago it was written.
    pub age: Duration,
    /// How long ago it was last used.
    pub idle: Duration,
}

/// What an entry has beside its value, as it travels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stamp {
    pub(crate) version: Version,
    pub(crate) lifetime: Lifetime,
    pub(crate) age: Duration,
    pub(crate) idle: Duration,
}

impl Stamp {
    /// When the entry was written first, by the clock of a member that has got it now.
    pub(crate) fn created(self, now: Time) -> Time {
        ago(now, self.age)
    }

    /// When it was last used, by the same clock.
    pub(crate) fn last_used(self, now: Time) -> Time {
        ago(now, self.idle)
    }
}

impl Stored {
    /// An entry, by the clock of the member that has it.
    pub fn of(entry: Entry, now: Time) -> Self {
        Self {
            age: now.since(entry.created),
            idle: now.since(entry.last_used),
            value: entry.value,
            version: entry.version,
            lifetime: entry.lifetime,
        }
    }

    pub(crate) fn stamped(value: Bytes, stamp: Stamp) -> Self {
        let Stamp { version, lifetime, age, idle } = stamp;
        Self { value, version, lifetime, age, idle }
    }

    pub(crate) fn stamp(&self) -> Stamp {
        let &Self { version, lifetime, age, idle, .. } = self;
        Stamp { version, lifetime, age, idle }
    }

    /// Whether its lifespan is over.
    pub(crate) fn is_over(&self) -> bool {
        self.lifetime.lifespan.is_some_and(|lifespan| lifespan <= self.age)
    }

    /// The entry, by the clock of a member that has got it now.
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

/// The time a span ago; the clock's zero if that was before.
pub(crate) fn ago(now: Time, span: Duration) -> Time {
    Time(now.0.saturating_sub(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
}

/// Why an operation has failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OperationError {
    /// Not all owners have answered in time, or nobody is there who takes anything of the cache. A write may have been done, or
    /// may still be done.
    #[error("no answer within {0:?}; what was to be written may still be")]
    TimedOut(Duration),
    /// This member was left out of the cluster while the write was under way. It may have been done.
    #[error("this member was left out of the cluster; the write may have been done")]
    Uncertain,
    /// Too many members are away, and the cache's partition handling does not allow it. Nothing was changed.
    #[error("cache is degraded: owners of segment {segment} are away: {}", listed(away))]
    Degraded {
        /// The key's segment.
        segment: Segment,
        /// Which of its owners.
        away: Vec<Member>,
    },
    /// The key's primary has no room for the entry, and its cache refuses new ones, or nothing that could go would make
    /// enough. Nothing was changed.
    #[error("memory of {member} is full: {limit} are allowed, and with the write there would be {needed}")]
    Full {
        /// Whose memory.
        member: Member,
        /// What it may have.
        limit: Limit,
        /// What there would be if all had gone that may go for it, in the unit of the limit.
        needed: u64,
    },
    /// The process of the key's primary, or of another owner, has no memory for what the write adds. Nothing was changed.
    /// Entries can be read, removed, and replaced by values that are not larger.
    #[error("{member} has no memory for the write: {shortage}")]
    NoMemory {
        /// The member.
        member: Member,
        /// Its limit, and how much of it is in use.
        shortage: Shortage,
    },
    /// A member's store has not taken the write. It stands in the memory of its owners and is tried again; until then it
    /// is lost if they all end.
    #[error("the write is in memory, and the store of {member} has not taken it: {why}")]
    NotStored {
        /// Whose store.
        member: Member,
        /// What it says.
        why: StoreFailure,
    },
    /// The store of the key's primary does not take what it was given before. Nothing was changed.
    #[error("the store of {member} takes no writes: {why}")]
    StoreFails {
        /// Whose store.
        member: Member,
        /// What it says.
        why: StoreFailure,
    },
    /// A member's store has the value and cannot read it. Nothing was changed.
    #[error("the store of {member} cannot read the value: {why}")]
    NotLoaded {
        /// Whose store.
        member: Member,
        /// What it says.
        why: StoreFailure,
    },
    /// The key or value is larger than a cache takes. Nothing was changed.
    #[error("{what} has {length} bytes, {limit} are allowed")]
    TooLarge {
        /// The key or the value.
        what: &'static str,
        /// How long it is.
        length: usize,
        /// How long it may be.
        limit: usize,
    },
    /// The value in the response of another member is larger than the caller allows. Nothing was changed.
    #[error("the value has {bytes} bytes, the caller takes {limit}")]
    LargeResponse {
        /// Bytes of the value.
        bytes: u32,
        /// What the caller has set as [`SubmitOptions::response_bytes_max`].
        ///
        /// [`SubmitOptions::response_bytes_max`]: crate::SubmitOptions::response_bytes_max
        limit: u32,
    },
    /// The cache's mode does not have what was asked for. Nothing was changed.
    #[error("{what} is not to be had in a cache of mode {mode:?}")]
    Unsupported {
        /// What was asked for.
        what: &'static str,
        /// The cache's mode.
        mode: CacheMode,
    },
    /// The cache is not open here, or no more. Nothing was changed.
    #[error("cache is closed")]
    Closed,
    /// As many operations are under way as a member may have. Nothing was changed.
    #[error("{0} operations are under way already")]
    Busy(u64),
}

impl OperationError {
    /// A member has no room.
    pub(crate) fn full(member: &Address, Full { limit, needed }: Full) -> Self {
        Self::Full { member: member.clone().into(), limit, needed }
    }
}

impl NamesMembers for OperationError {
    fn each_member(&mut self, name: &mut dyn FnMut(&mut Member)) {
        match self {
            Self::Degraded { away, .. } => away.iter_mut().for_each(name),
            Self::Full { member, .. }
            | Self::NoMemory { member, .. }
            | Self::NotStored { member, .. }
            | Self::StoreFails { member, .. }
            | Self::NotLoaded { member, .. } => name(member),
            Self::TimedOut(_)
            | Self::Uncertain
            | Self::TooLarge { .. }
            | Self::LargeResponse { .. }
            | Self::Unsupported { .. }
            | Self::Closed
            | Self::Busy(_) => {}
        }
    }
}

fn listed(members: &[Member]) -> String {
    members.iter().map(Member::to_string).collect::<Vec<_>>().join(", ")
}
