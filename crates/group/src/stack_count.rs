//! The layers' counts for metrics, typed so that metrics do not depend on probe's texts.

/// A layer's number. It grows unless its description says otherwise.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum StackCount {
    /// Suspicions of members.
    Suspicions,
    /// Suspects proven to have crashed, which needed no further verification.
    ProvenCrashes,
    /// Merge views installed.
    Merges,
    /// Requests for missing messages sent.
    RetransmissionRequestsSent,
    /// Requests for missing messages received.
    RetransmissionRequestsReceived,
    /// Messages retransmitted on request.
    RetransmittedMessages,
    /// Messages whose sender lacks the key or may not join.
    RejectedMessages,
    /// How often messages waited for credits.
    CreditBlockings,
    /// Bytes that now wait for credits.
    CreditWaitingBytes,
    /// Bytes not yet returned as credits, over all receivers, now.
    CreditOutstandingBytes,
    /// Credit requests sent.
    CreditRequestsSent,
    /// Credit requests received.
    CreditRequestsReceived,
    /// Routers that are configured (TCPGOSSIP, TUNNEL).
    Routers,
    /// Routers that are connected, now.
    RoutersConnected,
}

impl StackCount {
    /// All counts.
    pub const ALL: [Self; 14] = [
        Self::Suspicions,
        Self::ProvenCrashes,
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
        Self::Routers,
        Self::RoutersConnected,
    ];
}
