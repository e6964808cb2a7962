//! Many keys and whole caches (facts section 2.4).

use bytes::Bytes;

use crate::error::Result;
use crate::expiration::{self, Expiration};
use crate::header::RequestHeader;
use crate::layout::{Count, Field, Fields, RequestContext};
use crate::opcode::Opcode;
use crate::ops::{KEY, NOTHING, VALUE};
use crate::output::Output;
use crate::reader::Reader;
use crate::version::ProtocolVersion;

/// A request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// Remove all entries.
    Clear,
    /// Count the entries.
    Size,
    /// Get so many entries; zero for all.
    BulkGet(u32),
    /// Get the keys. Servers ignore the scope.
    BulkGetKeys(u32),
    /// Put these entries.
    PutAll(Expiration, Vec<(Bytes, Bytes)>),
    /// Get the values of these keys.
    GetAll(Vec<Bytes>),
}

/// A response with data.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Response {
    /// SIZE.
    Size(u64),
    /// BULK_GET.
    Entries(Vec<(Bytes, Bytes)>),
    /// BULK_GET_KEYS.
    Keys(Vec<Bytes>),
    /// GET_ALL: each existing entry once.
    Found(Vec<(Bytes, Bytes)>),
    /// A [`Listing`].
    Written(Vec<Bytes>),
}

/// Entries or keys, encoded as they are found, without further memory.
#[derive(Default, Debug)]
pub struct Listing {
    out: Output,
    count: usize,
}

impl Listing {
    /// Adds for BULK_GET.
    pub fn entry(&mut self, key: &Bytes, value: &Bytes) {
        self.out.u8(1);
        self.out.array(key);
        self.out.array(value);
    }

    /// Adds for BULK_GET_KEYS.
    pub fn key(&mut self, key: &Bytes) {
        self.out.u8(1);
        self.out.array(key);
    }

    /// Adds for GET_ALL.
    pub fn found(&mut self, key: &Bytes, value: &Bytes) {
        self.count += 1;
        self.out.array(key);
        self.out.array(value);
    }

    /// Returns the size in bytes.
    pub fn len(&self) -> usize {
        self.out.len()
    }

    /// Returns whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.out.is_empty()
    }

    /// Returns the response of keys or entries.
    pub fn into_response(mut self) -> Response {
        self.out.u8(0);
        Response::Written(self.out.into_pieces().into())
    }

    /// Returns the response to GET_ALL.
    pub fn into_found(self) -> Response {
        let mut pieces = self.out.into_pieces();
        let mut count = Output::new();
        count.count(self.count);
        pieces.push_front(count.into_bytes());
        Response::Written(pieces.into())
    }
}

const ENTRIES: Field = Field::Counted("entries", Count::Items, &[KEY, VALUE]);

pub(crate) const fn request_layout(opcode: Opcode) -> Fields {
    match opcode {
        Opcode::BulkGet => &[Field::VInt("count")],
        Opcode::BulkGetKeys => &[Field::VInt("scope")],
        Opcode::PutAll => &[expiration::FIELD, ENTRIES],
        Opcode::GetAll => &[Field::Counted("keys", Count::Items, &[KEY])],
        _ => NOTHING,
    }
}

pub(crate) const fn response_layout(opcode: Opcode) -> Fields {
    match opcode {
        Opcode::Size => &[Field::VLong("size")],
        Opcode::BulkGet => &[Field::WhileOne("entries", &[KEY, VALUE])],
        Opcode::BulkGetKeys => &[Field::WhileOne("keys", &[KEY])],
        Opcode::GetAll => &[ENTRIES],
        _ => NOTHING,
    }
}

fn entry(from: &mut Reader) -> Result<(Bytes, Bytes)> {
    Ok((from.array()?, from.array()?))
}

fn write_entries(entries: &[(Bytes, Bytes)], out: &mut Output) {
    out.count(entries.len());
    for (key, value) in entries {
        out.array(key);
        out.array(value);
    }
}

impl Request {
    /// Returns the operation.
    pub const fn opcode(&self) -> Opcode {
        match self {
            Self::Clear => Opcode::Clear,
            Self::Size => Opcode::Size,
            Self::BulkGet(_) => Opcode::BulkGet,
            Self::BulkGetKeys(_) => Opcode::BulkGetKeys,
            Self::PutAll(..) => Opcode::PutAll,
            Self::GetAll(_) => Opcode::GetAll,
        }
    }

    pub(crate) const fn items(&self) -> usize {
        match self {
            Self::PutAll(_, entries) => 2 * entries.len(),
            Self::GetAll(keys) => keys.len(),
            _ => 0,
        }
    }

    pub(crate) const fn expiration(&self) -> Option<&Expiration> {
        match self {
            Self::PutAll(expiration, _) => Some(expiration),
            _ => None,
        }
    }

    pub(crate) fn read(opcode: Opcode, header: &RequestHeader, from: &mut Reader) -> Result<Self> {
        Ok(match opcode {
            Opcode::Size => Self::Size,
            Opcode::BulkGet => Self::BulkGet(from.vint()?),
            Opcode::BulkGetKeys => Self::BulkGetKeys(from.vint()?),
            Opcode::PutAll => {
                let expiration = Expiration::read(from, header.version, header.flags)?;
                Self::PutAll(expiration, from.counted(entry)?)
            }
            Opcode::GetAll => Self::GetAll(from.counted(Reader::array)?),
            _ => Self::Clear,
        })
    }

    pub(crate) fn write(&self, out: &mut Output, version: ProtocolVersion) {
        match self {
            Self::Clear | Self::Size => {}
            Self::BulkGet(number) | Self::BulkGetKeys(number) => out.vint(*number),
            Self::PutAll(expiration, entries) => {
                expiration.write(out, version);
                write_entries(entries, out);
            }
            Self::GetAll(keys) => {
                out.count(keys.len());
                keys.iter().for_each(|key| out.array(key));
            }
        }
    }
}

impl Response {
    /// For non-empty layouts.
    pub(crate) fn read(context: RequestContext, from: &mut Reader) -> Result<Self> {
        Ok(match context.opcode {
            Opcode::Size => Self::Size(from.vlong()?),
            Opcode::BulkGet => Self::Entries(from.while_one(entry)?),
            Opcode::BulkGetKeys => Self::Keys(from.while_one(Reader::array)?),
            _ => Self::Found(from.counted(entry)?),
        })
    }

    pub(crate) fn write(&self, out: &mut Output) {
        match self {
            Self::Size(size) => out.vlong(*size),
            Self::Entries(entries) => {
                for (key, value) in entries {
                    out.u8(1);
                    out.array(key);
                    out.array(value);
                }
                out.u8(0);
            }
            Self::Keys(keys) => {
                for key in keys {
                    out.u8(1);
                    out.array(key);
                }
                out.u8(0);
            }
            Self::Found(entries) => write_entries(entries, out),
            Self::Written(pieces) => pieces.iter().for_each(|piece| out.bytes(piece)),
        }
    }
}
