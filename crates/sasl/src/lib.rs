//! SASL mechanisms, for clients and servers. Without IO, clock and randomness: nonces are arguments.
//!
//! ```
//! use consort_sasl::Mechanism;
//! use consort_sasl::plain::Plain;
//!
//! let message = Plain { act_as: "", name: "alice", password: "secret" }.write();
//! let plain = Plain::read(&message)?;
//! assert_eq!((plain.name, plain.password), ("alice", "secret"));
//! assert_eq!(Mechanism::from_name("PLAIN"), Some(Mechanism::Plain));
//! # Ok::<(), consort_sasl::Malformed>(())
//! ```
//!
//! The server side of SCRAM (RFC 5802, RFC 7677) uses verifiers only: a stolen verifier does not suffice to log in, and an
//! unknown user looks like a known one ([`scram::Verifier::decoy`]). Known libraries store salted passwords or reveal which
//! users exist.

#![forbid(unsafe_code)]

pub mod bearer;
mod mechanism;
pub mod plain;
mod prepare;
pub mod scram;

pub use mechanism::Mechanism;
pub use prepare::{SaslprepError, prepare};

/// An invalid message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("invalid {mechanism} message: {reason}")]
pub struct Malformed {
    /// The mechanism.
    pub mechanism: &'static str,
    /// The reason.
    pub reason: &'static str,
}
