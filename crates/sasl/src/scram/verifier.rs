//! The verifier of a password.

use std::fmt;
use std::str::FromStr;

use subtle::ConstantTimeEq;

use crate::scram::keys::{Derivation, Hash, ITERATIONS_MAX, ITERATIONS_MIN, Keys};
use crate::scram::message::{base64, unbase64};

/// A server's data of a user. A stolen verifier allows guesses of the password, each at the cost of its iterations, and
/// impersonation of the server, but not of the user.
///
/// The text form is `SCRAM-SHA-256$ITERATIONS:SALT$STORED-KEY:SERVER-KEY` (RFC 5803), as in PostgreSQL.
#[derive(Clone, PartialEq, Eq)]
pub struct Verifier {
    hash: Hash,
    iterations: u32,
    salt: Vec<u8>,
    stored_key: Vec<u8>,
    server_key: Vec<u8>,
}

/// A text that is no verifier.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerifierError {
    /// Unknown mechanism.
    #[error("the verifier does not begin with SCRAM-SHA-256$, SCRAM-SHA-384$ or SCRAM-SHA-512$")]
    Mechanism,
    /// Wrong number of parts.
    #[error("the mechanism must be followed by ITERATIONS:SALT$STORED-KEY:SERVER-KEY")]
    Parts,
    /// Too few for security, or too many for clients.
    #[error("invalid number of iterations {0:?}; use {ITERATIONS_MIN} to {ITERATIONS_MAX}")]
    Iterations(String),
    /// Not base64, or a wrong length.
    #[error("the {part} must be {expected} in base64")]
    Bytes {
        /// The part.
        part: &'static str,
        /// Its content.
        expected: &'static str,
    },
}

impl Verifier {
    /// Derives it from a normalised password and a random salt. As slow as [`Keys::derive`].
    pub fn derive(hash: Hash, password: &str, salt: Vec<u8>, iterations: u32) -> Self {
        let Keys { stored, server, .. } = Keys::derive(hash, password, &salt, iterations);
        Self { hash, iterations, salt, stored_key: stored, server_key: server }
    }

    /// Makes it from a salted password (Hi of RFC 5802), as other servers store it. `None`: it has another length than the hash,
    /// there is no salt, or the iterations are too few or too many.
    pub fn from_salted(hash: Hash, salted: &[u8], salt: Vec<u8>, iterations: u32) -> Option<Self> {
        let is_valid = salted.len() == hash.len()
            && !salt.is_empty()
            && (ITERATIONS_MIN..=ITERATIONS_MAX).contains(&iterations);
        is_valid.then(|| {
            let Keys { stored, server, .. } = Keys::of(hash, salted);
            Self { hash, iterations, salt, stored_key: stored, server_key: server }
        })
    }

    /// Returns a verifier that no password matches and that looks real. Its salt is derived from a secret, the mechanism
    /// and the name, so that it is stable per name and differs per mechanism, like a user's.
    pub fn decoy(hash: Hash, secret: &[u8], name: &str, salt_len: usize, iterations: u32) -> Self {
        let follows =
            |what: &str| Hash::Sha512.hmac(secret, format!("{what} {} {name}", hash.mechanism()).as_bytes());
        let mut salt = follows("salt");
        salt.resize(salt_len, 0);
        let [mut stored_key, mut server_key] = ["stored", "server"].map(follows);
        stored_key.truncate(hash.len());
        server_key.truncate(hash.len());
        Self { hash, iterations, salt, stored_key, server_key }
    }

    /// Returns whether it matches a normalised password. As slow as [`Keys::derive`].
    pub fn fits(&self, password: &str) -> bool {
        self.is_of(&Keys::derive(self.hash, password, &self.salt, self.iterations))
    }

    /// Starts a stepwise derivation, for [`Self::is_of`].
    pub fn derivation(&self, password: &str) -> Derivation {
        Derivation::begin(self.hash, password, &self.salt, self.iterations)
    }

    /// Returns whether it matches these keys.
    pub fn is_of(&self, keys: &Keys) -> bool {
        keys.stored.ct_eq(&self.stored_key).into()
    }

    /// Returns the mechanism's hash.
    pub const fn hash(&self) -> Hash {
        self.hash
    }

    /// Returns the iterations.
    pub const fn iterations(&self) -> u32 {
        self.iterations
    }

    /// Returns the salt.
    pub fn salt(&self) -> &[u8] {
        &self.salt
    }

    pub(crate) fn stored_key(&self) -> &[u8] {
        &self.stored_key
    }

    pub(crate) fn server_key(&self) -> &[u8] {
        &self.server_key
    }
}

impl fmt::Display for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mechanism, iterations) = (self.hash.mechanism(), self.iterations);
        let [salt, stored, server] =
            [&self.salt, &self.stored_key, &self.server_key].map(|part| base64(part));
        write!(f, "{mechanism}${iterations}:{salt}${stored}:{server}")
    }
}

/// Without parts that allow guesses of the password.
impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}${}:…", self.hash.mechanism(), self.iterations)
    }
}

impl FromStr for Verifier {
    type Err = VerifierError;

    fn from_str(text: &str) -> Result<Self, VerifierError> {
        let (mechanism, rest) = text.split_once('$').ok_or(VerifierError::Mechanism)?;
        let hash = Hash::ALL.into_iter().find(|hash| hash.mechanism() == mechanism);
        let hash = hash.ok_or(VerifierError::Mechanism)?;
        let (how, keys) = rest.split_once('$').ok_or(VerifierError::Parts)?;
        let (iterations, salt) = how.split_once(':').ok_or(VerifierError::Parts)?;
        let (stored_key, server_key) = keys.split_once(':').ok_or(VerifierError::Parts)?;
        let parsed =
            iterations.parse().ok().filter(|count| (ITERATIONS_MIN..=ITERATIONS_MAX).contains(count));
        let iterations = parsed.ok_or_else(|| VerifierError::Iterations(iterations.to_owned()))?;
        let expected = "8 to 64 bytes";
        let salt = unbase64(salt).filter(|salt| (8..=64).contains(&salt.len()));
        let salt = salt.ok_or(VerifierError::Bytes { part: "salt", expected })?;
        let expected = match hash {
            Hash::Sha256 => "32 bytes",
            Hash::Sha384 => "48 bytes",
            Hash::Sha512 => "64 bytes",
        };
        let key = |part, text| {
            let key = unbase64(text).filter(|key| key.len() == hash.len());
            key.ok_or(VerifierError::Bytes { part, expected })
        };
        let (stored_key, server_key) = (key("stored key", stored_key)?, key("server key", server_key)?);
        Ok(Self { hash, iterations, salt, stored_key, server_key })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The user of RFC 7677, also tested by other programs.
    const PENCIL: &str = "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$\
                          WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=";

    #[test]
    fn a_verifier_is_written_as_it_is_read() {
        let verifier: Verifier = PENCIL.parse().unwrap();
        assert_eq!(verifier.to_string(), PENCIL);
        assert!(verifier.fits("pencil"));
        assert!(!verifier.fits("Pencil"));
        assert_eq!(format!("{verifier:?}"), "SCRAM-SHA-256$4096:…");
        let long = Verifier::derive(Hash::Sha512, "pencil", vec![7; 16], 5_000);
        assert_eq!(long.to_string().parse(), Ok(long));
    }

    #[test]
    fn an_invalid_verifier_is_refused_with_its_invalid_part() {
        for (text, told) in [
            ("", "the verifier does not begin with SCRAM-SHA-256$, SCRAM-SHA-384$ or SCRAM-SHA-512$"),
            (
                "SCRAM-SHA-1$4096:QQ==$QQ==:QQ==",
                "the verifier does not begin with SCRAM-SHA-256$, SCRAM-SHA-384$ or SCRAM-SHA-512$",
            ),
            ("SCRAM-SHA-256$4096", "the mechanism must be followed by ITERATIONS:SALT$STORED-KEY:SERVER-KEY"),
            ("SCRAM-SHA-256$1:W22ZaJ0SNY4=$a:b", "invalid number of iterations \"1\"; use 4096 to 1000000"),
            ("SCRAM-SHA-256$x:W22ZaJ0SNY4=$a:b", "invalid number of iterations \"x\"; use 4096 to 1000000"),
            ("SCRAM-SHA-256$4096:QQ==$a:b", "the salt must be 8 to 64 bytes in base64"),
            ("SCRAM-SHA-256$4096:W22ZaJ0SNY4=$QQ==:b", "the stored key must be 32 bytes in base64"),
            ("SCRAM-SHA-512$4096:W22ZaJ0SNY4=$QQ==:b", "the stored key must be 64 bytes in base64"),
        ] {
            assert_eq!(text.parse::<Verifier>().unwrap_err().to_string(), told, "{text}");
        }
    }

    #[test]
    fn a_decoy_is_the_same_again_for_a_name_and_fits_nothing() {
        let decoy = |name| Verifier::decoy(Hash::Sha256, b"secret", name, 16, 4_096);
        assert_eq!(decoy("nobody"), decoy("nobody"));
        assert_ne!(decoy("nobody").salt(), decoy("somebody").salt());
        assert_eq!(decoy("nobody").salt().len(), 16);
        let salt = |hash| Verifier::decoy(hash, b"secret", "nobody", 16, 4_096).salt().to_vec();
        let mut salts = Hash::ALL.map(salt).to_vec();
        salts.dedup();
        assert_eq!(salts.len(), Hash::ALL.len(), "a user has another salt for each mechanism");
        assert!(!decoy("nobody").fits("nobody"));
    }
}
