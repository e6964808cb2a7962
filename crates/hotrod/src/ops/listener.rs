//! Clients that want to hear of changes, near caches among them (facts sections 2.7 and 2.12).

use bytes::Bytes;

use crate::bit_set::BitSet;
use crate::error::Result;
use crate::layout::{RequestContext, Field, Fields};
use crate::limits::Kind;
use crate::opcode::Opcode;
use crate::ops::{NOTHING, VALUE};
use crate::output::Output;
use crate::reader::Reader;
use crate::text::Text;
use crate::version::ProtocolVersion;

/// The filter of Consort's servers that lets entries through whose key begins with its one parameter.
pub const KEY_PREFIX: &str = "consort-key-prefix";

/// The filter of Consort's servers that lets entries through whose value begins with its one parameter. A listener is told
/// of a change if the value before it or the value after it does.
pub const VALUE_PREFIX: &str = "consort-value-prefix";

/// The converter of all servers that tells values, too: [`key_value_version`](super::event::key_value_version). With a
/// parameter, whatever that is, it also tells what was there of what is gone.
pub const KEY_VALUE_VERSION: &str = "___eager-key-value-version-converter";

/// A filter or a converter that the server has, and what it is given: 255 parameters at most.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Factory {
    /// Its name.
    pub name: Text,
    /// Its parameters.
    pub params: Vec<Bytes>,
}

/// Which kinds of events a listener wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Interests(u32);

impl Interests {
    /// Entries that are new.
    pub const CREATED: u32 = 1;
    /// Entries with another value.
    pub const MODIFIED: u32 = 2;
    /// Entries that were taken away.
    pub const REMOVED: u32 = 4;
    /// Entries whose time was over.
    pub const EXPIRED: u32 = 8;
    /// Everything.
    pub const ALL: Self = Self(15);
    /// What a near cache wants to know.
    pub const NEAR_CACHE: Self = Self(14);

    /// From the number that clients send: zero is everything.
    pub const fn from_bits(bits: u32) -> Self {
        if bits & 15 == 0 { Self::ALL } else { Self(bits & 15) }
    }

    /// Whether it wants this kind.
    pub const fn contains(self, kind: u32) -> bool {
        self.0 & kind != 0
    }
}

/// A listener to be added.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listener {
    /// By which its events are told.
    pub id: Bytes,
    /// Whether it wants an event for everything that is there.
    pub includes_state: bool,
    /// Decides which events it wants. Named by some.
    pub filter: Option<Factory>,
    /// Decides what is in an event.
    pub converter: Option<Factory>,
    /// Whether filter and converter work on bytes as they are. From 2.1 on.
    pub is_raw: bool,
    /// What it wants. From 2.6 on.
    pub interests: Interests,
}

/// What is asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// A listener is added.
    Add(Listener),
    /// One is removed.
    Remove(Bytes),
    /// One is added for a near cache whose keys are in a filter of so many bits, in none if that is zero.
    AddBloom(Bytes, u32),
    /// The bits of this connection's filter for the cache are these.
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
    /// Which operation it is.
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
