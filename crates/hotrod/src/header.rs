//! The header of requests (facts section 1.2).

use std::fmt;
use std::ops::{BitOr, BitOrAssign};

use bytes::Bytes;

use crate::error::{DecodeError, Reason, Result, error};
use crate::intelligence::Intelligence;
use crate::layout::{Count, Field, Fields, RequestContext, vlong};
use crate::limits::Kind;
use crate::media_type::{self, MediaType};
use crate::opcode::Opcode;
use crate::output::Output;
use crate::reader::Reader;
use crate::text::Text;
use crate::version::ProtocolVersion;

/// The first byte.
pub const REQUEST_MAGIC: u8 = 0xA0;

/// The flags of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Flags(pub u32);

impl Flags {
    /// No flags.
    pub const NONE: Self = Self(0);
    /// Return the previous value.
    pub const FORCE_RETURN_PREVIOUS: Self = Self(0x01);
    /// Before 2.2: a lifespan of 0 is the default.
    pub const DEFAULT_LIFESPAN: Self = Self(0x02);
    /// Before 2.2: a max idle of 0 is the default.
    pub const DEFAULT_MAX_IDLE: Self = Self(0x04);
    /// Skip stores.
    pub const SKIP_CACHE_LOAD: Self = Self(0x08);
    /// Skip indexes.
    pub const SKIP_INDEXING: Self = Self(0x10);
    /// Skip listeners.
    pub const SKIP_LISTENER_NOTIFICATION: Self = Self(0x20);

    /// Returns whether all of these are set.
    pub const fn contains(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }
}

impl BitOr for Flags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for Flags {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

impl fmt::Debug for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// The parameter of a client that understands close notices. A close notice is an error response with the id 0 and the status
/// [`crate::Status::IllegalLifecycle`], the last message of a connection: the server never begins requests without a response.
/// Consort's servers send it after the parameter, with any value, on the same connection.
pub const CLOSE_NOTICE_PARAM: &str = "consort.close-notice";

/// A request's header, without the opcode.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RequestHeader {
    /// Repeated in the response.
    pub id: u64,
    /// The protocol version.
    pub version: ProtocolVersion,
    /// Empty for none.
    pub cache: Text,
    /// The flags.
    pub flags: Flags,
    /// The use of topologies.
    pub intelligence: Intelligence,
    /// The client's; -1, -2, or 0 in JavaScript clients, for none.
    pub topology_id: i32,
    /// For keys, from 2.8 on.
    pub key_type: MediaType,
    /// For values, from 2.8 on.
    pub value_type: MediaType,
    /// From 4.0 on.
    pub params: Vec<(Text, Bytes)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RequestStart {
    pub(crate) id: u64,
    pub(crate) version: ProtocolVersion,
    /// PING's for an unknown operation: only the header of the request can be read.
    pub(crate) opcode: Opcode,
    pub(crate) unknown: Option<UnknownOpcode>,
    /// Where the header continues.
    pub(crate) end: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct UnknownOpcode {
    byte: u8,
    at: usize,
}

impl UnknownOpcode {
    pub(crate) const fn error(self) -> DecodeError {
        DecodeError { at: self.at, reason: Reason::Opcode(self.byte) }
    }
}

/// The id and its end, as far as they have arrived, even if the rest is invalid.
pub(crate) fn magic_and_id(bytes: &[u8], magic: u8) -> Result<Option<(u64, usize)>> {
    match bytes.first() {
        None => Ok(None),
        Some(&byte) if byte == magic => vlong(bytes, 1, "id"),
        Some(&byte) => error(0, Reason::Magic(byte)),
    }
}

impl RequestStart {
    pub(crate) fn read(bytes: &[u8]) -> Result<Option<Self>> {
        let Some((id, at)) = magic_and_id(bytes, REQUEST_MAGIC)? else { return Ok(None) };
        let Some(&version) = bytes.get(at) else { return Ok(None) };
        let Some(version) = ProtocolVersion::of_request(version) else {
            return error(at, Reason::Version(version));
        };
        let at = at + 1;
        let Some(&byte) = bytes.get(at) else { return Ok(None) };
        let (opcode, unknown) = match Opcode::from_request(byte) {
            Some(opcode) => (opcode, None),
            None => (Opcode::Ping, Some(UnknownOpcode { byte, at })),
        };
        Ok(Some(Self { id, version, opcode, unknown, end: at + 1 }))
    }
}

/// After the opcode.
pub(crate) const LAYOUT: Fields = &[
    Field::Array(Kind::Text),
    Field::VInt("flags"),
    Field::Choice("intelligence", intelligence),
    Field::VInt("topology id"),
    Field::Sub(since_2_8),
    Field::Sub(since_4_0),
];

const fn intelligence(byte: u8) -> Option<Fields> {
    if Intelligence::from_byte(byte).is_some() { Some(&[]) } else { None }
}

fn since_2_8(context: RequestContext) -> Fields {
    let has_types = context.version >= ProtocolVersion::V2_8;
    if has_types { &[media_type::FIELD, media_type::FIELD] } else { &[] }
}

fn since_4_0(context: RequestContext) -> Fields {
    const PARAM: Fields = &[Field::Array(Kind::Text), Field::Array(Kind::Text)];
    let has_params = context.version >= ProtocolVersion::V4_0;
    if has_params { &[Field::Counted("parameters", Count::Params, PARAM)] } else { &[] }
}

impl RequestHeader {
    /// Creates a header with defaults.
    pub const fn new(id: u64, version: ProtocolVersion) -> Self {
        Self {
            id,
            version,
            cache: Text::EMPTY,
            flags: Flags::NONE,
            intelligence: Intelligence::Basic,
            topology_id: -1,
            key_type: MediaType::Unspecified,
            value_type: MediaType::Unspecified,
            params: Vec::new(),
        }
    }

    /// After the opcode.
    pub(crate) fn read(from: &mut Reader, start: &RequestStart) -> Result<Self> {
        let RequestStart { id, version, .. } = *start;
        let mut header = Self { cache: from.text()?, flags: Flags(from.vint()?), ..Self::new(id, version) };
        let byte = from.u8()?;
        header.intelligence = match Intelligence::from_byte(byte) {
            Some(intelligence) => intelligence,
            None => return from.invalid("intelligence", byte),
        };
        header.topology_id = from.vint()? as i32;
        if version >= ProtocolVersion::V2_8 {
            header.key_type = MediaType::read(from)?;
            header.value_type = MediaType::read(from)?;
        }
        if version >= ProtocolVersion::V4_0 {
            header.params = from.counted(|from| Ok((from.text()?, from.array()?)))?;
        }
        Ok(header)
    }

    pub(crate) fn write(&self, out: &mut Output, opcode: Opcode, flags: Flags) {
        out.u8(REQUEST_MAGIC);
        out.vlong(self.id);
        out.u8(self.version.byte());
        out.u8(opcode.request());
        out.text(&self.cache);
        out.vint((self.flags | flags).0);
        out.u8(self.intelligence as u8);
        out.vint(self.topology_id as u32);
        if self.version >= ProtocolVersion::V2_8 {
            self.key_type.write(out);
            self.value_type.write(out);
        }
        if self.version >= ProtocolVersion::V4_0 {
            out.count(self.params.len());
            for (name, value) in &self.params {
                out.text(name);
                out.array(value);
            }
        }
    }
}
