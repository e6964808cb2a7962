//! Bugs that members can be given on purpose, to prove that checkers find them. Without the feature `planted` nobody has
//! one, and the compiler leaves them out.

/// A bug.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[cfg_attr(not(feature = "planted"), allow(dead_code, unreachable_pub))]
pub enum Planted {
    /// Backups acknowledge what they have not applied while they receive the segment.
    BackupNotApplied,
    /// Backups take commands of older epochs.
    OldEpochTaken,
    /// A new primary orders writes before it has the other owners' records.
    HandoverNotAwaited,
    /// Records are dropped with every topology.
    RecordsDropped,
    /// A write that is sent again is carried out again.
    RepeatedNotRecognised,
    /// A write that changed nothing is carried out again when it is sent again.
    AnswerForgotten,
    /// Calls of older reigns are carried out.
    LateCallTaken,
    /// Phases begin before all have confirmed the last.
    PhaseTooEarly,
    /// Who joins after a change of coordinators is not waited for.
    JoinerNotAwaited,
    /// Who pulls a segment is given no records of what is unfinished in it.
    RecordsNotGiven,
    /// A chunk overwrites newer entries.
    ChunkOverwrites,
    /// Removals are not remembered while the segment is received.
    RemovalForgotten,
    /// Entries are read where they are no longer written.
    ReadAfterSurrender,
    /// A minority accepts writes.
    MinorityWrites,
    /// At a merge, the side goes on that has been degraded the longest.
    WrongHistory,
    /// At a merge of sides that have all gone on, what one of them has is given up.
    LongestWins,
    /// Whatever a cache's merge policy is, the preferred side wins.
    PolicyIgnored,
    /// What a side had seen that was merged is not remembered. Sides have to part twice, which a test of nodes brings about
    /// (`crates/grid/tests/it/merging.rs`), also for the next.
    SeenForgotten,
    /// What is taken over of a side that is merged counts as a write of those who take it over.
    CopiedAnew,
    /// Nobody succeeds callers that have vanished.
    CallersNotAdopted,
    /// What a caller gave up when it closed its cache is finished to whoever hears of that. It has to go on with another cache,
    /// which a test of nodes brings about (`crates/grid/tests/it/records.rs`).
    GivenUpIsFinished,
    /// Nobody asks for what is left of callers that have vanished.
    SettledNotAsked,
    /// Callers that are away are succeeded as if they had vanished.
    AwayAdopted,
    /// Acknowledgements of two epochs are added up.
    AcksAddedUp,
    /// A transfer ends one chunk early.
    LastChunkLost,
    /// The absent count for a majority.
    AbsentCounted,
    /// A coordinator that has lost members does not ask those that are left.
    LossNotConfirmed,
    /// Members are left out before all who are there have installed that they will be.
    LeftOutAtOnce,
    /// Topologies are installed whatever was promised to other coordinators.
    PromiseForgotten,
    /// Whose votes are needed changes in one step.
    QuorumAtOnce,
    /// Members acknowledge what others have written, and keep what they have of it.
    InvalidationIgnored,
    /// A walk that begins a segment again with another owner forgets what has come of it.
    GivenForgotten,
    /// Who is asked by a walk for a segment that it does not have says that nothing is in it.
    RefusalIsEmpty,
    /// Walks pass over segments whose owners are away.
    AwayPassedOver,
    /// Listeners are told again of what is sent again.
    ToldAgain,
    /// A member that was left out tells its listeners of no gap.
    GapForgotten,
    /// Listeners are told of no gap when owners are lost whose changes of owners were not over. Several have to be lost within
    /// moments, which a test of nodes brings about (`crates/grid/tests/it/listeners.rs`).
    UndoneUntold,
    /// What was told is remembered when the last listener ends, though versions pass unnoted from then on. Only a local cache
    /// keeps its topology meanwhile.
    ToldKept,
    /// Entries of a chunk are as young as if they had been written when it comes.
    AgeForgotten,
    /// Members acknowledge that everything is cleared, and keep what they have.
    ClearIgnored,
    /// What has expired is taken out by the primary alone, and nobody is told.
    ExpiredUntold,
    /// An owner that is asked whether it has used an entry says that it has not.
    UseDenied,
    /// An entry of which somebody says when it was used is used now.
    UseRenewed,
    /// Who gives a segment's entries no more keeps to itself when it gave them last.
    UsesKept,
    /// A listener is ready before all primaries have said that they tell its member.
    MarksNotAwaited,
    /// Writes are acknowledged before they are stored.
    StoreNotAwaited,
    /// A value that memory has no room for is given up while the store has not answered whether it takes it.
    WritingForgotten,
    /// A write that a store has refused is finished for its caller, whoever has it.
    RefusedIsFinished,
    /// With passivation, a value is given up when it is stored, whoever may need it.
    HeldForgotten,
    /// Topologies are confirmed before they are remembered. Somebody has to come back first whose store was slow, which a test
    /// of nodes brings about (`crates/grid/tests/it/restart.rs`).
    NoteNotAwaited,
    /// A cluster that begins again counts its ballots anew.
    BallotsForgotten,
    /// What is in the store of a segment that is given up stays there.
    StoreKept,
}

impl Planted {
    /// Those about votes: views have to overlap within moments, which tests of nodes bring about
    /// (`crates/grid/tests/it/votes.rs`).
    #[cfg(feature = "planted")]
    pub const VOTES: [Self; 4] =
        [Self::LeftOutAtOnce, Self::PromiseForgotten, Self::QuorumAtOnce, Self::LossNotConfirmed];

    /// Those that tests of nodes find with a scenario of their own (`crates/grid/tests/it/scenarios.rs`).
    #[cfg(feature = "planted")]
    pub const SCENARIOS: [Self; 7] = [
        Self::RefusedIsFinished,
        Self::WritingForgotten,
        Self::RecordsNotGiven,
        Self::GivenUpIsFinished,
        Self::UndoneUntold,
        Self::SeenForgotten,
        Self::CopiedAnew,
    ];

    /// Those that the simulator finds where clients do what they do in some runs only.
    #[cfg(feature = "planted")]
    pub const HABITS: [Self; 3] = [Self::AgeForgotten, Self::ExpiredUntold, Self::ClearIgnored];

    /// The same where clients put what lives as long as it is used.
    #[cfg(feature = "planted")]
    pub const IDLE: [Self; 3] = [Self::UseDenied, Self::UseRenewed, Self::UsesKept];

    /// Those that the simulator finds where members have stores.
    #[cfg(feature = "planted")]
    pub const STORES: [Self; 4] =
        [Self::StoreNotAwaited, Self::HeldForgotten, Self::BallotsForgotten, Self::StoreKept];

    /// Those that the simulator finds in local caches.
    #[cfg(feature = "planted")]
    pub const LOCAL: [Self; 1] = [Self::ToldKept];

    /// All others, which the simulator finds with whole stacks.
    #[cfg(feature = "planted")]
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
