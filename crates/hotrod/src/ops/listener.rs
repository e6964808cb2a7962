//! Listeners, including near caches (facts sections 2.7 and 2.12).

use bytes::Bytes;

use crate::bit_set::BitSet;
use crate::error::Result;
use crate::layout::{Field, Fields, RequestContext};
use crate::limits::Kind;
use crate::opcode::Opcode;
use crate::ops::{NOTHING, VALUE};
use crate::output::Output;
use crate::reader::Reader;
use crate::text::Text;
use crate::version::ProtocolVersion;

/// The filter of keys by their beginning, its one parameter, on Consort's servers.
pub const KEY_PREFIX: &str = "consort-key-prefix";

/// The filter of values by their beginning, on Consort's servers; an event passes if the previous or the new value does.
pub const VALUE_PREFIX: &str = "consort-value-prefix";

/// The converter that adds values: [`key_value_version`](super::event::key_value_version). With any parameter, removals
/// have the previous value.
pub const KEY_VALUE_VERSION: &str = "___eager-key-value-version-converter";

/// A filter or converter of the server, with at most 255 parameters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Factory {
    /// The name.
    pub name: Text,
    /// The parameters.
    pub params: Vec<Bytes>,
}

/// Kinds of events.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Interests(u32);

impl Interests {
    /// Created entries.
    pub const CREATED: u32 = 1;
    /// Modified entries.
    pub const MODIFIED: u32 = 2;
    /// Removed entries.
    pub const REMOVED: u32 = 4;
    /// Expired entries.
    pub const EXPIRED: u32 = 8;
    /// All kinds.
    pub const ALL: Self = Self(15);
    /// For near caches.
    pub const NEAR_CACHE: Self = Self(14);

    /// Converts a client's number: zero means all.
    pub const fn from_bits(bits: u32) -> Self {
        if bits & 15 == 0 { Self::ALL } else { Self(bits & 15) }
    }

    /// Returns whether it has this kind.
    pub const fn contains(self, kind: u32) -> bool {
        self.0 & kind != 0
    }
}

/// A listener to add.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listener {
    /// The id in its events.
    pub id: Bytes,
    /// Existing entries are sent first.
    pub includes_state: bool,
    /// The filter.
    pub filter: Option<Factory>,
    /// The converter.
    pub converter: Option<Factory>,
    /// For raw bytes. From 2.1 on.
    pub is_raw: bool,
    /// From 2.6 on.
    pub interests: Interests,
}

/// A request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// Add a listener.
    Add(Listener),
    /// Remove a listener.
    Remove(Bytes),
    /// Add a near cache with so many filter bits; zero for none.
    AddBloom(Bytes, u32),
    /// Replace the bits of the connection's filter.
    UpdateBloom(BitSet),
}

pub(crate) const ID: Field = Field::Array(Kind::Id);
pub(crate) const FACTORY_PARAMS: Fields = &[Field::CountedInByte(&[VALUE])];
const FACTORY: Field = Field::IfNotEmpty(Kind::Text, FACTORY_PARAMS);

pub(crate) const fn request_layout(opcode: Opcode) -> Fields {
    match opcode {
        Opcode::AddClientListener => {
            &[ID, Field::Fixed(1), FACTORY, FACTORY, Field::Sub(is_raw), Field::Sub(interests)]
        }
        Opcode::AddBloomListener => &[ID, Field::VInt("bits")],
        Opcode::UpdateBloomFilter => &[Field::Array(Kind::Bits)],
        _ => &[ID],
    }
}

fn is_raw(context: RequestContext) -> Fields {
    if context.version >= ProtocolVersion::V2_1 { &[Field::Fixed(1)] } else { NOTHING }
}

fn interests(context: RequestContext) -> Fields {
    if context.version >= ProtocolVersion::V2_6 { &[Field::VInt("interests")] } else { NOTHING }
}

impl Factory {
    fn read(from: &mut Reader) -> Result<Option<Self>> {
        let name = from.text()?;
        if name.is_empty() { Ok(None) } else { Self::read_params(name, from).map(Some) }
    }

    pub(crate) fn read_params(name: Text, from: &mut Reader) -> Result<Self> {
        Ok(Self { name, params: from.counted_in_byte(Reader::array)? })
    }

    fn write(factory: Option<&Self>, out: &mut Output) {
        match factory {
            Some(factory) => {
                out.text(&factory.name);
                factory.write_params(out);
            }
            None => out.vint(0),
        }
    }

    pub(crate) fn write_params(&self, out: &mut Output) {
        out.count_in_byte(self.params.len());
        self.params.iter().for_each(|param| out.array(param));
    }
}

impl Listener {
    fn read(from: &mut Reader, version: ProtocolVersion) -> Result<Self> {
        Ok(Self {
            id: from.array()?,
            includes_state: from.bool()?,
            filter: Factory::read(from)?,
            converter: Factory::read(from)?,
            is_raw: version >= ProtocolVersion::V2_1 && from.bool()?,
            interests: match version >= ProtocolVersion::V2_6 {
                true => Interests::from_bits(from.vint()?),
                false => Interests::ALL,
            },
        })
    }

    fn write(&self, out: &mut Output, version: ProtocolVersion) {
        out.array(&self.id);
        out.bool(self.includes_state);
        Factory::write(self.filter.as_ref(), out);
        Factory::write(self.converter.as_ref(), out);
        if version >= ProtocolVersion::V2_1 {
            out.bool(self.is_raw);
        }
        if version >= ProtocolVersion::V2_6 {
            out.vint(self.interests.0);
        }
    }
}

impl Request {
    /// Returns the operation.
    pub const fn opcode(&self) -> Opcode {
        match self {
            Self::Add(_) => Opcode::AddClientListener,
            Self::Remove(_) => Opcode::RemoveClientListener,
            Self::AddBloom(..) => Opcode::AddBloomListener,
            Self::UpdateBloom(_) => Opcode::UpdateBloomFilter,
        }
    }

    pub(crate) fn read(opcode: Opcode, from: &mut Reader, version: ProtocolVersion) -> Result<Self> {
        Ok(match opcode {
            Opcode::AddClientListener => Self::Add(Listener::read(from, version)?),
            Opcode::AddBloomListener => Self::AddBloom(from.array()?, from.vint()?),
            Opcode::UpdateBloomFilter => Self::UpdateBloom(BitSet::from_bytes(from.array()?)),
            _ => Self::Remove(from.array()?),
        })
    }

    pub(crate) fn write(&self, out: &mut Output, version: ProtocolVersion) {
        match self {
            Self::Add(listener) => listener.write(out, version),
            Self::Remove(id) => out.array(id),
            Self::AddBloom(id, bits) => {
                out.array(id);
                out.vint(*bits);
            }
            Self::UpdateBloom(bits) => out.array(bits.as_bytes()),
        }
    }
}
