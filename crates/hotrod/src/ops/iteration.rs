//! Iterations, in batches (facts section 2.10).

use bytes::Bytes;
use smallvec::SmallVec;

use crate::bit_set::BitSet;
use crate::error::Result;
use crate::layout::{Field, Fields, RequestContext};
use crate::limits::Kind;
use crate::metadata::{self, Metadata};
use crate::opcode::Opcode;
use crate::ops::listener::{FACTORY_PARAMS, Factory};
use crate::ops::{KEY, NOTHING, TEXT};
use crate::output::Output;
use crate::reader::Reader;
use crate::status::Status;
use crate::text::Text;
use crate::version::ProtocolVersion;

/// The converter to empty values; servers must support it.
pub const TO_EMPTY_BYTES: &str =
    "org.infinispan.server.hotrod.HotRodServer$ToEmptyBytesKeyValueFilterConverter";

/// The parameters of an iteration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Start {
    /// `None` for all.
    pub segments: Option<BitSet>,
    /// Filters and converts.
    pub filter: Option<Factory>,
    /// Entries per batch.
    pub batch: u32,
    /// From 2.4 on.
    pub with_metadata: bool,
}

/// A request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// Start an iteration.
    Start(Start),
    /// Get the next batch.
    Next(Text),
    /// End the iteration.
    End(Text),
}

/// A value, or a converter's outputs.
pub type Values = SmallVec<[Bytes; 1]>;

/// An entry of an iteration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// If requested. From 2.5 on.
    pub metadata: Option<Metadata>,
    /// The key.
    pub key: Bytes,
    /// A value, or a converter's outputs.
    pub values: Values,
}

/// A batch of an iteration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Batch {
    /// Complete segments.
    pub finished: BitSet,
    /// Values per entry: one, or from 2.4 on another number.
    pub projections: u32,
    /// Empty at the end.
    pub entries: Vec<Entry>,
}

/// A response with data.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Response {
    /// The iteration's id.
    Started(Text),
    /// A batch.
    Batch(Batch),
}

pub(crate) const fn request_layout(opcode: Opcode) -> Fields {
    match opcode {
        Opcode::IterationStart => &[
            Field::OptionalArray(Kind::Bits),
            Field::IfPresent(Kind::Text, FACTORY_PARAMS),
            Field::VInt("batch"),
            Field::Sub(with_metadata),
        ],
        _ => &[TEXT],
    }
}

fn with_metadata(context: RequestContext) -> Fields {
    if context.version >= ProtocolVersion::V2_4 { &[Field::Fixed(1)] } else { NOTHING }
}

pub(crate) const fn response_layout(opcode: Opcode, status: Status) -> Fields {
    match (opcode, status) {
        (Opcode::IterationStart, Status::Success) => &[TEXT],
        (Opcode::IterationNext, _) => {
            &[Field::Array(Kind::Bits), Field::Entries(&[Field::Sub(of_entry), KEY, Field::Projected])]
        }
        _ => NOTHING,
    }
}

fn of_entry(context: RequestContext) -> Fields {
    let has_metadata = context.version >= ProtocolVersion::V2_5;
    if has_metadata { &[Field::Choice("metadata of an entry", optional_metadata)] } else { NOTHING }
}

const fn optional_metadata(marker: u8) -> Option<Fields> {
    match marker {
        0 => Some(NOTHING),
        1 => Some(&[metadata::FIELD]),
        _ => None,
    }
}

impl Start {
    /// Returns the first version that can encode it. Clients of 2.3 do not send the number of a filter's parameters, which
    /// servers read (facts section 2.10). Responses have metadata from 2.5 on.
    pub const fn since(&self) -> ProtocolVersion {
        if self.with_metadata {
            ProtocolVersion::V2_5
        } else if self.filter.is_some() {
            ProtocolVersion::V2_4
        } else {
            ProtocolVersion::V2_3
        }
    }
}

impl Request {
    /// Returns the operation.
    pub const fn opcode(&self) -> Opcode {
        match self {
            Self::Start(_) => Opcode::IterationStart,
            Self::Next(_) => Opcode::IterationNext,
            Self::End(_) => Opcode::IterationEnd,
        }
    }

    pub(crate) fn read(opcode: Opcode, from: &mut Reader, version: ProtocolVersion) -> Result<Self> {
        Ok(match opcode {
            Opcode::IterationStart => Self::Start(Start {
                segments: from.optional_array()?.map(BitSet::from_bytes),
                filter: from.optional_text()?.map(|name| Factory::read_params(name, from)).transpose()?,
                batch: from.vint()?,
                with_metadata: version >= ProtocolVersion::V2_4 && from.bool()?,
            }),
            Opcode::IterationNext => Self::Next(from.text()?),
            _ => Self::End(from.text()?),
        })
    }

    pub(crate) fn write(&self, out: &mut Output, version: ProtocolVersion) {
        let start = match self {
            Self::Start(start) => start,
            Self::Next(id) | Self::End(id) => return out.text(id),
        };
        out.optional_array(start.segments.as_ref().map(BitSet::as_bytes));
        out.optional_array(start.filter.as_ref().map(|filter| filter.name.as_bytes()));
        if let Some(filter) = &start.filter {
            filter.write_params(out);
        }
        out.vint(start.batch);
        if version >= ProtocolVersion::V2_4 {
            out.bool(start.with_metadata);
        }
    }
}

impl Batch {
    fn read(from: &mut Reader, version: ProtocolVersion) -> Result<Self> {
        let finished = BitSet::from_bytes(from.array()?);
        let count = from.vint()?;
        let has_projections = count > 0 && version >= ProtocolVersion::V2_4;
        let projections = if has_projections { from.vint()? } else { 1 };
        let entries = from.times(count, |from| {
            let has_metadata = version >= ProtocolVersion::V2_5 && from.bool()?;
            Ok(Entry {
                metadata: has_metadata.then(|| Metadata::read(from)).transpose()?,
                key: from.array()?,
                values: (0..projections).map(|_| from.array()).collect::<Result<_>>()?,
            })
        })?;
        Ok(Self { finished, projections, entries })
    }

    fn write(&self, out: &mut Output, version: ProtocolVersion) {
        out.array(self.finished.as_bytes());
        out.count(self.entries.len());
        if !self.entries.is_empty() && version >= ProtocolVersion::V2_4 {
            out.vint(self.projections);
        }
        for entry in &self.entries {
            if version >= ProtocolVersion::V2_5 {
                out.bool(entry.metadata.is_some());
                entry.metadata.iter().for_each(|metadata| metadata.write(out));
            }
            out.array(&entry.key);
            entry.values.iter().for_each(|value| out.array(value));
        }
    }
}

impl Response {
    /// For non-empty layouts.
    pub(crate) fn read(context: RequestContext, from: &mut Reader) -> Result<Self> {
        Ok(match context.opcode {
            Opcode::IterationStart => Self::Started(from.text()?),
            _ => Self::Batch(Batch::read(from, context.version)?),
        })
    }

    pub(crate) fn write(&self, out: &mut Output, version: ProtocolVersion) {
        match self {
            Self::Started(id) => out.text(id),
            Self::Batch(batch) => batch.write(out, version),
        }
    }
}
