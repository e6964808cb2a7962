//! PING and STATS (facts sections 2.4 and 2.5).

use crate::error::Result;
use crate::layout::{Count, Field, Fields, RequestContext};
use crate::media_type::{self, MediaType};
use crate::opcode::Opcode;
use crate::ops::{NOTHING, TEXT};
use crate::output::Output;
use crate::reader::Reader;
use crate::text::Text;
use crate::version::ProtocolVersion;

/// A request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request {
    /// Check server and cache.
    Ping,
    /// Get statistics.
    Stats,
}

/// A response with data.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Response {
    /// PING from 2.9 on.
    Pong(Pong),
    /// STATS: names and numbers.
    Stats(Vec<(Text, Text)>),
}

/// A cache and its server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pong {
    /// The media type of keys.
    pub key_type: MediaType,
    /// The media type of values.
    pub value_type: MediaType,
    /// The newest version as a byte, perhaps unknown here. From 3.0 on.
    pub newest: u8,
    /// Request opcodes, each once, some perhaps unknown here. From 3.0 on.
    pub opcodes: Vec<u16>,
}

impl Pong {
    /// For a cache without media types.
    pub fn untyped(newest: u8, opcodes: Vec<u16>) -> Self {
        Self { key_type: MediaType::Unspecified, value_type: MediaType::Unspecified, newest, opcodes }
    }
}

pub(crate) const fn response_layout(opcode: Opcode) -> Fields {
    match opcode {
        Opcode::Ping => &[Field::Sub(pong)],
        _ => &[Field::Counted("statistics", Count::Items, &[TEXT, TEXT])],
    }
}

fn pong(context: RequestContext) -> Fields {
    const TYPE: Field = media_type::FIELD;
    if context.version < ProtocolVersion::V2_9 {
        NOTHING
    } else if context.version < ProtocolVersion::V3_0 {
        &[TYPE, TYPE]
    } else {
        &[TYPE, TYPE, Field::Fixed(1), Field::Counted("opcodes", Count::Items, &[Field::Fixed(2)])]
    }
}

impl Request {
    /// Returns the operation.
    pub const fn opcode(&self) -> Opcode {
        match self {
            Self::Ping => Opcode::Ping,
            Self::Stats => Opcode::Stats,
        }
    }

    pub(crate) const fn read(opcode: Opcode) -> Self {
        match opcode {
            Opcode::Stats => Self::Stats,
            _ => Self::Ping,
        }
    }
}

impl Response {
    /// `None` in versions without a body.
    pub(crate) fn read(context: RequestContext, from: &mut Reader) -> Result<Option<Self>> {
        if context.opcode == Opcode::Stats {
            return Ok(Some(Self::Stats(from.counted(|from| Ok((from.text()?, from.text()?)))?)));
        }
        if context.version < ProtocolVersion::V2_9 {
            return Ok(None);
        }
        let (key_type, value_type) = (MediaType::read(from)?, MediaType::read(from)?);
        let tells_more = context.version >= ProtocolVersion::V3_0;
        let newest = if tells_more { from.u8()? } else { 0 };
        let opcodes = if tells_more { from.counted(Reader::u16)? } else { Vec::new() };
        Ok(Some(Self::Pong(Pong { key_type, value_type, newest, opcodes })))
    }

    pub(crate) fn write(&self, out: &mut Output, version: ProtocolVersion) {
        match self {
            Self::Stats(stats) => {
                out.count(stats.len());
                for (name, value) in stats {
                    out.text(name);
                    out.text(value);
                }
            }
            Self::Pong(pong) => {
                if version >= ProtocolVersion::V2_9 {
                    pong.key_type.write(out);
                    pong.value_type.write(out);
                }
                if version >= ProtocolVersion::V3_0 {
                    out.u8(pong.newest);
                    out.count(pong.opcodes.len());
                    pong.opcodes.iter().for_each(|opcode| out.u16(*opcode));
                }
            }
        }
    }
}
