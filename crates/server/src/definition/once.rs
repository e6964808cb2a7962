//! JSON in which a member is there once: of two, nobody could tell which of them its writer believes in. XML and YAML have it so
//! in any case.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// A value with nothing in it that is there twice.
pub(super) struct Once(pub(super) Value);

impl<'de> Deserialize<'de> for Once {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reading)
    }
}

struct Reading;

impl<'de> Visitor<'de> for Reading {
    type Value = Once;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("settings")
    }

    fn visit_unit<E>(self) -> Result<Once, E> {
        Ok(Once(Value::Null))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Once, E> {
        Ok(Once(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Once, E> {
        Ok(Once(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Once, E> {
        Ok(Once(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Once, E> {
        Ok(Once(value.into()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Once, E> {
        Ok(Once(value.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Once, A::Error> {
        let mut list = Vec::new();
        while let Some(Once(item)) = items.next_element()? {
            list.push(item);
        }
        Ok(Once(list.into()))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Once, A::Error> {
        let mut all = Map::new();
        while let Some(name) = members.next_key::<String>()? {
            if all.contains_key(&name) {
                return Err(Error::custom(format_args!("{name} is there more than once")));
            }
            let Once(value) = members.next_value()?;
            all.insert(name, value);
        }
        Ok(Once(all.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_values_are_those_of_serde_json() {
        let text = r#"{"a": [1, -2, 3.5, "x\n", null, true, {}], "b": {"a": {"a": 18446744073709551615}}}"#;
        let Once(read) = serde_json::from_str(text).unwrap();
        assert_eq!(read, serde_json::from_str::<Value>(text).unwrap());
    }

    #[test]
    fn a_second_member_of_a_name_is_told_with_its_place() {
        let told = |text| serde_json::from_str::<Once>(text).err().map(|error| error.to_string());
        let twice = "{\"a\": {\"owners\": 2,\n\"owners\": 3}}";
        assert_eq!(told(twice).as_deref(), Some("owners is there more than once at line 2 column 8"));
        assert_eq!(told(r#"{"a": {"a": 1}, "b": {"a": 2}}"#), None);
        let deep = "[".repeat(10_000);
        assert!(told(&deep).is_some_and(|told| told.contains("recursion limit")));
    }
}
