//! Bugs that a test injects into a stack to prove that the checkers find them. Exists only with the feature
//! `injected-bugs`.

/// A protocol bug.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum InjectedBug {
    /// UNICAST3 loses the acknowledgements that the timer sends.
    UnicastAckLost,
    /// UNICAST3 and UNICAST4 open connections one message too far.
    UnicastWindowOffByOne,
    /// UNICAST3 and UNICAST4 take a message of a new connection for one of the old connection.
    UnicastConnectionIgnored,
    /// UNICAST3 and UNICAST4 purge all sent messages on any acknowledgement.
    UnicastEarlyPurge,
    /// NAKACK2 and NAKACK4 omit the last missing message from requests.
    GapOffByOne,
    /// NAKACK2 and NAKACK4 deliver messages a second time.
    DuplicateDelivered,
    /// NAKACK2 and NAKACK4 resend the message after the requested one, under the requested number.
    RetransmitWrongSeqno,
    /// NAKACK2 and NAKACK4 forget the last delivered seqnos of members removed from the view.
    DepartedForgotten,
    /// STABLE takes the highest instead of the lowest of the members' seqnos.
    StableEarlyPurge,
    /// A merge digest says that every member has sent one message more.
    MergeDigestWrong,
    /// The leader of a merge does not install the merged view in its own subgroup.
    MergeLeaderSkipped,
    /// Coordinators send delta views without a full view before them, and members apply them to any view.
    StaleDeltaView,
    /// A member installs a view that is not newer.
    OldViewInstalled,
    /// A join digest says that every member has sent one message more.
    JoinDigestWrong,
    /// Members do not acknowledge views.
    ViewAckNotSent,
    /// A coordinator that leaves does not pass on the other leavers, and leavers send one request only.
    LeaverNotPassedOn,
    /// MFC waits for credits of members that have left.
    CreditForgotten,
    /// UFC and MFC count messages of members only.
    NonMembersNotCounted,
    /// A credit request is granted even if the application has not consumed the bytes.
    CreditsOnRequest,
    /// FD_ALL3 never withdraws a suspicion.
    SuspicionNotWithdrawn,
    /// SEQUENCER's members broadcast their messages themselves.
    CoordinatorBypassed,
    /// SEQUENCER's coordinator broadcasts for senders that are not in its view.
    NonMembersServed,
    /// When the coordinator changes, SEQUENCER's members drop the messages that have not come back.
    OutstandingDropped,
    /// When the coordinator changes, SEQUENCER's members deliver the messages that have not come back to
    /// themselves only.
    OutstandingLoopedBack,
    /// SEQUENCER forgets which messages of departed members it has delivered.
    OrderedForgotten,
    /// FRAG2 and FRAG4 reassemble fragments in the wrong order.
    FragmentsSwapped,
}

impl InjectedBug {
    /// All bugs.
    pub const ALL: [Self; 26] = [
        Self::UnicastAckLost,
        Self::UnicastWindowOffByOne,
        Self::UnicastConnectionIgnored,
        Self::UnicastEarlyPurge,
        Self::GapOffByOne,
        Self::DuplicateDelivered,
        Self::RetransmitWrongSeqno,
        Self::DepartedForgotten,
        Self::StableEarlyPurge,
        Self::MergeDigestWrong,
        Self::MergeLeaderSkipped,
        Self::StaleDeltaView,
        Self::OldViewInstalled,
        Self::JoinDigestWrong,
        Self::ViewAckNotSent,
        Self::LeaverNotPassedOn,
        Self::CreditForgotten,
        Self::NonMembersNotCounted,
        Self::CreditsOnRequest,
        Self::SuspicionNotWithdrawn,
        Self::CoordinatorBypassed,
        Self::NonMembersServed,
        Self::OutstandingDropped,
        Self::OutstandingLoopedBack,
        Self::OrderedForgotten,
        Self::FragmentsSwapped,
    ];
}
