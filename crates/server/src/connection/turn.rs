//! The time for which a connection starts requests before other connections run.

use std::time::{Duration, Instant};

/// CPU time of a turn: short compared with a network round trip, long compared with a task switch (about 1 us).
pub(crate) const TURN_TIME: Duration = Duration::from_micros(200);

/// A look at the clock costs about 25 ns, the shortest requests about 1 us.
const REQUESTS_BETWEEN_LOOKS: u32 = 8;

#[derive(Default)]
pub(crate) struct Turn {
    requests: u32,
    pub(crate) has_ended: bool,
}

impl Turn {
    pub(crate) fn is_over(&mut self, began: Instant) -> bool {
        self.requests += 1;
        self.has_ended = self.requests.is_multiple_of(REQUESTS_BETWEEN_LOOKS) && began.elapsed() >= TURN_TIME;
        self.has_ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turn_ends_at_the_first_clock_read_after_its_time() {
        let looks = |began: Instant| {
            let mut turn = Turn::default();
            [(); 2 * REQUESTS_BETWEEN_LOOKS as usize].map(|()| turn.is_over(began))
        };
        let mut expected = [false; 2 * REQUESTS_BETWEEN_LOOKS as usize];
        // A beginning in the future has not used any time.
        assert_eq!(looks(Instant::now() + Duration::from_secs(3_600)), expected);
        expected[REQUESTS_BETWEEN_LOOKS as usize - 1] = true;
        expected[2 * REQUESTS_BETWEEN_LOOKS as usize - 1] = true;
        assert_eq!(looks(Instant::now() - TURN_TIME), expected);
    }
}
