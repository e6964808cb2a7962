//! What can be wrong with bytes, and where.

use crate::status::Status;
use crate::version::ProtocolVersion;

/// Bytes that are not what they should be. The stream they came in is lost: the protocol has no lengths of messages.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("byte {at} of the message: {reason}")]
pub struct DecodeError {
    /// Where in the message.
    pub at: usize,
    /// What is wrong.
    pub reason: Reason,
}

/// What is wrong with bytes.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// A message does not begin so.
    #[error("magic {0:#04x}")]
    Magic(u8),
    /// A version that is not spoken here.
    #[error("unknown version {0}")]
    Version(u8),
    /// An operation that is not known.
    #[error("unknown opcode {0:#04x}")]
    Opcode(u8),
    /// A response whose opcode is not that of its request.
    #[error("opcode {found:#04x} answers a request that expects {expected:#04x}")]
    OtherOpcode {
        /// The response's.
        found: u8,
        /// What it should be.
        expected: u8,
    },
    /// A response to nothing that was asked.
    #[error("no request has the id {0}")]
    UnknownId(u64),
    /// A number that does not end.
    #[error("{0} is not a number")]
    Number(&'static str),
    /// A value that has no meaning.
    #[error("{what} cannot be {value}")]
    Invalid {
        /// What was read.
        what: &'static str,
        /// What it says.
        value: u64,
    },
    /// Longer than allowed.
    #[error("{what} of length {length}, {limit} are allowed")]
    TooLong {
        /// What is so long.
        what: &'static str,
        /// How long it is: bytes, or things.
        length: u64,
        /// How long it may be.
        limit: u64,
    },
    /// Text that is not UTF-8.
    #[error("text is not UTF-8")]
    Text,
    /// The layout of a message and what was read of it differ.
    #[error("{read} bytes were read of {length}")]
    Layout {
        /// What was read.
        read: usize,
        /// What there was.
        length: usize,
    },
}

impl DecodeError {
    /// The status that tells a client.
    pub const fn status(&self) -> Status {
        match self.reason {
            Reason::Magic(_) => Status::InvalidMagic,
            Reason::Version(_) => Status::UnknownVersion,
            Reason::Opcode(_) => Status::UnknownOpcode,
            _ => Status::ParseError,
        }
    }
}

/// A request that cannot be read, and how to say so.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{error}")]
pub struct RequestError {
    /// The request's id, 0 if it could not be read.
    pub id: u64,
    /// Its version, if that could be read.
    pub version: Option<ProtocolVersion>,
    /// What is wrong with it.
    #[source]
    pub error: DecodeError,
}

pub(crate) type Result<T> = std::result::Result<T, DecodeError>;

pub(crate) const fn error<T>(at: usize, reason: Reason) -> Result<T> {
    Err(DecodeError { at, reason })
}
