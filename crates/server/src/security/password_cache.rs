//! Passwords that were verified a short time ago.
//!
//! A password in cleartext (PLAIN, and Basic in HTTP) takes some 20 ms to hash, which clients with short connections would pay
//! each time. So each user's last verified password is remembered as a keyed hash, which only this process can compute. Wrong
//! passwords and unknown names are not: they always take the same time and do not grow the table.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use consort_sasl::scram::Verifier;
use ring::hmac;
use ring::rand::SystemRandom;

use crate::limits::PASSWORD_CACHE_TIME;

struct CachedPassword {
    seal: hmac::Tag,
    at: Instant,
}

/// At most one for each existing user.
pub(crate) struct PasswordCache {
    /// `None`, if the system has no random numbers, remembers no password.
    key: Option<hmac::Key>,
    by_user: Mutex<BTreeMap<String, CachedPassword>>,
}

/// Contains the verifier, so that a password is not accepted for another user's.
fn sealed(verifier: &Verifier, password: &str) -> Vec<u8> {
    // A verifier's text has no zero byte.
    [verifier.to_string().as_bytes(), b"\0", password.as_bytes()].concat()
}

impl PasswordCache {
    pub(crate) fn new(random: &SystemRandom) -> Self {
        Self { key: hmac::Key::generate(hmac::HMAC_SHA256, random).ok(), by_user: Mutex::default() }
    }

    fn by_user(&self) -> MutexGuard<'_, BTreeMap<String, CachedPassword>> {
        self.by_user.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn contains(&self, user: &str, verifier: &Verifier, password: &str, now: Instant) -> bool {
        let Some(key) = &self.key else { return false };
        let by_user = self.by_user();
        let verified =
            by_user.get(user).filter(|one| now.saturating_duration_since(one.at) < PASSWORD_CACHE_TIME);
        verified.is_some_and(|one| hmac::verify(key, &sealed(verifier, password), one.seal.as_ref()).is_ok())
    }

    pub(crate) fn add(&self, user: &str, verifier: &Verifier, password: &str, now: Instant) {
        let Some(key) = &self.key else { return };
        let seal = hmac::sign(key, &sealed(verifier, password));
        let mut by_user = self.by_user();
        by_user.retain(|_, one| now.saturating_duration_since(one.at) < PASSWORD_CACHE_TIME);
        by_user.insert(user.to_owned(), CachedPassword { seal, at: now });
    }

    pub(crate) fn clear(&self) {
        self.by_user().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use consort_sasl::scram::Hash;

    fn verifier(password: &str) -> Verifier {
        Verifier::derive(Hash::Sha256, password, b"salt of a test".to_vec(), 4_096)
    }

    #[test]
    fn only_a_recently_verified_password_is_found() {
        let (passwords, now) = (PasswordCache::new(&SystemRandom::new()), Instant::now());
        let alice = verifier("wonderland");
        assert!(!passwords.contains("alice", &alice, "wonderland", now));
        passwords.add("alice", &alice, "wonderland", now);
        assert!(passwords.contains("alice", &alice, "wonderland", now + PASSWORD_CACHE_TIME / 2));
        assert!(!passwords.contains("alice", &alice, "wonderlan", now));
        assert!(!passwords.contains("bob", &alice, "wonderland", now));
        // A new password has another verifier.
        assert!(!passwords.contains("alice", &verifier("new"), "wonderland", now));
        assert!(!passwords.contains("alice", &alice, "wonderland", now + PASSWORD_CACHE_TIME));
    }

    #[test]
    fn cached_password_expires_and_is_cleared() {
        let (passwords, now) = (PasswordCache::new(&SystemRandom::new()), Instant::now());
        passwords.add("alice", &verifier("a"), "a", now);
        passwords.add("alice", &verifier("b"), "b", now);
        assert_eq!(passwords.by_user().len(), 1, "the last one of each user");
        passwords.add("bob", &verifier("b"), "b", now + PASSWORD_CACHE_TIME);
        assert_eq!(passwords.by_user().keys().collect::<Vec<_>>(), ["bob"]);
        passwords.clear();
        assert!(passwords.by_user().is_empty());
    }
}
