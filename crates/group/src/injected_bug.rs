//! Bugs that tests inject to prove that the checkers find them (feature `injected-bugs`).

/// A protocol bug.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum InjectedBug {
    /// UNICAST3 loses the acknowledgements that the timer sends.
    UnicastAckLost,
    /// UNICAST3 and UNICAST4 open connections one message too far.
    UnicastWindowOffByOne,
    /// UNICAST3 and UNICAST4 count a new connection's message for the old one.
    UnicastConnectionIgnored,
    /// UNICAST3 and UNICAST4 purge all sent messages on an ack.
    UnicastEarlyPurge,
    /// NAKACK2 and NAKACK4 request all but the last missing message.
    GapOffByOne,
    /// NAKACK2 and NAKACK4 deliver messages twice.
    DuplicateDelivered,
    /// NAKACK2 and NAKACK4 resend the next message under the requested number.
    RetransmitWrongSeqno,
    /// NAKACK2 and NAKACK4 forget the delivered seqnos of departed members.
    DepartedForgotten,
    /// STABLE takes the highest of the members' seqnos.
    StableEarlyPurge,
    /// A merge digest is one message too high.
    MergeDigestWrong,
    /// A merge leader does not install the view in its own subgroup.
    MergeLeaderSkipped,
    /// Delta views go out without a full view before, and apply to any view.
    StaleDeltaView,
    /// A view that is not newer is installed.
    OldViewInstalled,
    /// A join digest is one message too high.
    JoinDigestWrong,
    /// Views are not acknowledged.
    ViewAckNotSent,
    /// A leaving coordinator omits other leavers, and leavers request once.
    LeaverNotPassedOn,
    /// MFC waits for departed members' credits.
    CreditForgotten,
    /// UFC and MFC count members' messages only.
    NonMembersNotCounted,
    /// A credit request is granted before the bytes are consumed.
    CreditsOnRequest,
    /// FD_ALL3 never withdraws a suspicion.
    SuspicionNotWithdrawn,
    /// FD_SOCK2 takes the reset of a connection for the end of its peer.
    ResetForEnd,
    /// FD_SOCK2 takes a connection that ended for the proof of a crash, and probes no port.
    ClosedIsProof,
    /// SEQUENCER's members broadcast themselves.
    CoordinatorBypassed,
    /// SEQUENCER's coordinator serves senders outside its view.
    NonMembersServed,
    /// On a change of coordinator, SEQUENCER drops outstanding messages.
    OutstandingDropped,
    /// On a change of coordinator, SEQUENCER delivers outstanding messages locally only.
    OutstandingLoopedBack,
    /// SEQUENCER forgets departed members' delivered messages.
    OrderedForgotten,
    /// FRAG2 and FRAG4 swap fragments.
    FragmentsSwapped,
    /// SSL_KEY_EXCHANGE serves no keys any more as soon as this member is not coordinator.
    KeyServerClosed,
    /// RELAY2 or RELAY3 picks a random site master for each message.
    RandomSiteMaster,
}

impl InjectedBug {
    /// All bugs of clusters without sites.
    pub const ALL: [Self; 29] = [
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
        Self::ResetForEnd,
        Self::ClosedIsProof,
        Self::CoordinatorBypassed,
        Self::NonMembersServed,
        Self::OutstandingDropped,
        Self::OutstandingLoopedBack,
        Self::OrderedForgotten,
        Self::FragmentsSwapped,
        Self::KeyServerClosed,
    ];
}
