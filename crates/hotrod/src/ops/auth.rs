//! SASL authentication (facts sections 2.6 and 5.1).

use bytes::Bytes;

use crate::error::Result;
use crate::layout::{Count, Field, Fields, RequestContext};
use crate::opcode::Opcode;
use crate::ops::{NOTHING, TEXT, VALUE};
use crate::output::Output;
use crate::reader::Reader;
use crate::text::Text;

/// A request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// List the mechanisms.
    Mechanisms,
    /// The mechanism and the client's message. Later steps may omit the name.
    Step(Text, Bytes),
}

/// A response.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Response {
    /// The mechanisms.
    Mechanisms(Vec<Text>),
    /// The server's message.
    Challenge(Bytes),
    /// Success; clients ignore a final message here: a final server message is a challenge, too.
    Done,
}

pub(crate) const fn request_layout(opcode: Opcode) -> Fields {
    match opcode {
        Opcode::Auth => &[TEXT, VALUE],
        _ => NOTHING,
    }
}

pub(crate) const fn response_layout(opcode: Opcode) -> Fields {
    match opcode {
        Opcode::Auth => &[Field::Fixed(1), VALUE],
        _ => &[Field::Counted("mechanisms", Count::Params, &[TEXT])],
    }
}

impl Request {
    /// Returns the operation.
    pub const fn opcode(&self) -> Opcode {
        match self {
            Self::Mechanisms => Opcode::AuthMechList,
            Self::Step(..) => Opcode::Auth,
        }
    }

    pub(crate) fn read(opcode: Opcode, from: &mut Reader) -> Result<Self> {
        Ok(match opcode {
            Opcode::Auth => Self::Step(from.text()?, from.array()?),
            _ => Self::Mechanisms,
        })
    }

    pub(crate) fn write(&self, out: &mut Output) {
        if let Self::Step(mechanism, response) = self {
            out.text(mechanism);
            out.array(response);
        }
    }
}

impl Response {
    pub(crate) fn read(context: RequestContext, from: &mut Reader) -> Result<Self> {
        if context.opcode == Opcode::AuthMechList {
            return Ok(Self::Mechanisms(from.counted(Reader::text)?));
        }
        let is_done = from.bool()?;
        let challenge = from.array()?;
        Ok(if is_done { Self::Done } else { Self::Challenge(challenge) })
    }

    pub(crate) fn write(&self, out: &mut Output) {
        match self {
            Self::Mechanisms(names) => {
                out.count(names.len());
                names.iter().for_each(|name| out.text(name));
            }
            Self::Challenge(challenge) => {
                out.bool(false);
                out.array(challenge);
            }
            Self::Done => {
                out.bool(true);
                out.vint(0);
            }
        }
    }
}
