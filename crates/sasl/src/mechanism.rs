//! The mechanisms.

use std::fmt;

use crate::scram::Hash;

/// A mechanism.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Mechanism {
    /// The TLS connection's certificate.
    External,
    /// A password, neither sent nor stored.
    Scram(Hash),
    /// A signed token.
    OauthBearer,
    /// A password in clear text.
    Plain,
}

impl Mechanism {
    /// All, the strongest first: those that send no secret come before those that do.
    pub const ALL: [Self; 6] = [
        Self::External,
        Self::Scram(Hash::Sha512),
        Self::Scram(Hash::Sha384),
        Self::Scram(Hash::Sha256),
        Self::OauthBearer,
        Self::Plain,
    ];

    /// Returns the registered name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::External => "EXTERNAL",
            Self::Scram(hash) => hash.mechanism(),
            Self::OauthBearer => "OAUTHBEARER",
            Self::Plain => "PLAIN",
        }
    }

    /// Returns the mechanism of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mechanism| mechanism.name() == name)
    }

    /// Returns whether an eavesdropper or an impostor learns the secret.
    pub const fn tells_secret(self) -> bool {
        matches!(self, Self::OauthBearer | Self::Plain)
    }
}

impl fmt::Display for Mechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_registered_ones_and_the_strongest_comes_first() {
        let names = Mechanism::ALL.map(Mechanism::name);
        let expected =
            ["EXTERNAL", "SCRAM-SHA-512", "SCRAM-SHA-384", "SCRAM-SHA-256", "OAUTHBEARER", "PLAIN"];
        assert_eq!(names, expected);
        for mechanism in Mechanism::ALL {
            assert_eq!(Mechanism::from_name(mechanism.name()), Some(mechanism));
        }
        assert_eq!(Mechanism::from_name("plain"), None);
        assert_eq!(Mechanism::from_name("SCRAM-SHA-1"), None);
    }
}
