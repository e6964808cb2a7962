//! Operations on one key (facts section 2.3).

use bytes::Bytes;

use crate::error::Result;
use crate::expiration::{self, Expiration};
use crate::header::RequestHeader;
use crate::layout::{Field, Fields, RequestContext};
use crate::metadata::{self, Metadata, PREVIOUS, Previous};
use crate::opcode::Opcode;
use crate::ops::{KEY, NOTHING, VALUE};
use crate::output::Output;
use crate::reader::Reader;
use crate::status::Status;
use crate::version::ProtocolVersion;

/// A value to put.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Assignment {
    /// The key.
    pub key: Bytes,
    /// The expiration.
    pub expiration: Expiration,
    /// The value.
    pub value: Bytes,
}

/// A request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// Put unconditionally.
    Put(Assignment),
    /// Put if absent.
    PutIfAbsent(Assignment),
    /// Put if present.
    Replace(Assignment),
    /// Put if this is the version.
    ReplaceIfUnmodified(Assignment, i64),
    /// Remove.
    Remove(Bytes),
    /// Remove if this is the version.
    RemoveIfUnmodified(Bytes, i64),
    /// Check for a value.
    ContainsKey(Bytes),
    /// Get the value.
    Get(Bytes),
    /// Get value and version.
    GetWithVersion(Bytes),
    /// Get value and metadata.
    GetWithMetadata(Bytes),
}

/// A response with data.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Response {
    /// Before a write, or the current one of a failed write.
    Previous(Option<Previous>),
    /// GET.
    Value(Bytes),
    /// GET_WITH_VERSION.
    WithVersion(i64, Bytes),
    /// GET_WITH_METADATA.
    WithMetadata(Metadata, Bytes),
}

pub(crate) const fn request_layout(opcode: Opcode) -> Fields {
    match opcode {
        Opcode::Put | Opcode::PutIfAbsent | Opcode::Replace => &[KEY, expiration::FIELD, VALUE],
        Opcode::ReplaceIfUnmodified => &[KEY, expiration::FIELD, Field::Fixed(8), VALUE],
        Opcode::RemoveIfUnmodified => &[KEY, Field::Fixed(8)],
        _ => &[KEY],
    }
}

pub(crate) const fn response_layout(opcode: Opcode, status: Status) -> Fields {
    match (opcode, status) {
        (Opcode::ContainsKey, _) => NOTHING,
        (Opcode::Get, Status::Success | Status::SuccessObject) => &[VALUE],
        (Opcode::GetWithVersion, Status::Success | Status::SuccessObject) => &[Field::Fixed(8), VALUE],
        (Opcode::GetWithMetadata, Status::Success | Status::SuccessObject) => &[metadata::FIELD, VALUE],
        (Opcode::Get | Opcode::GetWithVersion | Opcode::GetWithMetadata, _) => NOTHING,
        (_, status) if status.has_previous() => &[PREVIOUS],
        _ => NOTHING,
    }
}

impl Request {
    /// Returns the operation.
    pub const fn opcode(&self) -> Opcode {
        match self {
            Self::Put(_) => Opcode::Put,
            Self::PutIfAbsent(_) => Opcode::PutIfAbsent,
            Self::Replace(_) => Opcode::Replace,
            Self::ReplaceIfUnmodified(..) => Opcode::ReplaceIfUnmodified,
            Self::Remove(_) => Opcode::Remove,
            Self::RemoveIfUnmodified(..) => Opcode::RemoveIfUnmodified,
            Self::ContainsKey(_) => Opcode::ContainsKey,
            Self::Get(_) => Opcode::Get,
            Self::GetWithVersion(_) => Opcode::GetWithVersion,
            Self::GetWithMetadata(_) => Opcode::GetWithMetadata,
        }
    }

    /// Returns the key.
    pub const fn key(&self) -> &Bytes {
        match self {
            Self::Put(to) | Self::PutIfAbsent(to) | Self::Replace(to) | Self::ReplaceIfUnmodified(to, _) => {
                &to.key
            }
            Self::Remove(key)
            | Self::RemoveIfUnmodified(key, _)
            | Self::ContainsKey(key)
            | Self::Get(key)
            | Self::GetWithVersion(key)
            | Self::GetWithMetadata(key) => key,
        }
    }

    pub(crate) const fn expiration(&self) -> Option<&Expiration> {
        match self {
            Self::Put(to) | Self::PutIfAbsent(to) | Self::Replace(to) | Self::ReplaceIfUnmodified(to, _) => {
                Some(&to.expiration)
            }
            _ => None,
        }
    }

    pub(crate) fn read(opcode: Opcode, header: &RequestHeader, from: &mut Reader) -> Result<Self> {
        let assignment = |from: &mut Reader| Assignment::read(from, header);
        Ok(match opcode {
            Opcode::Put => Self::Put(assignment(from)?),
            Opcode::PutIfAbsent => Self::PutIfAbsent(assignment(from)?),
            Opcode::Replace => Self::Replace(assignment(from)?),
            Opcode::ReplaceIfUnmodified => {
                let key = from.array()?;
                let expiration = Expiration::read(from, header.version, header.flags)?;
                let version = from.i64()?;
                Self::ReplaceIfUnmodified(Assignment { key, expiration, value: from.array()? }, version)
            }
            Opcode::Remove => Self::Remove(from.array()?),
            Opcode::RemoveIfUnmodified => Self::RemoveIfUnmodified(from.array()?, from.i64()?),
            Opcode::ContainsKey => Self::ContainsKey(from.array()?),
            Opcode::GetWithVersion => Self::GetWithVersion(from.array()?),
            Opcode::GetWithMetadata => Self::GetWithMetadata(from.array()?),
            _ => Self::Get(from.array()?),
        })
    }

    pub(crate) fn write(&self, out: &mut Output, version: ProtocolVersion) {
        match self {
            Self::Put(to) | Self::PutIfAbsent(to) | Self::Replace(to) => to.write(out, version),
            Self::ReplaceIfUnmodified(to, unmodified) => {
                out.array(&to.key);
                to.expiration.write(out, version);
                out.i64(*unmodified);
                out.array(&to.value);
            }
            Self::RemoveIfUnmodified(key, unmodified) => {
                out.array(key);
                out.i64(*unmodified);
            }
            Self::Remove(key)
            | Self::ContainsKey(key)
            | Self::Get(key)
            | Self::GetWithVersion(key)
            | Self::GetWithMetadata(key) => out.array(key),
        }
    }
}

impl Assignment {
    pub(crate) fn read(from: &mut Reader, header: &RequestHeader) -> Result<Self> {
        Ok(Self {
            key: from.array()?,
            expiration: Expiration::read(from, header.version, header.flags)?,
            value: from.array()?,
        })
    }

    pub(crate) fn write(&self, out: &mut Output, version: ProtocolVersion) {
        out.array(&self.key);
        self.expiration.write(out, version);
        out.array(&self.value);
    }
}

impl Response {
    /// For non-empty layouts.
    pub(crate) fn read(context: RequestContext, from: &mut Reader) -> Result<Self> {
        Ok(match context.opcode {
            Opcode::Get => Self::Value(from.array()?),
            Opcode::GetWithVersion => Self::WithVersion(from.i64()?, from.array()?),
            Opcode::GetWithMetadata => Self::WithMetadata(Metadata::read(from)?, from.array()?),
            _ => Self::Previous(Previous::read(from, context.version)?),
        })
    }

    pub(crate) fn write(&self, out: &mut Output, version: ProtocolVersion) {
        match self {
            Self::Previous(previous) => Previous::write(previous.as_ref(), out, version),
            Self::Value(value) => out.array(value),
            Self::WithVersion(version, value) => {
                out.i64(*version);
                out.array(value);
            }
            Self::WithMetadata(metadata, value) => {
                metadata.write(out);
                out.array(value);
            }
        }
    }
}
