//! Counters of an edge.

/// Counters of an edge, since it was opened.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct EdgeStats {
    /// Packets received.
    pub packets_in: u64,
    /// Packets handed to the edge, counted once per destination.
    pub packets_out: u64,
    /// Bytes received, with lengths and set-up bytes.
    pub bytes_in: u64,
    /// Bytes written.
    pub bytes_out: u64,
    /// System calls that read something.
    pub reads: u64,
    /// System calls that wrote something.
    pub writes: u64,
    /// Packets dropped because of a full queue or a failed connection.
    pub dropped: u64,
    /// This member's own datagrams that the group returned. None if the system filters them: Linux counts those in
    /// the socket's `drops` and in `InErrors`.
    pub own: u64,
    /// Connections opened by this member.
    pub connected: u64,
    /// Connections opened by peers.
    pub accepted: u64,
    /// Connections of peers that were refused, because this member's won.
    pub rejected: u64,
    /// Connections that could not be opened.
    pub failed: u64,
    /// Connections closed because they were idle.
    pub reaped: u64,
}
