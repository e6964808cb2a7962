//! The layers' counts for metrics. They are typed, so that metrics do not depend on probe's texts.

/// A number that a layer keeps. It grows while the member runs, unless its description says otherwise.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum StackCount {
    /// How often a failure detector suspected a member.
    Suspicions,
    /// Merge views installed.
    Merges,
    /// Requests for missing messages sent by this member.
    RetransmissionRequestsSent,
    /// Requests for missing messages received from other members.
    RetransmissionRequestsReceived,
    /// Messages that this member retransmitted on request.
    RetransmittedMessages,
    /// Messages discarded because their sender lacks the key of the cluster or may not join it.
    RejectedMessages,
    /// How often messages began to wait for credits.
    CreditBlockings,
    /// Bytes of messages that currently wait for credits.
    CreditWaitingBytes,
    /// Bytes for which receivers have not returned credits, currently, summed over receivers.
    CreditOutstandingBytes,
    /// Credit requests sent by this member.
    CreditRequestsSent,
    /// Credit requests received from other members.
    CreditRequestsReceived,
}

impl StackCount {
    /// All counts.
    pub const ALL: [Self; 11] = [
        Self::Suspicions,
        Self::Merges,
        Self::RetransmissionRequestsSent,
        Self::RetransmissionRequestsReceived,
        Self::RetransmittedMessages,
        Self::RejectedMessages,
        Self::CreditBlockings,
        Self::CreditWaitingBytes,
        Self::CreditOutstandingBytes,
        Self::CreditRequestsSent,
        Self::CreditRequestsReceived,
    ];
}
