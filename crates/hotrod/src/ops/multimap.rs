//! Multimaps (facts section 2.15).

use bytes::Bytes;

use crate::error::Result;
use crate::expiration::{self, Expiration};
use crate::header::RequestHeader;
use crate::layout::{Count, Field, Fields, RequestContext};
use crate::metadata::{self, Metadata};
use crate::opcode::Opcode;
use crate::ops::map::Assignment;
use crate::ops::{KEY, NOTHING, VALUE};
use crate::output::Output;
use crate::reader::Reader;
use crate::status::Status;
use crate::version::ProtocolVersion;

/// An action on a multimap.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Get a key's values.
    Get(Bytes),
    /// Get them with metadata.
    GetWithMetadata(Bytes),
    /// Add a value.
    Put(Assignment),
    /// Remove all values of a key.
    RemoveKey(Bytes),
    /// Remove one value of a key.
    RemoveEntry(Assignment),
    /// Count the values.
    Size,
    /// Check for an entry.
    ContainsEntry(Assignment),
    /// Check for a key.
    ContainsKey(Bytes),
    /// Check for a value.
    ContainsValue(Expiration, Bytes),
}

/// A request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// The action.
    pub action: Action,
    /// Equal values of a key are allowed. From 4.0 on.
    pub allows_duplicates: bool,
}

/// A response with data.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Response {
    /// A key's values.
    Values(Vec<Bytes>),
    /// Values with metadata.
    WithMetadata(Metadata, Vec<Bytes>),
    /// The number of values.
    Size(u64),
    /// Whether the action succeeded.
    Is(bool),
}

const DUPLICATES: Field = Field::Sub(duplicates);
const VALUES: Field = Field::Counted("values", Count::Items, &[VALUE]);

fn duplicates(context: RequestContext) -> Fields {
    if context.version >= ProtocolVersion::V4_0 { &[Field::Fixed(1)] } else { NOTHING }
}

pub(crate) const fn request_layout(opcode: Opcode) -> Fields {
    match opcode {
        Opcode::MultimapPut | Opcode::MultimapRemoveEntry | Opcode::MultimapContainsEntry => {
            &[KEY, expiration::FIELD, VALUE, DUPLICATES]
        }
        Opcode::MultimapContainsValue => &[expiration::FIELD, VALUE, DUPLICATES],
        Opcode::MultimapSize => &[DUPLICATES],
        _ => &[KEY, DUPLICATES],
    }
}

pub(crate) const fn response_layout(opcode: Opcode, status: Status) -> Fields {
    match (opcode, status) {
        (Opcode::MultimapGet, Status::Success) => &[VALUES],
        (Opcode::MultimapGetWithMetadata, Status::Success) => &[metadata::FIELD, VALUES],
        (Opcode::MultimapSize, Status::Success) => &[Field::VLong("size")],
        (
            Opcode::MultimapRemoveKey
            | Opcode::MultimapRemoveEntry
            | Opcode::MultimapContainsEntry
            | Opcode::MultimapContainsKey
            | Opcode::MultimapContainsValue,
            Status::Success,
        ) => &[Field::Fixed(1)],
        _ => NOTHING,
    }
}

impl Request {
    /// Returns the operation.
    pub const fn opcode(&self) -> Opcode {
        match &self.action {
            Action::Get(_) => Opcode::MultimapGet,
            Action::GetWithMetadata(_) => Opcode::MultimapGetWithMetadata,
            Action::Put(_) => Opcode::MultimapPut,
            Action::RemoveKey(_) => Opcode::MultimapRemoveKey,
            Action::RemoveEntry(_) => Opcode::MultimapRemoveEntry,
            Action::Size => Opcode::MultimapSize,
            Action::ContainsEntry(_) => Opcode::MultimapContainsEntry,
            Action::ContainsKey(_) => Opcode::MultimapContainsKey,
            Action::ContainsValue(..) => Opcode::MultimapContainsValue,
        }
    }

    /// Returns the key, if there is one.
    pub const fn key(&self) -> Option<&Bytes> {
        match &self.action {
            Action::Get(key)
            | Action::GetWithMetadata(key)
            | Action::RemoveKey(key)
            | Action::ContainsKey(key) => Some(key),
            Action::Put(to) | Action::RemoveEntry(to) | Action::ContainsEntry(to) => Some(&to.key),
            Action::Size | Action::ContainsValue(..) => None,
        }
    }

    pub(crate) const fn expiration(&self) -> Option<&Expiration> {
        match &self.action {
            Action::Put(to) | Action::RemoveEntry(to) | Action::ContainsEntry(to) => Some(&to.expiration),
            Action::ContainsValue(expiration, _) => Some(expiration),
            _ => None,
        }
    }

    pub(crate) fn read(opcode: Opcode, header: &RequestHeader, from: &mut Reader) -> Result<Self> {
        let action = match opcode {
            Opcode::MultimapGetWithMetadata => Action::GetWithMetadata(from.array()?),
            Opcode::MultimapPut => Action::Put(Assignment::read(from, header)?),
            Opcode::MultimapRemoveKey => Action::RemoveKey(from.array()?),
            Opcode::MultimapRemoveEntry => Action::RemoveEntry(Assignment::read(from, header)?),
            Opcode::MultimapSize => Action::Size,
            Opcode::MultimapContainsEntry => Action::ContainsEntry(Assignment::read(from, header)?),
            Opcode::MultimapContainsKey => Action::ContainsKey(from.array()?),
            Opcode::MultimapContainsValue => {
                let expiration = Expiration::read(from, header.version, header.flags)?;
                Action::ContainsValue(expiration, from.array()?)
            }
            _ => Action::Get(from.array()?),
        };
        let allows_duplicates = header.version >= ProtocolVersion::V4_0 && from.bool()?;
        Ok(Self { action, allows_duplicates })
    }

    pub(crate) fn write(&self, out: &mut Output, version: ProtocolVersion) {
        match &self.action {
            Action::Get(key)
            | Action::GetWithMetadata(key)
            | Action::RemoveKey(key)
            | Action::ContainsKey(key) => out.array(key),
            Action::Put(to) | Action::RemoveEntry(to) | Action::ContainsEntry(to) => to.write(out, version),
            Action::Size => {}
            Action::ContainsValue(expiration, value) => {
                expiration.write(out, version);
                out.array(value);
            }
        }
        if version >= ProtocolVersion::V4_0 {
            out.bool(self.allows_duplicates);
        }
    }
}

impl Response {
    /// For non-empty layouts.
    pub(crate) fn read(opcode: Opcode, from: &mut Reader) -> Result<Self> {
        Ok(match opcode {
            Opcode::MultimapGet => Self::Values(from.counted(Reader::array)?),
            Opcode::MultimapGetWithMetadata => {
                Self::WithMetadata(Metadata::read(from)?, from.counted(Reader::array)?)
            }
            Opcode::MultimapSize => Self::Size(from.vlong()?),
            _ => Self::Is(from.bool()?),
        })
    }

    pub(crate) fn write(&self, out: &mut Output) {
        let values = match self {
            Self::Size(size) => return out.vlong(*size),
            Self::Is(is) => return out.bool(*is),
            Self::Values(values) => values,
            Self::WithMetadata(metadata, values) => {
                metadata.write(out);
                values
            }
        };
        out.count(values.len());
        values.iter().for_each(|value| out.array(value));
    }
}
