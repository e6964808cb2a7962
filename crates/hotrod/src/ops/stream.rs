//! Values in chunks: the form of 2.6, and that of 4.1 with a request per chunk (facts section 2.11).

use bytes::Bytes;

use crate::error::Result;
use crate::expiration::{self, Expiration};
use crate::header::RequestHeader;
use crate::layout::{Field, Fields, RequestContext};
use crate::limits::Kind;
use crate::metadata::{self, Metadata, PREVIOUS, Previous};
use crate::opcode::Opcode;
use crate::ops::{KEY, NOTHING, VALUE};
use crate::output::Output;
use crate::reader::Reader;
use crate::status::Status;
use crate::version::ProtocolVersion;

/// A chunked write.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Target {
    /// The key.
    pub key: Bytes,
    /// The expiration.
    pub expiration: Expiration,
    /// Zero for unconditional; negative for put-if-absent; else the required version.
    pub version: i64,
}

/// A request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// GET_STREAM: from this byte on.
    Get(Bytes, u32),
    /// PUT_STREAM: chunks are not empty.
    Put(Target, Vec<Bytes>),
    /// Read in chunks of this size.
    StartGet(Bytes, u32),
    /// Get the next chunk.
    NextGet(i32),
    /// End the read.
    EndGet(i32),
    /// Start a write.
    StartPut(Target),
    /// Send a chunk, and whether it is the last.
    NextPut(i32, bool, Bytes),
    /// Cancel the write.
    EndPut(i32),
}

/// A chunk that is read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Piece {
    /// The stream.
    pub stream: i32,
    /// Whether it is the last.
    pub is_last: bool,
    /// In the first chunk.
    pub metadata: Option<Metadata>,
    /// The bytes.
    pub bytes: Bytes,
}

/// A response with data.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Response {
    /// GET_STREAM.
    Value(Metadata, Bytes),
    /// PUT_STREAM with a requested previous value.
    Previous(Option<Previous>),
    /// A chunk.
    Piece(Piece),
    /// The id of a write.
    Started(i32),
}

const STREAM: Field = Field::Fixed(4);
const TARGET: Field = Field::Sub(target);

fn target(_: RequestContext) -> Fields {
    &[KEY, expiration::FIELD, Field::Fixed(8)]
}

pub(crate) const fn request_layout(opcode: Opcode) -> Fields {
    match opcode {
        Opcode::GetStream => &[KEY, Field::VInt("offset")],
        Opcode::PutStream => &[TARGET, Field::Chunks(Kind::Value)],
        Opcode::StartGetStream => &[KEY, Field::VInt("length of pieces")],
        Opcode::StartPutStream => &[TARGET],
        Opcode::NextPutStream => &[STREAM, Field::Fixed(1), VALUE],
        _ => &[STREAM],
    }
}

pub(crate) const fn response_layout(opcode: Opcode, status: Status) -> Fields {
    match (opcode, status) {
        (Opcode::GetStream, Status::Success) => &[metadata::FIELD, VALUE],
        (Opcode::PutStream, status) if status.has_previous() => &[PREVIOUS],
        (Opcode::StartGetStream, Status::Success) => &[STREAM, Field::Fixed(1), metadata::FIELD, VALUE],
        (Opcode::NextGetStream, Status::Success) => &[STREAM, Field::Fixed(1), VALUE],
        (Opcode::StartPutStream, Status::Success) => &[STREAM],
        _ => NOTHING,
    }
}

impl Target {
    fn read(from: &mut Reader, header: &RequestHeader) -> Result<Self> {
        Ok(Self {
            key: from.array()?,
            expiration: Expiration::read(from, header.version, header.flags)?,
            version: from.i64()?,
        })
    }

    fn write(&self, out: &mut Output, version: ProtocolVersion) {
        out.array(&self.key);
        self.expiration.write(out, version);
        out.i64(self.version);
    }
}

impl Request {
    /// Returns the operation.
    pub const fn opcode(&self) -> Opcode {
        match self {
            Self::Get(..) => Opcode::GetStream,
            Self::Put(..) => Opcode::PutStream,
            Self::StartGet(..) => Opcode::StartGetStream,
            Self::NextGet(_) => Opcode::NextGetStream,
            Self::EndGet(_) => Opcode::EndGetStream,
            Self::StartPut(_) => Opcode::StartPutStream,
            Self::NextPut(..) => Opcode::NextPutStream,
            Self::EndPut(_) => Opcode::EndPutStream,
        }
    }

    /// Returns the key; continued streams have none.
    pub const fn key(&self) -> Option<&Bytes> {
        match self {
            Self::Get(key, _) | Self::StartGet(key, _) => Some(key),
            Self::Put(target, _) | Self::StartPut(target) => Some(&target.key),
            Self::NextGet(_) | Self::EndGet(_) | Self::NextPut(..) | Self::EndPut(_) => None,
        }
    }

    pub(crate) const fn expiration(&self) -> Option<&Expiration> {
        match self {
            Self::Put(target, _) | Self::StartPut(target) => Some(&target.expiration),
            _ => None,
        }
    }

    pub(crate) fn read(opcode: Opcode, header: &RequestHeader, from: &mut Reader) -> Result<Self> {
        Ok(match opcode {
            Opcode::GetStream => Self::Get(from.array()?, from.vint()?),
            Opcode::PutStream => {
                let target = Target::read(from, header)?;
                let mut chunks = Vec::new();
                loop {
                    let chunk = from.array()?;
                    if chunk.is_empty() {
                        break Self::Put(target, chunks);
                    }
                    chunks.push(chunk);
                }
            }
            Opcode::StartGetStream => Self::StartGet(from.array()?, from.vint()?),
            Opcode::NextGetStream => Self::NextGet(from.i32()?),
            Opcode::StartPutStream => Self::StartPut(Target::read(from, header)?),
            Opcode::NextPutStream => Self::NextPut(from.i32()?, from.bool()?, from.array()?),
            Opcode::EndPutStream => Self::EndPut(from.i32()?),
            _ => Self::EndGet(from.i32()?),
        })
    }

    pub(crate) fn write(&self, out: &mut Output, version: ProtocolVersion) {
        match self {
            Self::Get(key, number) | Self::StartGet(key, number) => {
                out.array(key);
                out.vint(*number);
            }
            Self::Put(target, chunks) => {
                target.write(out, version);
                chunks.iter().filter(|chunk| !chunk.is_empty()).for_each(|chunk| out.array(chunk));
                out.vint(0);
            }
            Self::NextGet(stream) | Self::EndGet(stream) | Self::EndPut(stream) => out.i32(*stream),
            Self::StartPut(target) => target.write(out, version),
            Self::NextPut(stream, is_last, bytes) => {
                out.i32(*stream);
                out.bool(*is_last);
                out.array(bytes);
            }
        }
    }
}

impl Response {
    /// For non-empty layouts.
    pub(crate) fn read(context: RequestContext, from: &mut Reader) -> Result<Self> {
        Ok(match context.opcode {
            Opcode::GetStream => Self::Value(Metadata::read(from)?, from.array()?),
            Opcode::PutStream => Self::Previous(Previous::read(from, context.version)?),
            Opcode::StartGetStream | Opcode::NextGetStream => {
                let is_first = context.opcode == Opcode::StartGetStream;
                Self::Piece(Piece {
                    stream: from.i32()?,
                    is_last: from.bool()?,
                    metadata: is_first.then(|| Metadata::read(from)).transpose()?,
                    bytes: from.array()?,
                })
            }
            _ => Self::Started(from.i32()?),
        })
    }

    pub(crate) fn write(&self, out: &mut Output, version: ProtocolVersion) {
        match self {
            Self::Value(metadata, value) => {
                metadata.write(out);
                out.array(value);
            }
            Self::Previous(previous) => Previous::write(previous.as_ref(), out, version),
            Self::Piece(piece) => {
                out.i32(piece.stream);
                out.bool(piece.is_last);
                piece.metadata.iter().for_each(|metadata| metadata.write(out));
                out.array(&piece.bytes);
            }
            Self::Started(stream) => out.i32(*stream),
        }
    }
}
