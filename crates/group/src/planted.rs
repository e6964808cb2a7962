//! Bugs that a stack can be given on purpose, to prove that checkers find them. Exists with the feature `planted` only.

/// A protocol bug.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Planted {
    /// UNICAST3 loses the acknowledgements that the timer sends.
    UnicastAckLost,
    /// UNICAST3 and UNICAST4 open connections one message too far.
    UnicastWindowOffByOne,
    /// UNICAST3 and UNICAST4 take a message of a new connection for one of the old.
    UnicastConnectionIgnored,
    /// UNICAST3 and UNICAST4 forget everything sent with any acknowledgement.
    UnicastEarlyPurge,
    /// NAKACK2 and NAKACK4 leave the last missing message out of requests.
    GapOffByOne,
    /// NAKACK2 and NAKACK4 deliver what they have delivered before.
    DuplicateDelivered,
    /// NAKACK2 and NAKACK4 resend the message after the one that was asked for, under its number.
    RetransmitWrongSeqno,
    /// NAKACK2 and NAKACK4 forget how far they were with members that were left out of a view.
    FormerForgotten,
    /// STABLE takes the highest instead of the lowest of the members' numbers.
    StableEarlyPurge,
    /// Members of merged groups are told that everybody has sent one message more.
    MergeDigestWrong,
    /// The leader of a merge does not bring the merged view to its own group.
    MergeLeaderSkipped,
    /// Coordinators send deltas without a full view before, and they are applied to whatever view there is.
    StaleDeltaView,
    /// A view that is not newer is installed.
    OldViewInstalled,
    /// Joiners are told that everybody has sent one message more.
    JoinDigestWrong,
    /// Members do not confirm views.
    ViewAckNotSent,
    /// A coordinator that leaves forgets who else leaves, and leavers ask only once.
    LeaverNotPassedOn,
    /// MFC waits for credits of members that are gone.
    CreditForgotten,
    /// UFC and MFC count what comes of members only.
    StrangersNotCounted,
    /// Who asks for credits is given them, whatever lies before the application.
    CreditsForAsking,
    /// FD_ALL3 suspects a member for ever.
    SuspicionNotWithdrawn,
    /// SEQUENCER's members broadcast their messages themselves.
    CoordinatorBypassed,
    /// SEQUENCER's coordinator broadcasts for those who are not in its view.
    StrangersHeard,
    /// SEQUENCER's members drop what has not come back when the coordinator changes.
    OutstandingDropped,
    /// SEQUENCER's members give what has not come back when the coordinator changes to nobody but themselves.
    OutstandingKept,
    /// SEQUENCER forgets what it has delivered of members that are gone.
    OrderedForgotten,
    /// FRAG2 and FRAG4 join the pieces of a message in the wrong order.
    PiecesSwapped,
}

impl Planted {
    /// All of them.
    pub const ALL: [Self; 26] = [
        Self::UnicastAckLost,
        Self::UnicastWindowOffByOne,
        Self::UnicastConnectionIgnored,
        Self::UnicastEarlyPurge,
        Self::GapOffByOne,
        Self::DuplicateDelivered,
        Self::RetransmitWrongSeqno,
        Self::FormerForgotten,
        Self::StableEarlyPurge,
        Self::MergeDigestWrong,
        Self::MergeLeaderSkipped,
        Self::StaleDeltaView,
        Self::OldViewInstalled,
        Self::JoinDigestWrong,
        Self::ViewAckNotSent,
        Self::LeaverNotPassedOn,
        Self::CreditForgotten,
        Self::StrangersNotCounted,
        Self::CreditsForAsking,
        Self::SuspicionNotWithdrawn,
        Self::CoordinatorBypassed,
        Self::StrangersHeard,
        Self::OutstandingDropped,
        Self::OutstandingKept,
        Self::OrderedForgotten,
        Self::PiecesSwapped,
    ];
}
