/// Counters of an edge.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct EdgeStats {
    /// Packets received.
    pub packets_in: u64,
    /// Packets sent, once per destination.
    pub packets_out: u64,
    /// Bytes received, with lengths and set-up.
    pub bytes_in: u64,
    /// Bytes written.
    pub bytes_out: u64,
    /// System calls that read.
    pub reads: u64,
    /// System calls that wrote.
    pub writes: u64,
    /// Packets dropped: full queue or failed connection.
    pub dropped: u64,
    /// Own datagrams that the group returned; none if the system filters them: Linux then counts them in the socket's `drops` and
    /// in `InErrors`.
    pub own: u64,
    /// Connections opened by this member.
    pub connected: u64,
    /// Connections opened by peers.
    pub accepted: u64,
    /// Peers' connections refused, because this member's won.
    pub rejected: u64,
    /// Connections not opened.
    pub failed: u64,
    /// Idle connections closed.
    pub reaped: u64,
}
