//! The delay of login responses after failures.
//!
//! Failures count for the user's name, for the client's address, and for the pair of both if it has logged in before. After a few
//! failures each one doubles the delay, up to a limit. The response to a correct password is delayed, too; otherwise a guessing
//! client need not wait for delayed responses. No login is refused because of earlier failures. A user that has logged in from an
//! address is only delayed by that pair's failures, so that an attack from another address does not slow the user.
//!
//! A new key replaces the one with the fewest failures among its hash's eight slots, so that many names with one failure each do
//! not displace the one under attack.

use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::limits::{
    LOGIN_DELAY_FIRST, LOGIN_DELAY_MAX, LOGIN_FAILURES_FREE, LOGIN_FAILURES_HALVED_AFTER, LOGINS_TRACKED,
};
use crate::transport::addresses::Origin;

const WAYS: usize = 8;

#[derive(Clone, Copy)]
struct Count {
    key: u64,
    failures: u32,
    at: Instant,
}

impl Count {
    fn now(&self, now: Instant) -> u32 {
        let halvings =
            now.saturating_duration_since(self.at).as_secs() / LOGIN_FAILURES_HALVED_AFTER.as_secs();
        self.failures.checked_shr(u32::try_from(halvings).unwrap_or(u32::MAX)).unwrap_or(0)
    }
}

struct Table(Vec<[Option<Count>; WAYS]>);

impl Table {
    fn new() -> Self {
        Self(vec![[None; WAYS]; LOGINS_TRACKED / WAYS])
    }

    fn slots(&mut self, key: u64) -> &mut [Option<Count>; WAYS] {
        let sets = self.0.len() as u64;
        &mut self.0[(key % sets) as usize]
    }

    fn failures(&mut self, key: u64, now: Instant) -> Option<u32> {
        self.slots(key).iter().flatten().find(|count| count.key == key).map(|count| count.now(now))
    }

    fn set(&mut self, key: u64, failures: u32, now: Instant) {
        let slots = self.slots(key);
        let of_key = slots.iter().position(|slot| slot.is_some_and(|count| count.key == key));
        let at = of_key.unwrap_or_else(|| {
            let weight =
                |slot: &Option<Count>| slot.map_or((0, None), |one| (one.now(now) + 1, Some(one.at)));
            let fewest = slots.iter().enumerate().min_by_key(|(_, slot)| weight(slot));
            fewest.map_or(0, |(at, _)| at)
        });
        slots[at] = Some(Count { key, failures, at: now });
    }

    fn add_failure(&mut self, key: u64, now: Instant) {
        let failures = self.failures(key, now).unwrap_or(0);
        self.set(key, failures.saturating_add(1), now);
    }
}

struct Tables {
    names: Table,
    addresses: Table,
    /// Pairs of names and addresses that have logged in.
    known: Table,
}

pub(crate) struct Attempts {
    tables: Mutex<Tables>,
    /// Seeded at random, so that clients cannot choose names that share a slot.
    hasher: RandomState,
    delay_max: Duration,
}

impl Attempts {
    pub(crate) fn new(handshake_timeout: Duration) -> Self {
        let tables = Tables { names: Table::new(), addresses: Table::new(), known: Table::new() };
        let delay_max = LOGIN_DELAY_MAX.min(handshake_timeout / 2);
        Self { tables: Mutex::new(tables), hasher: RandomState::new(), delay_max }
    }

    pub(crate) fn count(
        &self,
        name: Option<&str>,
        peer: Option<SocketAddr>,
        is_success: bool,
        now: Instant,
    ) -> Duration {
        let address = peer.map(|peer| Origin::of(peer.ip()));
        let name_key = name.map(|name| self.hasher.hash_one(name));
        let address_key = self.hasher.hash_one(address);
        let pair_key = name.map(|name| self.hasher.hash_one((name, address)));
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        let of_pair = pair_key.and_then(|key| tables.known.failures(key, now));
        let of_both = || {
            let of_name = name_key.and_then(|key| tables.names.failures(key, now)).unwrap_or(0);
            tables.addresses.failures(address_key, now).unwrap_or(0).max(of_name)
        };
        let failures = of_pair.unwrap_or_else(of_both);
        match (is_success, of_pair, pair_key) {
            (true, _, Some(key)) => tables.known.set(key, of_pair.unwrap_or(0), now),
            (false, Some(_), Some(key)) => tables.known.add_failure(key, now),
            _ => {}
        }
        if !is_success {
            tables.addresses.add_failure(address_key, now);
            if let Some(key) = name_key {
                tables.names.add_failure(key, now);
            }
        }
        drop(tables);
        delay(failures).min(self.delay_max)
    }
}

fn delay(failures: u32) -> Duration {
    match failures.checked_sub(LOGIN_FAILURES_FREE) {
        None => Duration::ZERO,
        Some(beyond) => LOGIN_DELAY_FIRST.saturating_mul(1 << beyond.min(16)).min(LOGIN_DELAY_MAX),
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn peer(last: u8) -> Option<SocketAddr> {
        Some((IpAddr::from([10, 0, 0, last]), 1_000).into())
    }

    fn attempts() -> (Attempts, Instant) {
        (Attempts::new(Duration::from_secs(60)), Instant::now())
    }

    #[test]
    fn delay_grows_with_failures_of_a_name_or_an_address_up_to_a_limit() {
        for is_by_name in [true, false] {
            let (attempts, now) = attempts();
            let fail = |nth: u32| {
                let (name, from) = match is_by_name {
                    true => ("alice".to_owned(), peer(nth as u8)),
                    false => (format!("nobody-{nth}"), peer(1)),
                };
                attempts.count(Some(&name), from, false, now)
            };
            let delays: Vec<Duration> = (0..64).map(fail).collect();
            let free = LOGIN_FAILURES_FREE as usize;
            assert!(delays[..free].iter().all(Duration::is_zero));
            assert_eq!(delays[free..free + 3], [1, 2, 4].map(|times| LOGIN_DELAY_FIRST * times));
            assert!(delays.is_sorted() && delays.last() == Some(&LOGIN_DELAY_MAX));
            // Counts of failures halve with time.
            let later = now + LOGIN_FAILURES_HALVED_AFTER * 7;
            let (name, from) = if is_by_name { ("alice", peer(200)) } else { ("bob", peer(1)) };
            assert_eq!(attempts.count(Some(name), from, false, later), Duration::ZERO);
        }
    }

    #[test]
    fn response_to_a_correct_password_is_delayed_like_one_to_a_wrong_password() {
        let (attempts, now) = attempts();
        for _ in 0..LOGIN_FAILURES_FREE + 2 {
            attempts.count(Some("alice"), peer(1), false, now);
        }
        assert_eq!(attempts.count(Some("alice"), peer(2), true, now), LOGIN_DELAY_FIRST * 4);
    }

    #[test]
    fn user_with_a_known_address_is_delayed_by_failures_from_there_only() {
        let (attempts, now) = attempts();
        attempts.count(Some("alice"), peer(1), true, now);
        for _ in 0..1_000 {
            attempts.count(Some("alice"), peer(66), false, now);
        }
        assert_eq!(attempts.count(Some("alice"), peer(1), true, now), Duration::ZERO);
        assert_eq!(attempts.count(Some("alice"), peer(2), true, now), LOGIN_DELAY_MAX);
        for _ in 0..1_000 {
            attempts.count(Some("alice"), peer(1), false, now);
        }
        assert_eq!(attempts.count(Some("alice"), peer(1), true, now), LOGIN_DELAY_MAX);
    }

    #[test]
    fn many_names_do_not_displace_the_one_under_attack() {
        let (attempts, now) = attempts();
        for _ in 0..100 {
            attempts.count(Some("alice"), peer(1), false, now);
        }
        for nth in 0..20 * LOGINS_TRACKED {
            attempts.count(Some(&format!("{nth}")), peer((nth % 200) as u8), false, now);
        }
        let tables = attempts.tables.lock().unwrap();
        assert!(
            [&tables.names, &tables.addresses, &tables.known]
                .iter()
                .all(|it| it.0.len() * WAYS == LOGINS_TRACKED)
        );
        drop(tables);
        assert_eq!(attempts.count(Some("alice"), peer(201), false, now), LOGIN_DELAY_MAX);
    }

    #[test]
    fn delay_is_at_most_half_of_the_handshake_timeout() {
        let attempts = Attempts::new(Duration::from_secs(1));
        let now = Instant::now();
        let delays = (0..100).map(|_| attempts.count(None, None, false, now));
        assert_eq!(delays.max(), Some(Duration::from_millis(500)));
    }
}
