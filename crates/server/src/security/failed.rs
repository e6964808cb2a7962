//! One line in the log for many logins that have failed, with the addresses from which they came.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often it is told at most that logins have failed: a client that tries passwords does not fill the log.
const TOLD_EVERY: Duration = Duration::from_secs(10);

/// Addresses that one line names.
const ADDRESSES_TOLD: usize = 8;

/// Logins that have failed.
#[derive(Default)]
pub(crate) struct FailedLogins(Mutex<State>);

#[derive(Default)]
struct State {
    untold: Failed,
    told_at: Option<Instant>,
}

/// The attempts that have failed since the last line, and from where.
#[derive(Default)]
pub(crate) struct Failed {
    pub(crate) attempts: u64,
    /// The first addresses, with their attempts.
    from: Vec<(IpAddr, u64)>,
}

impl Failed {
    fn add(&mut self, peer: Option<SocketAddr>) {
        self.attempts += 1;
        let Some(address) = peer.map(|peer| peer.ip().to_canonical()) else { return };
        if let Some((_, attempts)) = self.from.iter_mut().find(|(known, _)| *known == address) {
            *attempts += 1;
        } else if self.from.len() < ADDRESSES_TOLD {
            self.from.push((address, 1));
        }
    }

    /// The addresses, as far as they fit a line.
    pub(crate) fn addresses(&self) -> String {
        let mut told: Vec<String> =
            self.from.iter().map(|(address, attempts)| format!("{address} ({attempts})")).collect();
        let others = self.attempts - self.from.iter().map(|(_, attempts)| attempts).sum::<u64>();
        if others > 0 {
            told.push(format!("others ({others})"));
        }
        told.join(", ")
    }
}

impl FailedLogins {
    /// One more. What has failed since the last line, if a line is to be written now.
    pub(crate) fn count(&self, peer: Option<SocketAddr>, now: Instant) -> Option<Failed> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.untold.add(peer);
        if state.told_at.is_some_and(|told_at| now.saturating_duration_since(told_at) < TOLD_EVERY) {
            return None;
        }
        state.told_at = Some(now);
        Some(std::mem::take(&mut state.untold))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(last: u8) -> Option<SocketAddr> {
        Some((IpAddr::from([10, 0, 0, last]), 1_000).into())
    }

    #[test]
    fn many_attempts_are_told_together_with_their_addresses() {
        let (logins, now) = (FailedLogins::default(), Instant::now());
        let first = logins.count(peer(1), now).unwrap();
        assert_eq!((first.attempts, &*first.addresses()), (1, "10.0.0.1 (1)"));
        for nth in 0..100 {
            assert!(logins.count(peer(nth % 2), now + TOLD_EVERY / 2).is_none());
        }
        let all = logins.count(None, now + TOLD_EVERY).unwrap();
        assert_eq!((all.attempts, &*all.addresses()), (101, "10.0.0.0 (50), 10.0.0.1 (50), others (1)"));
    }

    #[test]
    fn a_line_names_few_addresses() {
        let mut failed = Failed::default();
        (0..200).for_each(|nth| failed.add(peer(nth)));
        let told = failed.addresses();
        assert_eq!(told.matches("10.0.0.").count(), ADDRESSES_TOLD);
        assert!(told.ends_with(", others (192)"), "{told}");
    }
}
