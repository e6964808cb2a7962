//! Bugs that tests inject to prove that checkers find them. Without the feature `injected-bugs` the compiler
//! removes their code.

/// An injected bug.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[cfg_attr(not(feature = "injected-bugs"), allow(dead_code, unreachable_pub))]
pub enum InjectedBug {
    /// Receiving backups acknowledge unapplied writes.
    BackupNotApplied,
    /// Backups accept commands of older epochs.
    OldEpochTaken,
    /// A new primary orders writes before the handover.
    HandoverNotAwaited,
    /// Every topology drops the records.
    RecordsDropped,
    /// A repeated write is carried out again.
    RepeatedNotRecognised,
    /// A repeated write that changed nothing is carried out again.
    AnswerForgotten,
    /// Calls of older primary terms are carried out.
    LateCallTaken,
    /// Phases begin before all confirmations of the last.
    PhaseTooEarly,
    /// A change of coordinators does not wait for a joining member.
    JoinerNotAwaited,
    /// State transfers omit records of unfinished writes.
    RecordsNotGiven,
    /// A chunk overwrites newer entries.
    ChunkOverwrites,
    /// A receiver of a segment forgets removals.
    RemovalForgotten,
    /// Members that are no longer written are read.
    ReadAfterSurrender,
    /// A minority accepts writes.
    MinorityWrites,
    /// A merge goes on with the longest degraded partition.
    WrongHistory,
    /// A merge of continued partitions discards one's data.
    LongestWins,
    /// The preferred partition always wins.
    PolicyIgnored,
    /// A merged partition's history is forgotten; found with two splits (`crates/grid/tests/it/merging.rs`),
    /// as the next.
    SeenForgotten,
    /// Copied entries count as writes of the copying partition.
    CopiedAnew,
    /// No member completes the writes of gone callers.
    CallersNotAdopted,
    /// Operations given up on closing count as finished; found with a caller that continues in another cache
    /// (`crates/grid/tests/it/records.rs`).
    GivenUpIsFinished,
    /// While owners are not balanced, no member takes over the segments of a leaving one
    /// (`crates/grid/tests/it/rebalancing.rs`).
    SegmentsLeftBehind,
    /// Members that leave hand over their segments although the cluster is about to stop
    /// (`crates/grid/tests/it/cluster_stop.rs`).
    MovedWhileStopping,
    /// No member requests the remaining records of gone callers.
    SettledNotAsked,
    /// Unreachable callers count as gone.
    AwayAdopted,
    /// Acknowledgements of two epochs are added up.
    AcksAddedUp,
    /// A transfer ends one chunk early.
    LastChunkLost,
    /// Absent members count towards a majority.
    AbsentCounted,
    /// A coordinator requests no confirmation after a loss.
    LossNotConfirmed,
    /// Members are removed before the announcement is installed everywhere.
    LeftOutAtOnce,
    /// Topologies are installed despite another promise.
    PromiseForgotten,
    /// The quorum changes in one step.
    QuorumAtOnce,
    /// Acknowledged invalidations keep entries.
    InvalidationIgnored,
    /// A restarted segment forgets returned items.
    GivenForgotten,
    /// A member without the segment answers as for an empty one.
    RefusalIsEmpty,
    /// Iterations skip segments of unreachable owners.
    AwayPassedOver,
    /// Repeated commands repeat events.
    ToldAgain,
    /// A removed member delivers no gap.
    GapForgotten,
    /// Listeners get no gap after a loss of owners during a change of owners; found with several losses
    /// within moments (`crates/grid/tests/it/listeners.rs`).
    UndoneUntold,
    /// The record of delivered events outlives the last listener; found in local caches, which keep their
    /// topology.
    ToldKept,
    /// Entries of a chunk arrive with age zero.
    AgeForgotten,
    /// Acknowledged clears keep entries.
    ClearIgnored,
    /// Only the primary removes expired entries, without an event.
    ExpiredUntold,
    /// An owner denies the use of an entry.
    UseDenied,
    /// A reported last use counts as now.
    UseRenewed,
    /// A former read owner does not send last uses.
    UsesKept,
    /// A listener is ready before all primaries deliver events.
    MarksNotAwaited,
    /// Writes are acknowledged before they are stored.
    StoreNotAwaited,
    /// An evicted value is dropped before the store confirms it.
    WritingForgotten,
    /// A refused write counts as finished, although owners have it.
    RefusedIsFinished,
    /// With passivation, a needed value is dropped once it is stored.
    HeldForgotten,
    /// Topologies are confirmed before they are stored; found if a member with a slow store returns first
    /// (`crates/grid/tests/it/restart.rs`).
    NoteNotAwaited,
    /// A restarted cluster begins its ballot numbers anew.
    BallotsForgotten,
    /// Dropped segments stay in the store.
    StoreKept,
    /// Indexes keep the fields of replaced values.
    ReplacedNotIndexed,
}

impl InjectedBug {
    /// For views that overlap within moments (`crates/grid/tests/it/split_brain.rs`).
    #[cfg(feature = "injected-bugs")]
    pub const VOTES: [Self; 4] =
        [Self::LeftOutAtOnce, Self::PromiseForgotten, Self::QuorumAtOnce, Self::LossNotConfirmed];

    /// Found by a scenario (`crates/grid/tests/it/scenarios.rs`).
    #[cfg(feature = "injected-bugs")]
    pub const SCENARIOS: [Self; 9] = [
        Self::RefusedIsFinished,
        Self::WritingForgotten,
        Self::RecordsNotGiven,
        Self::GivenUpIsFinished,
        Self::UndoneUntold,
        Self::SeenForgotten,
        Self::CopiedAnew,
        Self::SegmentsLeftBehind,
        Self::MovedWhileStopping,
    ];

    /// Found with a certain mix of operations.
    #[cfg(feature = "injected-bugs")]
    pub const HABITS: [Self; 3] = [Self::AgeForgotten, Self::ExpiredUntold, Self::ClearIgnored];

    /// Found with max-idle times.
    #[cfg(feature = "injected-bugs")]
    pub const IDLE: [Self; 3] = [Self::UseDenied, Self::UseRenewed, Self::UsesKept];

    /// Found with stores.
    #[cfg(feature = "injected-bugs")]
    pub const STORES: [Self; 4] =
        [Self::StoreNotAwaited, Self::HeldForgotten, Self::BallotsForgotten, Self::StoreKept];

    /// Found in local caches.
    #[cfg(feature = "injected-bugs")]
    pub const LOCAL: [Self; 1] = [Self::ToldKept];

    /// Found in indexes.
    #[cfg(feature = "injected-bugs")]
    pub const INDEXES: [Self; 1] = [Self::ReplacedNotIndexed];

    /// All other bugs, found with whole stacks.
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
