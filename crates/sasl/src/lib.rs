//! How somebody shows who it is: the messages of SASL's mechanisms, for the side that shows it and the side that looks. No
//! IO, no clock, and no randomness of its own: nonces are given.
//!
//! SCRAM (RFC 5802, RFC 7677) is here as the side that looks needs it with verifiers only: from what it keeps nobody can
//! show to be the user, and who asks for a user that does not exist sees what others see ([`scram::Verifier::decoy`]). The
//! libraries we know keep salted passwords or tell the two apart. Hashes and their derivation are ring's.

#![forbid(unsafe_code)]

pub mod bearer;
mod mechanism;
pub mod plain;
mod prepare;
pub mod scram;

pub use mechanism::Mechanism;
pub use prepare::{SaslprepError, prepare};

/// A message that is not what its mechanism has at that place. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("not a message of {mechanism}: {reason}")]
pub struct Malformed {
    /// The mechanism.
    pub mechanism: &'static str,
    /// What is wrong with it.
    pub reason: &'static str,
}
