//! Exponential backoff with jitter between attempts to connect.

use std::time::Duration;

use crate::limits::{PAUSE_FIRST, PAUSE_MAX};

pub(crate) struct Backoff {
    next: Duration,
    random: u64,
}

impl Backoff {
    pub(crate) const fn new(seed: u64) -> Self {
        Self { next: PAUSE_FIRST, random: seed | 1 }
    }

    /// Returns a delay between half of the current step and all of it, so that clients do not reconnect together.
    pub(crate) fn next(&mut self) -> Duration {
        let whole = self.next;
        self.next = (whole * 2).min(PAUSE_MAX);
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        whole / 2 + whole / 2 * (self.random % 1_000) as u32 / 1_000
    }

    pub(crate) const fn reset(&mut self) {
        self.next = PAUSE_FIRST;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_bound_and_begin_anew() {
        let mut backoff = Backoff::new(7);
        let mut whole = PAUSE_FIRST;
        for _ in 0..20 {
            let pause = backoff.next();
            assert!(whole / 2 <= pause && pause <= whole, "{pause:?} of {whole:?}");
            whole = (whole * 2).min(PAUSE_MAX);
        }
        assert_eq!(whole, PAUSE_MAX);
        backoff.reset();
        assert!(backoff.next() <= PAUSE_FIRST);
    }

    #[test]
    fn clients_with_different_seeds_wait_differently() {
        let backoff = |seed| {
            let mut backoff = Backoff::new(seed);
            [(); 4].map(|()| backoff.next())
        };
        assert_ne!(backoff(1), backoff(2));
        assert_eq!(backoff(3), backoff(3));
    }
}
