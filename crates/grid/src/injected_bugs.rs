//! Bugs that tests inject into members on purpose, to prove that checkers find them. Without the feature `injected-bugs` no
//! member has one, and the compiler removes their code.

/// An injected bug.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[cfg_attr(not(feature = "injected-bugs"), allow(dead_code, unreachable_pub))]
pub enum InjectedBug {
    /// Backups acknowledge writes that they have not applied while they receive the segment.
    BackupNotApplied,
    /// Backups accept commands of older epochs.
    OldEpochTaken,
    /// A new primary orders writes before it has the other owners' records.
    HandoverNotAwaited,
    /// Records are dropped with every topology.
    RecordsDropped,
    /// A repeated write is carried out again.
    RepeatedNotRecognised,
    /// A write that changed nothing is carried out again when it is repeated.
    AnswerForgotten,
    /// Calls of older primary terms are carried out.
    LateCallTaken,
    /// Phases begin before all members have confirmed the last.
    PhaseTooEarly,
    /// The coordinator does not wait for a member that joins after a change of coordinators.
    JoinerNotAwaited,
    /// A member that pulls a segment gets no records of the segment's unfinished writes.
    RecordsNotGiven,
    /// A chunk overwrites newer entries.
    ChunkOverwrites,
    /// Removals are not remembered while the segment is received.
    RemovalForgotten,
    /// Entries are read at members that are no longer written.
    ReadAfterSurrender,
    /// A minority accepts writes.
    MinorityWrites,
    /// A merge goes on with the partition that has been degraded the longest.
    WrongHistory,
    /// A merge of partitions that have all gone on discards the data of one of them.
    LongestWins,
    /// The preferred partition wins with every merge policy.
    PolicyIgnored,
    /// The history of a merged partition is not remembered. Partitions have to split twice, which a test of nodes
    /// brings about (`crates/grid/tests/it/merging.rs`), also for the next.
    SeenForgotten,
    /// Entries copied from a merged partition count as writes of the partition that copies them.
    CopiedAnew,
    /// No member completes the writes of callers that have vanished.
    CallersNotAdopted,
    /// Operations that a caller gave up when it closed its cache count as finished for every member that learns of
    /// them. The caller has to go on with another cache, which a test of nodes brings about
    /// (`crates/grid/tests/it/records.rs`).
    GivenUpIsFinished,
    /// No member requests the remaining records of callers that have vanished.
    SettledNotAsked,
    /// Callers that are unreachable are treated as if they had vanished.
    AwayAdopted,
    /// Acknowledgements of two epochs are added up.
    AcksAddedUp,
    /// A transfer ends one chunk early.
    LastChunkLost,
    /// Absent members count towards a majority.
    AbsentCounted,
    /// A coordinator that has lost members does not request the confirmation of the remaining members.
    LossNotConfirmed,
    /// Members are removed before all reachable members have installed the announcement of their removal.
    LeftOutAtOnce,
    /// Topologies are installed in spite of a promise to another coordinator.
    PromiseForgotten,
    /// The quorum changes in one step.
    QuorumAtOnce,
    /// Members acknowledge writes of other members, and keep their own entries of these keys.
    InvalidationIgnored,
    /// An iteration that restarts a segment with another owner forgets the items already returned.
    GivenForgotten,
    /// A member that an iteration asks for a segment that it does not have responds that the segment is empty.
    RefusalIsEmpty,
    /// Iterations skip segments whose owners are unreachable.
    AwayPassedOver,
    /// Listeners get an event again when its command is repeated.
    ToldAgain,
    /// A member that was removed delivers no gap to its listeners.
    GapForgotten,
    /// Listeners get no gap when owners are lost whose changes of owners were not complete. Several have to be lost
    /// within moments, which a test of nodes brings about (`crates/grid/tests/it/listeners.rs`).
    UndoneUntold,
    /// The record of delivered events is kept when the last listener ends, though later versions are not recorded.
    /// Only a local cache keeps its topology meanwhile.
    ToldKept,
    /// Entries of a chunk have the age zero when the chunk arrives.
    AgeForgotten,
    /// Members acknowledge a clear, and keep their entries.
    ClearIgnored,
    /// Only the primary removes expired entries, and no member gets an event.
    ExpiredUntold,
    /// An owner responds that it has not used an entry that it has used.
    UseDenied,
    /// An entry whose last use another member reports counts as used now.
    UseRenewed,
    /// A member that is no longer a read owner of a segment does not send the entries' last uses.
    UsesKept,
    /// A listener is ready before all primaries have confirmed that they deliver events to its member.
    MarksNotAwaited,
    /// Writes are acknowledged before they are stored.
    StoreNotAwaited,
    /// A value that memory has no room for is dropped before the store has confirmed that it accepts the value.
    WritingForgotten,
    /// A write that a store has refused counts as finished for its caller, although owners have it.
    RefusedIsFinished,
    /// With passivation, a value is dropped once it is stored, although an operation may need it.
    HeldForgotten,
    /// Topologies are confirmed before they are stored. A member whose store was slow has to return first, which a
    /// test of nodes brings about (`crates/grid/tests/it/restart.rs`).
    NoteNotAwaited,
    /// A cluster that restarts begins its ballot numbers anew.
    BallotsForgotten,
    /// The entries of a dropped segment stay in the store.
    StoreKept,
}

impl InjectedBug {
    /// Bugs about votes: views have to overlap within moments, which tests of nodes bring about
    /// (`crates/grid/tests/it/split_brain.rs`).
    #[cfg(feature = "injected-bugs")]
    pub const VOTES: [Self; 4] =
        [Self::LeftOutAtOnce, Self::PromiseForgotten, Self::QuorumAtOnce, Self::LossNotConfirmed];

    /// Bugs that tests of nodes find with a scenario of their own (`crates/grid/tests/it/scenarios.rs`).
    #[cfg(feature = "injected-bugs")]
    pub const SCENARIOS: [Self; 7] = [
        Self::RefusedIsFinished,
        Self::WritingForgotten,
        Self::RecordsNotGiven,
        Self::GivenUpIsFinished,
        Self::UndoneUntold,
        Self::SeenForgotten,
        Self::CopiedAnew,
    ];

    /// Bugs that the simulator finds only in runs with a certain mix of operations.
    #[cfg(feature = "injected-bugs")]
    pub const HABITS: [Self; 3] = [Self::AgeForgotten, Self::ExpiredUntold, Self::ClearIgnored];

    /// Bugs that the simulator finds only where clients put entries with a max-idle time.
    #[cfg(feature = "injected-bugs")]
    pub const IDLE: [Self; 3] = [Self::UseDenied, Self::UseRenewed, Self::UsesKept];

    /// Bugs that the simulator finds where members have stores.
    #[cfg(feature = "injected-bugs")]
    pub const STORES: [Self; 4] =
        [Self::StoreNotAwaited, Self::HeldForgotten, Self::BallotsForgotten, Self::StoreKept];

    /// Bugs that the simulator finds in local caches.
    #[cfg(feature = "injected-bugs")]
    pub const LOCAL: [Self; 1] = [Self::ToldKept];

    /// All other bugs, which the simulator finds with whole stacks.
    #[cfg(feature = "injected-bugs")]
    pub const ALL: [Self; 29] = [
        Self::BackupNotApplied,
        Self::OldEpochTaken,
        Self::HandoverNotAwaited,
        Self::RecordsDropped,
        Self::RepeatedNotRecognised,
        Self::AnswerForgotten,
        Self::LateCallTaken,
        Self::PhaseTooEarly,
        Self::JoinerNotAwaited,
        Self::ChunkOverwrites,
        Self::RemovalForgotten,
        Self::ReadAfterSurrender,
        Self::MinorityWrites,
        Self::WrongHistory,
        Self::LongestWins,
        Self::PolicyIgnored,
        Self::CallersNotAdopted,
        Self::SettledNotAsked,
        Self::AwayAdopted,
        Self::AcksAddedUp,
        Self::LastChunkLost,
        Self::AbsentCounted,
        Self::InvalidationIgnored,
        Self::GivenForgotten,
        Self::RefusalIsEmpty,
        Self::AwayPassedOver,
        Self::ToldAgain,
        Self::GapForgotten,
        Self::MarksNotAwaited,
    ];
}
