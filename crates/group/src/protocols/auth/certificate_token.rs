//! The token of X509Token: a text that all members share, encrypted for the private key that all members share.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use crate::Time;
use crate::protocols::encrypt::{KeyPair, RandomBytes};

/// The key pair of the certificate, and random bytes for the padding.
pub type CertificateKey = (KeyPair, Box<dyn RandomBytes>);

/// Each member has a token of its own, because of its padding, and keeps it. Those that were accepted need no second decryption. Each
/// has at most 1 KiB, the length of the longest key.
const ACCEPTED_MAX: usize = 1_000;

/// A decryption takes milliseconds. So many members that start at once are checked at once, and then one more after each
/// [`CHECK_INTERVAL`].
const CHECKS_AT_ONCE: u32 = 200;

const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Why a token is not accepted, for the log.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Unaccepted {
    Refused(String),
    /// The member is not answered, and sends its request again.
    Deferred(String),
}

/// The token of this member, and the key that opens the others'.
pub(super) struct CertificateToken {
    keys: KeyPair,
    random: Box<dyn RandomBytes>,
    own: Bytes,
    /// In lower case, as JGroups compares.
    value: Zeroizing<String>,
    accepted: BTreeSet<Bytes>,
    /// The time at which all checks are allowed again.
    checked_until: Time,
}

impl std::fmt::Debug for CertificateToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CertificateToken({} accepted)", self.accepted.len())
    }
}

impl CertificateToken {
    /// `None`: the value is longer than the key can encrypt.
    pub(super) fn new(value: &str, (keys, mut random): CertificateKey) -> Option<Self> {
        let own = keys.encrypt(&mut *random, value.as_bytes())?;
        let value = Zeroizing::new(value.to_lowercase());
        Some(Self { keys, random, own, value, accepted: BTreeSet::new(), checked_until: Time::ZERO })
    }

    pub(super) fn own(&self) -> Bytes {
        self.own.clone()
    }

    pub(super) fn check(&mut self, now: Time, token: &Bytes) -> Result<(), Unaccepted> {
        if self.accepted.contains(token) {
            return Ok(());
        }
        let refused = |why: &str| Err(Unaccepted::Refused(why.to_owned()));
        if token.len() != self.own.len() {
            return refused("its token is of a certificate with another length of key");
        }
        let begin = self.checked_until.max(now);
        if begin.since(now) > CHECK_INTERVAL * (CHECKS_AT_ONCE - 1) {
            let why = format!(
                "more than {CHECKS_AT_ONCE} unknown tokens arrived at once; it is checked when it asks again"
            );
            return Err(Unaccepted::Deferred(why));
        }
        self.checked_until = begin + CHECK_INTERVAL;
        let Some(text) = self.keys.decrypt(&mut *self.random, token) else {
            return refused("its token cannot be decrypted");
        };
        let text = Zeroizing::new(String::from_utf8_lossy(&text).to_lowercase());
        if !bool::from(text.as_bytes().ct_eq(self.value.as_bytes())) {
            return refused("its token is of another certificate or another auth_value");
        }
        if self.accepted.len() >= ACCEPTED_MAX {
            self.accepted.clear();
        }
        self.accepted.insert(token.clone());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocols::encrypt::tests::Counting;

    fn token(keys: &KeyPair, value: &str) -> CertificateToken {
        // Other random bytes for each token.
        let random = Box::new(Counting(value.len() as u8 + value.as_bytes()[0]));
        CertificateToken::new(value, (keys.clone(), random)).unwrap()
    }

    fn keys(seed: u8) -> KeyPair {
        KeyPair::generate(1_024, &mut Counting(seed)).unwrap()
    }

    #[test]
    fn tokens_of_the_same_certificate_and_value_are_accepted() {
        let pair = keys(1);
        let mut own = token(&pair, "secret");
        // Java compares without case.
        for value in ["secret", "SECRET", "Secret"] {
            assert_eq!(own.check(Time::ZERO, &token(&pair, value).own()), Ok(()), "{value}");
        }
        for other in [token(&pair, "other"), token(&keys(2), "secret")] {
            let refused = own.check(Time::ZERO, &other.own());
            assert!(
                matches!(&refused, Err(Unaccepted::Refused(why)) if why.contains("another certificate")),
                "{refused:?}"
            );
        }
        let short = own.check(Time::ZERO, &Bytes::from_static(b"short"));
        assert!(matches!(&short, Err(Unaccepted::Refused(why)) if why.contains("length")), "{short:?}");
    }

    #[test]
    fn unknown_tokens_are_checked_at_a_bounded_rate_and_known_ones_at_any_rate() {
        let pair = keys(1);
        let mut own = token(&pair, "secret");
        let known = token(&pair, "Secret").own();
        assert_eq!(own.check(Time::ZERO, &known), Ok(()));
        let forged = Bytes::from(vec![7; known.len()]);
        let mut checked = 1;
        while !matches!(own.check(Time::ZERO, &forged), Err(Unaccepted::Deferred(_))) {
            checked += 1;
            assert!(checked <= CHECKS_AT_ONCE, "{checked}");
        }
        assert_eq!(checked, CHECKS_AT_ONCE);
        assert_eq!(own.check(Time::ZERO, &known), Ok(()));
        let next = Time::ZERO + CHECK_INTERVAL;
        assert!(matches!(own.check(next, &forged), Err(Unaccepted::Refused(_))));
        assert!(matches!(own.check(next, &forged), Err(Unaccepted::Deferred(_))));
    }

    #[test]
    fn value_that_is_too_long_for_the_key_is_refused() {
        assert!(CertificateToken::new(&"x".repeat(200), (keys(1), Box::new(Counting(1)))).is_none());
    }
}
