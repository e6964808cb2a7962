//! Conversion of literals and parameters by Java's rules.

use std::collections::BTreeMap;

use protox::prost_reflect::{EnumDescriptor, Kind};

use crate::error::{QueryErrorKind, nearest};
use crate::syntax::LiteralSource;
use crate::value::{Scalar, Value};
use consort_protostream::Wrapped;

pub(crate) struct FieldContext {
    pub(crate) name: String,
    pub(crate) scalar: Scalar,
    pub(crate) of_enum: Option<EnumDescriptor>,
}

impl FieldContext {
    pub(crate) fn of(name: String, scalar: Scalar, kind: Option<&Kind>) -> Self {
        let of_enum = match kind {
            Some(Kind::Enum(of)) => Some(of.clone()),
            _ => None,
        };
        Self { name, scalar, of_enum }
    }

    pub(crate) fn value(
        &self,
        given: &LiteralSource,
        parameters: &BTreeMap<String, Wrapped>,
    ) -> Result<Value<'static>, QueryErrorKind> {
        match given {
            LiteralSource::Text(text) => self.written(text),
            LiteralSource::Parameter(name) => {
                let given = parameters.get(name).ok_or_else(|| QueryErrorKind::Unset(name.clone()))?;
                self.parameter(given).ok_or_else(|| QueryErrorKind::Parameter {
                    name: name.clone(),
                    value: describe(given),
                    field: self.name.clone(),
                })
            }
        }
    }

    fn written(&self, text: &str) -> Result<Value<'static>, QueryErrorKind> {
        let number = || QueryErrorKind::Number(text.to_owned());
        if let Some(of) = &self.of_enum {
            return self.of_enum(of, text);
        }
        Ok(match self.scalar {
            Scalar::Int => Value::Int(text.parse().map_err(|_| number())?),
            Scalar::Long => Value::Long(text.parse().map_err(|_| number())?),
            Scalar::Float => Value::Float(float(text).ok_or_else(number)?),
            Scalar::Double => Value::Double(float(text).ok_or_else(number)?),
            // Any number other than zero is true.
            Scalar::Bool => match text.parse::<i32>() {
                Ok(number) => Value::Bool(number != 0),
                Err(_) if text.eq_ignore_ascii_case("true") => Value::Bool(true),
                Err(_) if text.eq_ignore_ascii_case("false") => Value::Bool(false),
                Err(_) => return Err(QueryErrorKind::Bool(text.to_owned())),
            },
            Scalar::Text => Value::Text(text.to_owned().into()),
            Scalar::Bytes => {
                let (name, has) = (self.name.clone(), self.scalar.describe());
                return Err(QueryErrorKind::Kind {
                    name,
                    has,
                    wanted: "a value from text (use a parameter with bytes)",
                });
            }
        })
    }

    fn of_enum(&self, of: &EnumDescriptor, text: &str) -> Result<Value<'static>, QueryErrorKind> {
        let found = match text.parse() {
            Ok(number) => of.get_value(number),
            Err(_) => of.get_value_by_name(text),
        };
        found.map(|value| Value::Int(value.number())).ok_or_else(|| {
            let names: Vec<String> = of.values().map(|value| value.name().to_owned()).collect();
            let nearest = nearest(text, names.iter().map(String::as_str));
            QueryErrorKind::Enum { value: text.to_owned(), of: of.full_name().to_owned(), nearest }
        })
    }

    /// Numbers as by Java's casts, or from strings.
    fn parameter(&self, given: &Wrapped) -> Option<Value<'static>> {
        let text = match given {
            Wrapped::Text(text) => Some(text.as_str()),
            _ => None,
        };
        if let Some(text) = text
            && self.scalar != Scalar::Bytes
        {
            let is_flag = self.scalar == Scalar::Bool;
            let is_true = || Value::Bool(text.eq_ignore_ascii_case("true"));
            return if is_flag { Some(is_true()) } else { self.written(text).ok() };
        }
        Some(match (self.scalar, given) {
            (Scalar::Text, given) => Value::Text(given.to_text()?.into()),
            (Scalar::Bytes, Wrapped::Bytes(bytes)) => Value::Bytes(bytes.to_vec().into()),
            (Scalar::Bool, Wrapped::Bool(is)) => Value::Bool(*is),
            (Scalar::Int, given) => match number(given)? {
                Number::Whole(number) => Value::Int(number as i32),
                Number::Broken(number) => Value::Int(number as i32),
            },
            (Scalar::Long, given) => match number(given)? {
                Number::Whole(number) => Value::Long(number),
                Number::Broken(number) => Value::Long(number as i64),
            },
            (Scalar::Float, given) => match number(given)? {
                Number::Whole(number) => Value::Float(number as f32),
                Number::Broken(number) => Value::Float(number as f32),
            },
            (Scalar::Double, given) => match number(given)? {
                Number::Whole(number) => Value::Double(number as f64),
                Number::Broken(number) => Value::Double(number),
            },
            _ => return None,
        })
    }
}

enum Number {
    Whole(i64),
    Broken(f64),
}

fn number(given: &Wrapped) -> Option<Number> {
    Some(match given {
        Wrapped::Double(number) => Number::Broken(*number),
        Wrapped::Float(number) => Number::Broken((*number).into()),
        Wrapped::Integer(_, number) => Number::Whole(*number),
        Wrapped::Unsigned(..) => match Value::from(given.clone()) {
            Value::Int(number) => Number::Whole(number.into()),
            Value::Long(number) => Number::Whole(number),
            _ => return None,
        },
        _ => return None,
    })
}

/// As Java, with an optional type suffix.
fn float<T: std::str::FromStr>(text: &str) -> Option<T> {
    let text = text.trim();
    let digits = text
        .strip_suffix(['f', 'F', 'd', 'D'])
        .filter(|digits| digits.ends_with(|last: char| !last.is_alphabetic()));
    digits.unwrap_or(text).parse().ok()
}

fn describe(given: &Wrapped) -> String {
    const DESCRIBED_MAX: usize = 60;
    match given {
        Wrapped::Text(text) => {
            format!("the string '{}'", text.chars().take(DESCRIBED_MAX).collect::<String>())
        }
        given => given.to_text().unwrap_or_else(|| "bytes".to_owned()),
    }
}
