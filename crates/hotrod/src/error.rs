//! Invalid messages.

use crate::status::Status;
use crate::version::ProtocolVersion;

/// An invalid message. Unless its operation is unknown, the stream is lost, because the protocol has no message lengths.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("byte {at} of the message: {reason}")]
pub struct DecodeError {
    /// The offset in the message.
    pub at: usize,
    /// The reason.
    pub reason: Reason,
}

/// The reason of a decoding error.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// A wrong first byte.
    #[error("invalid magic byte {0:#04x}")]
    Magic(u8),
    /// An unsupported version.
    #[error("unknown version {0}")]
    Version(u8),
    /// An unknown operation.
    #[error("unknown opcode {0:#04x}")]
    Opcode(u8),
    /// The response to another operation.
    #[error("response opcode {found:#04x} does not match the request; expected {expected:#04x}")]
    OtherOpcode {
        /// Its opcode.
        found: u8,
        /// The expected opcode.
        expected: u8,
    },
    /// A response without a request.
    #[error("no request has the id {0}")]
    UnknownId(u64),
    /// A number that is too long.
    #[error("{0} is not a number")]
    Number(&'static str),
    /// An invalid value.
    #[error("invalid {what}: {value}")]
    Invalid {
        /// The field.
        what: &'static str,
        /// Its value.
        value: u64,
    },
    /// A length above its limit.
    #[error("{what} of length {length} exceeds the limit of {limit}")]
    TooLong {
        /// The field.
        what: &'static str,
        /// In bytes or items.
        length: u64,
        /// The limit.
        limit: u64,
    },
    /// Text that is not UTF-8.
    #[error("text is not UTF-8")]
    Text,
    /// Layout and reader disagree.
    #[error("{read} bytes were read of {length}")]
    Layout {
        /// Bytes read.
        read: usize,
        /// Bytes of the message.
        length: usize,
    },
}

impl DecodeError {
    /// Returns the error response's status.
    pub const fn status(&self) -> Status {
        match self.reason {
            Reason::Magic(_) => Status::InvalidMagic,
            Reason::Version(_) => Status::UnknownVersion,
            Reason::Opcode(_) => Status::UnknownOpcode,
            _ => Status::ParseError,
        }
    }

    /// Returns whether nothing after it can be read. A request with an unknown operation is taken as its header: whatever
    /// follows has to be the next request.
    pub const fn is_stream_lost(&self) -> bool {
        !matches!(self.reason, Reason::Opcode(_))
    }
}

/// An invalid request.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{error}")]
pub struct RequestError {
    /// Its id; 0 if unknown.
    pub id: u64,
    /// Its version, if known.
    pub version: Option<ProtocolVersion>,
    /// The error.
    #[source]
    pub error: DecodeError,
}

pub(crate) type Result<T> = std::result::Result<T, DecodeError>;

pub(crate) const fn error<T>(at: usize, reason: Reason) -> Result<T> {
    Err(DecodeError { at, reason })
}
