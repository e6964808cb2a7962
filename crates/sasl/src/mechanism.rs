//! The mechanisms, by their registered names.

use std::fmt;

use crate::scram::Hash;

/// A way to show who one is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Mechanism {
    /// By the certificate that the connection was made with.
    External,
    /// A password, which neither side sends, nor the server keeps.
    Scram(Hash),
    /// A token that somebody else has signed.
    OauthBearer,
    /// A password as it is.
    Plain,
}

impl Mechanism {
    /// All of them, the strongest first: what takes no secret over the line comes before what does.
    pub const ALL: [Self; 6] = [
        Self::External,
        Self::Scram(Hash::Sha512),
        Self::Scram(Hash::Sha384),
        Self::Scram(Hash::Sha256),
        Self::OauthBearer,
        Self::Plain,
    ];

    /// Its registered name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::External => "EXTERNAL",
            Self::Scram(hash) => hash.mechanism(),
            Self::OauthBearer => "OAUTHBEARER",
            Self::Plain => "PLAIN",
        }
    }

    /// The one with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mechanism| mechanism.name() == name)
    }

    /// Whether who reads the line, or only claims to be the server, has the secret afterwards.
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
