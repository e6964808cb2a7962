//! JSON objects without duplicate keys at any level; XML and YAML never allow them.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

pub(super) struct UniqueKeys(pub(super) Value);

impl<'de> Deserialize<'de> for UniqueKeys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(UniqueKeysVisitor)
    }
}

struct UniqueKeysVisitor;

impl<'de> Visitor<'de> for UniqueKeysVisitor {
    type Value = UniqueKeys;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("settings")
    }

    fn visit_unit<E>(self) -> Result<UniqueKeys, E> {
        Ok(UniqueKeys(Value::Null))
    }

    fn visit_bool<E>(self, value: bool) -> Result<UniqueKeys, E> {
        Ok(UniqueKeys(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<UniqueKeys, E> {
        Ok(UniqueKeys(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<UniqueKeys, E> {
        Ok(UniqueKeys(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<UniqueKeys, E> {
        Ok(UniqueKeys(value.into()))
    }

    fn visit_str<E>(self, value: &str) -> Result<UniqueKeys, E> {
        Ok(UniqueKeys(value.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<UniqueKeys, A::Error> {
        let mut list = Vec::new();
        while let Some(UniqueKeys(item)) = items.next_element()? {
            list.push(item);
        }
        Ok(UniqueKeys(list.into()))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<UniqueKeys, A::Error> {
        let mut all = Map::new();
        while let Some(name) = members.next_key::<String>()? {
            if all.contains_key(&name) {
                return Err(Error::custom(format_args!("duplicate {name}")));
            }
            let UniqueKeys(value) = members.next_value()?;
            all.insert(name, value);
        }
        Ok(UniqueKeys(all.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_equal_those_of_serde_json() {
        let text = r#"{"a": [1, -2, 3.5, "x\n", null, true, {}], "b": {"a": {"a": 18446744073709551615}}}"#;
        let UniqueKeys(read) = serde_json::from_str(text).unwrap();
        assert_eq!(read, serde_json::from_str::<Value>(text).unwrap());
    }

    #[test]
    fn duplicate_key_is_refused_with_its_position() {
        let error = |text| serde_json::from_str::<UniqueKeys>(text).err().map(|error| error.to_string());
        let twice = "{\"a\": {\"owners\": 2,\n\"owners\": 3}}";
        assert_eq!(error(twice).as_deref(), Some("duplicate owners at line 2 column 8"));
        assert_eq!(error(r#"{"a": {"a": 1}, "b": {"a": 2}}"#), None);
        let deep = "[".repeat(10_000);
        assert!(error(&deep).is_some_and(|error| error.contains("recursion limit")));
    }
}
