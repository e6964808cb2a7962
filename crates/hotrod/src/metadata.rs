//! Metadata of entries (facts section 2.2).

use bytes::Bytes;

use crate::error::Result;
use crate::layout::{Field, Fields, RequestContext};
use crate::limits::Kind;
use crate::output::Output;
use crate::reader::Reader;
use crate::version::ProtocolVersion;

/// A span with its beginning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timed {
    /// In milliseconds since 1970.
    pub since: i64,
    /// In seconds.
    pub seconds: u32,
}

/// The version and lifetime of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Metadata {
    /// `None` for unlimited.
    pub lifespan: Option<Timed>,
    /// `None` for unlimited.
    pub max_idle: Option<Timed>,
    /// The version.
    pub version: i64,
}

pub(crate) const FIELD: Field = Field::Choice("metadata", layout);

const INFINITE_LIFESPAN: u8 = 1;
const INFINITE_MAX_IDLE: u8 = 2;

const fn layout(flags: u8) -> Option<Fields> {
    const SPAN: Field = Field::VInt("span");
    match flags {
        0 => Some(&[Field::Fixed(8), SPAN, Field::Fixed(8), SPAN, Field::Fixed(8)]),
        INFINITE_LIFESPAN | INFINITE_MAX_IDLE => Some(&[Field::Fixed(8), SPAN, Field::Fixed(8)]),
        3 => Some(&[Field::Fixed(8)]),
        _ => None,
    }
}

impl Metadata {
    /// Without expiration.
    pub const fn immortal(version: i64) -> Self {
        Self { lifespan: None, max_idle: None, version }
    }

    pub(crate) fn read(from: &mut Reader) -> Result<Self> {
        let flags = from.u8()?;
        let mut timed = |infinite| {
            let is_infinite = flags & infinite != 0;
            (!is_infinite).then(|| Ok(Timed { since: from.i64()?, seconds: from.vint()? })).transpose()
        };
        let (lifespan, max_idle) = (timed(INFINITE_LIFESPAN)?, timed(INFINITE_MAX_IDLE)?);
        Ok(Self { lifespan, max_idle, version: from.i64()? })
    }

    pub(crate) fn write(&self, out: &mut Output) {
        let lifespan = if self.lifespan.is_none() { INFINITE_LIFESPAN } else { 0 };
        let max_idle = if self.max_idle.is_none() { INFINITE_MAX_IDLE } else { 0 };
        out.u8(lifespan | max_idle);
        for timed in [self.lifespan, self.max_idle].into_iter().flatten() {
            out.i64(timed.since);
            out.vint(timed.seconds);
        }
        out.i64(self.version);
    }
}

/// A key's value before a write, or the current one of a failed write.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Previous {
    /// From 4.0 on.
    pub metadata: Option<Metadata>,
    /// An empty value looks like none.
    pub value: Bytes,
}

pub(crate) const PREVIOUS: Field = Field::Sub(previous);

fn previous(context: RequestContext) -> Fields {
    const BOTH: Fields = &[FIELD, Field::Array(Kind::Value)];
    if context.version >= ProtocolVersion::V4_0 { BOTH } else { &BOTH[1..] }
}

/// For no previous value.
const NONE: Metadata = Metadata::immortal(-1);

impl Previous {
    pub(crate) fn read(from: &mut Reader, version: ProtocolVersion) -> Result<Option<Self>> {
        let has_metadata = version >= ProtocolVersion::V4_0;
        let metadata = has_metadata.then(|| Metadata::read(from)).transpose()?;
        let value = from.array()?;
        Ok((!value.is_empty()).then_some(Self { metadata, value }))
    }

    pub(crate) fn write(previous: Option<&Self>, out: &mut Output, version: ProtocolVersion) {
        if version >= ProtocolVersion::V4_0 {
            previous.and_then(|previous| previous.metadata).unwrap_or(NONE).write(out);
        }
        match previous {
            Some(previous) => out.array(&previous.value),
            None => out.vint(0),
        }
    }
}
