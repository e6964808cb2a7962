//! The request of QUERY (facts section 2.9): an unwrapped message, or JSON.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde_json::{Map, Value as Json};

use crate::wire::{LENGTH, Raw, VARINT, field, put_bytes, put_tag, put_varint};
use crate::wrapped::{INT64, Wrapped};

/// A query with parameters and paging.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct QueryRequest {
    /// The Ickle text.
    pub query: String,
    /// Results to skip. A negative number on the wire is an unset one: clients of Infinispan 15 send -1.
    pub offset: Option<i64>,
    /// The most results. A negative number on the wire is an unset one, too.
    pub max: Option<i32>,
    /// The hit count up to which it is exact; unused.
    pub accuracy: Option<i32>,
    /// Only entries of the receiving server.
    pub is_local: bool,
    /// Values by name.
    pub parameters: BTreeMap<String, Wrapped>,
}

/// An invalid request. Nothing was done.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("invalid query request: {0}")]
pub struct RequestError(pub(crate) String);

const QUERY: u32 = 1;
const OFFSET: u32 = 3;
const MAX: u32 = 4;
const PARAMETER: u32 = 5;
const LOCAL: u32 = 6;
const ACCURACY: u32 = 7;
const NAME: u32 = 1;
const VALUE: u32 = 2;

impl QueryRequest {
    /// Returns whether it is a DELETE.
    pub fn is_delete(&self) -> bool {
        self.query.split_whitespace().next().is_some_and(|first| first.eq_ignore_ascii_case("DELETE"))
    }

    /// Decodes a message.
    pub fn read(mut from: &[u8]) -> Result<Self, RequestError> {
        let broken = || RequestError("no protobuf message".to_owned());
        let mut request = Self::default();
        while !from.is_empty() {
            match field(&mut from).ok_or_else(broken)? {
                (QUERY, Raw::Length(query)) => {
                    request.query = String::from_utf8(query.to_vec())
                        .map_err(|_| RequestError("the query is not UTF-8".to_owned()))?;
                }
                (OFFSET, Raw::Varint(number)) => request.offset = set(number.cast_signed()),
                (MAX, Raw::Varint(number)) => request.max = set(number as i32),
                (ACCURACY, Raw::Varint(number)) => request.accuracy = set(number as i32),
                (LOCAL, Raw::Varint(number)) => request.is_local = number != 0,
                (PARAMETER, Raw::Length(parameter)) => {
                    let (name, value) = parameter_of(parameter)?;
                    request.parameters.insert(name, value);
                }
                _ => {}
            }
        }
        Ok(request)
    }

    /// Encodes it as clients do.
    pub fn write(&self) -> Bytes {
        let mut out = Vec::new();
        put_tag(&mut out, QUERY, LENGTH);
        put_bytes(&mut out, self.query.as_bytes());
        let small = |number: i32| i64::from(number);
        let local = self.is_local.then_some(1);
        for (number, value) in [
            (OFFSET, self.offset),
            (MAX, self.max.map(small)),
            (LOCAL, local),
            (ACCURACY, Some(small(self.accuracy.unwrap_or(-1)))),
        ] {
            if let Some(value) = value {
                put_tag(&mut out, number, VARINT);
                put_varint(&mut out, value.cast_unsigned());
            }
        }
        for (name, value) in &self.parameters {
            let mut parameter = Vec::new();
            put_tag(&mut parameter, NAME, LENGTH);
            put_bytes(&mut parameter, name.as_bytes());
            put_tag(&mut parameter, VALUE, LENGTH);
            put_bytes(&mut parameter, &value.write());
            put_tag(&mut out, PARAMETER, LENGTH);
            put_bytes(&mut out, &parameter);
        }
        out.into()
    }

    /// Decodes JSON.
    pub fn from_json(text: &str) -> Result<Self, RequestError> {
        let wrong = |what: &str| RequestError(format!("{what} is invalid"));
        let read: Json = serde_json::from_str(text).map_err(|error| RequestError(error.to_string()))?;
        let object = read.as_object().ok_or_else(|| wrong("the object"))?;
        let number = |name: &str| match object.get(name) {
            None | Some(Json::Null) => Ok(None),
            Some(value) => value.as_i64().map(Some).ok_or_else(|| wrong(name)),
        };
        let small = |name: &str| {
            let number = number(name)?;
            number.map(|number| i32::try_from(number).map_err(|_| wrong(name))).transpose()
        };
        let query = object.get("queryString").and_then(Json::as_str).ok_or_else(|| wrong("queryString"))?;
        let mut parameters = BTreeMap::new();
        for parameter in object.get("namedParameters").and_then(Json::as_array).into_iter().flatten() {
            let (name, value) =
                parameter.as_object().and_then(named).ok_or_else(|| wrong("namedParameters"))?;
            parameters.insert(name, value);
        }
        Ok(Self {
            query: query.to_owned(),
            offset: number("startOffset")?.and_then(set),
            max: small("maxResults")?.and_then(set),
            accuracy: small("hitCountAccuracy")?.and_then(set),
            is_local: object.get("local").and_then(Json::as_bool).unwrap_or(false),
            parameters,
        })
    }
}

/// `None` for a negative number, which clients send for one that is not set.
fn set<N: Default + PartialOrd>(number: N) -> Option<N> {
    (number >= N::default()).then_some(number)
}

fn named(parameter: &Map<String, Json>) -> Option<(String, Wrapped)> {
    let value = match parameter.get("value")? {
        Json::Bool(is) => Wrapped::Bool(*is),
        Json::String(text) => Wrapped::Text(text.clone()),
        Json::Number(number) => match number.as_i64() {
            Some(number) => Wrapped::Integer(INT64, number),
            None => Wrapped::Double(number.as_f64()?),
        },
        _ => return None,
    };
    Some((parameter.get("name")?.as_str()?.to_owned(), value))
}

fn parameter_of(mut from: &[u8]) -> Result<(String, Wrapped), RequestError> {
    let (mut name, mut value) = (None, None);
    let broken = || RequestError("a parameter is no protobuf message".to_owned());
    while !from.is_empty() {
        match field(&mut from).ok_or_else(broken)? {
            (NAME, Raw::Length(bytes)) => name = String::from_utf8(bytes.to_vec()).ok(),
            (VALUE, Raw::Length(bytes)) => value = Wrapped::read(Bytes::copy_from_slice(bytes)),
            _ => {}
        }
    }
    let name = name.ok_or_else(|| RequestError("a parameter without a name".to_owned()))?;
    match value {
        Some(value) => Ok((name, value)),
        None => Err(RequestError(format!("parameter '{name}' is no number, string, bytes or boolean"))),
    }
}

impl From<f64> for Wrapped {
    fn from(number: f64) -> Self {
        Self::Double(number)
    }
}

impl From<i32> for Wrapped {
    fn from(number: i32) -> Self {
        Self::Integer(crate::wrapped::INT32, number.into())
    }
}

impl From<i64> for Wrapped {
    fn from(number: i64) -> Self {
        Self::Integer(INT64, number)
    }
}

impl From<bool> for Wrapped {
    fn from(is: bool) -> Self {
        Self::Bool(is)
    }
}

impl From<&str> for Wrapped {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Wrapped {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clients of Infinispan 15 send -1 for an unset offset, limit and accuracy.
    #[test]
    fn negative_paging_is_unset() {
        let query = QueryRequest { query: "FROM Item".to_owned(), ..QueryRequest::default() };
        for unset in [-1, i32::MIN] {
            let sent = QueryRequest {
                offset: Some(unset.into()),
                max: Some(unset),
                accuracy: Some(unset),
                ..query.clone()
            };
            assert_eq!(QueryRequest::read(&sent.write()), Ok(query.clone()), "{unset}");
            let json = format!(
                r#"{{"queryString":"FROM Item","startOffset":{unset},"maxResults":{unset},"hitCountAccuracy":{unset}}}"#
            );
            assert_eq!(QueryRequest::from_json(&json), Ok(query.clone()), "{unset}");
        }
        let none = QueryRequest { offset: Some(0), max: Some(0), ..query };
        assert_eq!(QueryRequest::read(&none.write()), Ok(none));
    }
}
