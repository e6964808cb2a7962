//! Limits of everything that peers or callers can make grow.

use consort_group::wire::RECONCILED_COUNTERS_MAX;

/// The most bytes of a counter's name.
pub const NAME_BYTES_MAX: usize = 1_024;

/// The most operations of this member that wait for their responses.
pub const PENDING_MAX: usize = 10_000;

/// The most counters of a member, so that all fit one RECONCILE message.
pub(super) const COUNTERS_MAX: usize = RECONCILED_COUNTERS_MAX;

/// The most bytes of all counters, with [`COUNTER_BYTES`] each besides the name.
pub(super) const COUNTERS_BYTES_MAX: usize = 4 * 1024 * 1024;

/// The memory of a counter besides its name.
pub(super) const COUNTER_BYTES: usize = 64;

/// The bytes of responses of one cycle, with [`MESSAGE_BYTES`] each besides the payload, after which further requests are
/// discarded.
pub(super) const RESPONSES_BYTES_MAX: usize = 16 * 1024 * 1024;

/// The memory of a message besides its payload.
pub(super) const MESSAGE_BYTES: usize = 256;

/// The most members that get responses in one cycle, or lack capacity for them; requests of others are discarded.
pub(super) const PEERS_MAX: usize = 4_096;

/// The most responses that are kept for requests that come again; the oldest is dropped for the next one.
pub(super) const RECENT_RESPONSES_MAX: usize = 1_024;
