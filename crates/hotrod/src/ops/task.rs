//! Tasks and queries (facts sections 2.8 and 2.9).

use bytes::Bytes;

use crate::error::Result;
use crate::layout::{Count, Field, Fields};
use crate::opcode::Opcode;
use crate::ops::{NOTHING, TEXT, VALUE};
use crate::output::Output;
use crate::reader::Reader;
use crate::text::Text;

/// A request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// Execute with at most 127 parameters.
    Exec(Text, Vec<(Text, Bytes)>),
    /// A query in the header's value type.
    Query(Bytes),
}

pub(crate) const fn request_layout(opcode: Opcode) -> Fields {
    match opcode {
        Opcode::Query => &[VALUE],
        _ => &[TEXT, Field::Counted("parameters", Count::Params, &[TEXT, VALUE])],
    }
}

/// Permissions depend on the task's name.
pub(crate) const fn head_layout(opcode: Opcode) -> Fields {
    match opcode {
        Opcode::Exec => &[TEXT],
        _ => NOTHING,
    }
}

pub(crate) const RESPONSE: Fields = &[VALUE];

impl Request {
    /// Returns the operation.
    pub const fn opcode(&self) -> Opcode {
        match self {
            Self::Exec(..) => Opcode::Exec,
            Self::Query(_) => Opcode::Query,
        }
    }

    pub(crate) fn read(opcode: Opcode, from: &mut Reader) -> Result<Self> {
        Ok(match opcode {
            Opcode::Query => Self::Query(from.array()?),
            _ => Self::Exec(from.text()?, from.counted(|from| Ok((from.text()?, from.array()?)))?),
        })
    }

    pub(crate) fn write(&self, out: &mut Output) {
        match self {
            Self::Query(query) => out.array(query),
            Self::Exec(name, params) => {
                out.text(name);
                out.count(params.len());
                for (name, value) in params {
                    out.text(name);
                    out.array(value);
                }
            }
        }
    }
}
