//! Limits of fork channels.

/// The most fork channels of a member.
pub const FORK_CHANNELS_MAX: usize = 1_024;

/// The most bytes of the id of a fork stack or fork channel.
pub const FORK_ID_BYTES_MAX: usize = 1_024;
