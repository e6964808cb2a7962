//! The column `coord`, which tables of other databases' making have as a number or a text.

use std::error::Error;

use tokio_postgres::types::{FromSql, Type};

/// A boolean, also as a number other than 0, or as a text such as `true`.
pub(super) struct Flag(pub(super) bool);

impl<'a> FromSql<'a> for Flag {
    fn from_sql(kind: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self(match *kind {
            Type::BOOL => bool::from_sql(kind, raw)?,
            Type::INT2 | Type::INT4 | Type::INT8 => raw.iter().any(|byte| *byte != 0),
            _ => {
                let text = <&str>::from_sql(kind, raw)?.trim().to_ascii_lowercase();
                matches!(&*text, "t" | "true" | "y" | "yes" | "on" | "1")
            }
        }))
    }

    fn accepts(kind: &Type) -> bool {
        matches!(
            *kind,
            Type::BOOL | Type::INT2 | Type::INT4 | Type::INT8 | Type::VARCHAR | Type::TEXT | Type::BPCHAR
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_texts_are_booleans() {
        for (kind, raw, expected) in [
            (Type::BOOL, &[1][..], true),
            (Type::BOOL, &[0], false),
            (Type::INT4, &[0, 0, 0, 1], true),
            (Type::INT2, &[0, 0], false),
            (Type::BPCHAR, b"Y  ", true),
            (Type::VARCHAR, b"true", true),
            (Type::TEXT, b"f", false),
        ] {
            assert!(Flag::accepts(&kind));
            assert_eq!(Flag::from_sql(&kind, raw).unwrap().0, expected, "{kind}");
        }
        assert!(!Flag::accepts(&Type::BYTEA));
    }
}
