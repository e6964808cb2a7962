//! The bound of TLS handshakes in a second.

use std::time::Duration;

use consort_group::Time;

/// Handshakes that programs may cause in a second by connecting to the server of a key exchange; further connections are closed,
/// and members try again when the message with the key's version is repeated. Each costs the driver about a millisecond with an
/// RSA key of 2,048 bits.
const HANDSHAKES_PER_SECOND_MAX: u32 = 500;

pub(super) struct HandshakesInSecond {
    since: Time,
    begun: u32,
    /// It is [`HANDSHAKES_PER_SECOND_MAX`] except in tests.
    most: u32,
}

impl Default for HandshakesInSecond {
    fn default() -> Self {
        Self::with_most(HANDSHAKES_PER_SECOND_MAX)
    }
}

impl HandshakesInSecond {
    pub(super) const fn with_most(most: u32) -> Self {
        Self { since: Time::ZERO, begun: 0, most }
    }

    /// Counts a handshake. Returns false if it must not begin.
    pub(super) fn begin(&mut self, now: Time) -> bool {
        if now.since(self.since) >= Duration::from_secs(1) {
            (self.since, self.begun) = (now, 0);
        }
        let has_room = self.begun < self.most;
        self.begun += u32::from(has_room);
        has_room
    }
}
