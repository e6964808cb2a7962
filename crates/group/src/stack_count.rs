//! What layers count for those who watch a member from outside: typed, so that metrics do not depend on probe's texts.

/// A number that a layer keeps. Unless it says otherwise it only grows while the member lives.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum StackCount {
    /// Times that a failure detector suspected a member.
    Suspicions,
    /// Views in which parts of the group found each other again.
    Merges,
    /// Requests for missing messages that this member sent.
    RetransmissionRequestsSent,
    /// Requests for missing messages that other members sent.
    RetransmissionRequestsReceived,
    /// Messages that this member sent again because another member asked for them.
    RetransmittedMessages,
    /// Times that messages began to wait for credits.
    CreditBlockings,
    /// Bytes of messages that wait for credits now.
    CreditWaitingBytes,
    /// Bytes that receivers have not given credits back for, summed over receivers, now.
    CreditOutstandingBytes,
    /// Requests for credits that this member sent.
    CreditRequestsSent,
    /// Requests for credits that other members sent.
    CreditRequestsReceived,
}

impl StackCount {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Suspicions,
        Self::Merges,
        Self::RetransmissionRequestsSent,
        Self::RetransmissionRequestsReceived,
        Self::RetransmittedMessages,
        Self::CreditBlockings,
        Self::CreditWaitingBytes,
        Self::CreditOutstandingBytes,
        Self::CreditRequestsSent,
        Self::CreditRequestsReceived,
    ];
}
