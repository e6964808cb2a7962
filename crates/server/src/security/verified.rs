//! Passwords that were right a short time ago.
//!
//! A password that comes as it is (PLAIN, and Basic in HTTP) is hashed as often as its verifier says: some 20 ms. Clients with
//! short connections would pay that for each of them, and few are hashed at a time. So of each user the last password that was
//! right is known again for a while, by a keyed hash of it that this process alone can make. Nothing is remembered of wrong
//! passwords and of names that are nobody's: those take the time that they always take, and do not grow the table.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use consort_sasl::scram::Verifier;
use ring::hmac;
use ring::rand::SystemRandom;

use crate::bounds::VERIFIED_KEPT;

/// A user's password as it is remembered.
struct Verified {
    seal: hmac::Tag,
    at: Instant,
}

/// What is remembered: at most one password of each user that there is.
pub(crate) struct VerifiedPasswords {
    /// Nothing is remembered if the system has no random numbers for it.
    key: Option<hmac::Key>,
    by_user: Mutex<BTreeMap<String, Verified>>,
}

/// What is remembered of a password that is right. With the verifier in it no other one's password is taken for it.
fn sealed(verifier: &Verifier, password: &str) -> Vec<u8> {
    // A verifier's text has no zero.
    [verifier.to_string().as_bytes(), b"\0", password.as_bytes()].concat()
}

impl VerifiedPasswords {
    pub(crate) fn new(random: &SystemRandom) -> Self {
        Self { key: hmac::Key::generate(hmac::HMAC_SHA256, random).ok(), by_user: Mutex::default() }
    }

    fn by_user(&self) -> MutexGuard<'_, BTreeMap<String, Verified>> {
        self.by_user.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this was the user's password a short time ago, by the same verifier.
    pub(crate) fn has(&self, user: &str, verifier: &Verifier, password: &str, now: Instant) -> bool {
        let Some(key) = &self.key else { return false };
        let by_user = self.by_user();
        let verified = by_user.get(user).filter(|one| now.saturating_duration_since(one.at) < VERIFIED_KEPT);
        verified.is_some_and(|one| hmac::verify(key, &sealed(verifier, password), one.seal.as_ref()).is_ok())
    }

    /// This is the user's password.
    pub(crate) fn add(&self, user: &str, verifier: &Verifier, password: &str, now: Instant) {
        let Some(key) = &self.key else { return };
        let seal = hmac::sign(key, &sealed(verifier, password));
        let mut by_user = self.by_user();
        by_user.retain(|_, one| now.saturating_duration_since(one.at) < VERIFIED_KEPT);
        by_user.insert(user.to_owned(), Verified { seal, at: now });
    }

    /// Nothing is remembered any more.
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
    fn only_what_was_right_a_short_time_ago_is_known_again() {
        let (passwords, now) = (VerifiedPasswords::new(&SystemRandom::new()), Instant::now());
        let alice = verifier("wonderland");
        assert!(!passwords.has("alice", &alice, "wonderland", now));
        passwords.add("alice", &alice, "wonderland", now);
        assert!(passwords.has("alice", &alice, "wonderland", now + VERIFIED_KEPT / 2));
        assert!(!passwords.has("alice", &alice, "wonderlan", now));
        assert!(!passwords.has("bob", &alice, "wonderland", now));
        // With a new password the verifier is another one.
        assert!(!passwords.has("alice", &verifier("new"), "wonderland", now));
        assert!(!passwords.has("alice", &alice, "wonderland", now + VERIFIED_KEPT));
    }

    #[test]
    fn what_is_remembered_goes_with_time_and_when_it_is_said() {
        let (passwords, now) = (VerifiedPasswords::new(&SystemRandom::new()), Instant::now());
        passwords.add("alice", &verifier("a"), "a", now);
        passwords.add("alice", &verifier("b"), "b", now);
        assert_eq!(passwords.by_user().len(), 1, "the last one of each user");
        passwords.add("bob", &verifier("b"), "b", now + VERIFIED_KEPT);
        assert_eq!(passwords.by_user().keys().collect::<Vec<_>>(), ["bob"]);
        passwords.clear();
        assert!(passwords.by_user().is_empty());
    }
}
