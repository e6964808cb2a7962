//! Media types (facts section 1.3).

use std::fmt;

use crate::error::Result;
use crate::layout::{Count, Field, Fields};
use crate::limits::Kind;
use crate::output::Output;
use crate::reader::Reader;
use crate::text::Text;

/// A media type.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub enum MediaType {
    /// Plain bytes.
    #[default]
    Unspecified,
    /// A type with a number.
    Known {
        /// Unknown numbers are kept, too.
        id: u32,
        /// The parameters.
        params: Params,
    },
    /// A type with a name.
    Named {
        /// `type/subtype`.
        name: Text,
        /// The parameters.
        params: Params,
    },
}

/// Names and values.
pub type Params = Vec<(Text, Text)>;

const NAMES: &[(u32, &str)] = &[
    (1, "application/x-java-object"),
    (2, "application/json"),
    (3, "application/octet-stream"),
    (4, "application/pdf"),
    (5, "application/rtf"),
    (6, "application/zip"),
    (7, "image/gif"),
    (8, "image/jpeg"),
    (9, "image/png"),
    (10, "text/css"),
    (11, "text/csv"),
    (12, "application/x-protostream"),
    (13, "text/plain"),
    (14, "text/html"),
    (15, "application/x-jboss-marshalling"),
    (17, "application/unknown"),
];

const PARAMS: Field =
    Field::Counted("parameters", Count::Params, &[Field::Array(Kind::Text), Field::Array(Kind::Text)]);

pub(crate) const FIELD: Field = Field::Choice("media type", layout);

const fn layout(byte: u8) -> Option<Fields> {
    match byte {
        0 => Some(&[]),
        1 => Some(&[Field::VInt("media type"), PARAMS]),
        2 => Some(&[Field::Array(Kind::Text), PARAMS]),
        _ => None,
    }
}

impl MediaType {
    /// `application/octet-stream`.
    pub const OCTET_STREAM: Self = Self::Known { id: 3, params: Vec::new() };
    /// `application/x-protostream`.
    pub const PROTOSTREAM: Self = Self::Known { id: 12, params: Vec::new() };
    /// `text/plain`.
    pub const TEXT: Self = Self::Known { id: 13, params: Vec::new() };

    /// Returns the type of this name, without parameters.
    pub fn named(name: &str) -> Self {
        match NAMES.iter().find(|(_, known)| *known == name) {
            Some(&(id, _)) => Self::Known { id, params: Vec::new() },
            None => Self::Named { name: name.into(), params: Vec::new() },
        }
    }

    /// Returns the name, if known.
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Unspecified => None,
            Self::Known { id, .. } => NAMES.iter().find(|(known, _)| known == id).map(|(_, name)| *name),
            Self::Named { name, .. } => Some(name.as_str().split(';').next().unwrap_or_default().trim()),
        }
    }

    pub(crate) fn read(from: &mut Reader) -> Result<Self> {
        let params = |from: &mut Reader| from.counted(|from| Ok((from.text()?, from.text()?)));
        match from.u8()? {
            0 => Ok(Self::Unspecified),
            1 => Ok(Self::Known { id: from.vint()?, params: params(from)? }),
            2 => Ok(Self::Named { name: from.text()?, params: params(from)? }),
            other => from.invalid("media type", other),
        }
    }

    pub(crate) fn write(&self, out: &mut Output) {
        let params = match self {
            Self::Unspecified => return out.u8(0),
            Self::Known { id, params } => {
                out.u8(1);
                out.vint(*id);
                params
            }
            Self::Named { name, params } => {
                out.u8(2);
                out.text(name);
                params
            }
        };
        out.count(params.len());
        for (name, value) in params {
            out.text(name);
            out.text(value);
        }
    }
}

impl fmt::Display for MediaType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let params = match self {
            Self::Unspecified => return f.write_str("application/unknown"),
            Self::Known { id, params } => {
                match self.name() {
                    Some(name) => f.write_str(name)?,
                    None => write!(f, "application/x-{id}")?,
                }
                params
            }
            Self::Named { name, params } => {
                f.write_str(name.as_str())?;
                params
            }
        };
        params.iter().try_for_each(|(name, value)| write!(f, "; {}={}", name.as_str(), value.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn media_types_are_found_by_name_and_number() {
        assert_eq!(MediaType::named("application/x-protostream"), MediaType::PROTOSTREAM);
        assert_eq!(MediaType::TEXT.name(), Some("text/plain"));
        assert_eq!(MediaType::named("application/xml").name(), Some("application/xml"));
        let with_params = MediaType::Named { name: "text/x; charset=utf-8".into(), params: Vec::new() };
        assert_eq!(with_params.name(), Some("text/x"));
        assert_eq!(MediaType::Known { id: 16, params: Vec::new() }.name(), None);
    }
}
