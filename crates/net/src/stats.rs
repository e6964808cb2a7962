//! What an edge has done, in numbers.

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
    /// Packets dropped: a full queue, a failed connection.
    pub dropped: u64,
    /// Our own datagrams, which the group gave back. None where the system filters them: Linux has them among the
    /// socket's `drops` and in `InErrors` then.
    pub own: u64,
    /// Connections opened by us.
    pub connected: u64,
    /// Connections opened by peers.
    pub accepted: u64,
    /// Connections of peers turned away, because ours won.
    pub rejected: u64,
    /// Connections that could not be opened.
    pub failed: u64,
    /// Connections ended for being idle.
    pub reaped: u64,
}
