//! Limits of sites.

/// The most bytes of messages that wait for a bridge. The credits of their senders bound them, so that only more members than
/// credits allow reach it. Further messages are dropped and counted.
pub const OUTBOUND_BYTES_MAX: u64 = 256 << 20;

/// The bytes of waiting messages at which sends of the site master's own application wait.
pub const OUTBOUND_WAIT_BYTES: u64 = 4 << 20;

/// The most events of sites that wait for the listener. Further ones are dropped and counted.
pub const LISTENER_EVENTS_MAX: usize = 1_000;

/// The most bytes of names and addresses in the events that wait for the listener. Further ones are dropped and counted.
pub const LISTENER_BYTES_MAX: usize = 1 << 20;
