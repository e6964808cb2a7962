use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use crate::security::rate_limited_log::RateLimitedLog;

const ADDRESSES_MAX: usize = 8;

#[derive(Default)]
pub(crate) struct FailedLogins(RateLimitedLog<FailureSummary>);

#[derive(Default)]
pub(crate) struct FailureSummary {
    pub(crate) attempts: u64,
    from: Vec<(IpAddr, u64)>,
}

impl FailureSummary {
    fn add(&mut self, peer: Option<SocketAddr>) {
        self.attempts += 1;
        let Some(address) = peer.map(|peer| peer.ip().to_canonical()) else { return };
        if let Some((_, attempts)) = self.from.iter_mut().find(|(known, _)| *known == address) {
            *attempts += 1;
        } else if self.from.len() < ADDRESSES_MAX {
            self.from.push((address, 1));
        }
    }

    pub(crate) fn addresses(&self) -> String {
        let mut text: Vec<String> =
            self.from.iter().map(|(address, attempts)| format!("{address} ({attempts})")).collect();
        let others = self.attempts - self.from.iter().map(|(_, attempts)| attempts).sum::<u64>();
        if others > 0 {
            text.push(format!("others ({others})"));
        }
        text.join(", ")
    }
}

impl FailedLogins {
    pub(crate) fn count(&self, peer: Option<SocketAddr>, now: Instant) -> Option<FailureSummary> {
        self.0.add(now, |failures| failures.add(peer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::security::rate_limited_log::LOG_INTERVAL;

    fn peer(last: u8) -> Option<SocketAddr> {
        Some((IpAddr::from([10, 0, 0, last]), 1_000).into())
    }

    #[test]
    fn many_failures_are_logged_in_one_line_with_their_addresses() {
        let (logins, now) = (FailedLogins::default(), Instant::now());
        let first = logins.count(peer(1), now).unwrap();
        assert_eq!((first.attempts, &*first.addresses()), (1, "10.0.0.1 (1)"));
        for nth in 0..100 {
            assert!(logins.count(peer(nth % 2), now + LOG_INTERVAL / 2).is_none());
        }
        let all = logins.count(None, now + LOG_INTERVAL).unwrap();
        assert_eq!((all.attempts, &*all.addresses()), (101, "10.0.0.0 (50), 10.0.0.1 (50), others (1)"));
    }

    #[test]
    fn a_line_names_few_addresses() {
        let mut failed = FailureSummary::default();
        (0..200).for_each(|nth| failed.add(peer(nth)));
        let text = failed.addresses();
        assert_eq!(text.matches("10.0.0.").count(), ADDRESSES_MAX);
        assert!(text.ends_with(", others (192)"), "{text}");
    }
}
