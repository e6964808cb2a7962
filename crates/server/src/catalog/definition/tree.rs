//! A definition as a tree of elements, parsed from XML, JSON or YAML. XML's attribute is a scalar in JSON and YAML, and its
//! element an object. Names may be `distributedCache`, as in YAML, or `distributed-cache`, as in XML and JSON.

use quick_xml::Reader;
use quick_xml::escape::unescape;
use quick_xml::events::{BytesStart, Event};
use serde_json::Value;

use super::unique_keys::UniqueKeys;
use super::{DefinitionError, Result, mode_of};

/// Real documents need seven levels.
const NESTING_MAX: usize = 32;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Element {
    pub(crate) name: String,
    pub(crate) written: String,
    pub(crate) attributes: Vec<(String, String)>,
    pub(crate) children: Vec<Self>,
    /// Only XML has some.
    pub(crate) text: String,
}

impl Element {
    fn new(written: &str) -> Self {
        let (attributes, children) = (Vec::new(), Vec::new());
        let text = String::new();
        Self { name: hyphenated(written), written: written.to_owned(), attributes, children, text }
    }

    /// Drops the enclosing elements: the container and the cache's name.
    pub(super) fn read(cache: &str, text: &str) -> Result<Self> {
        let element = match text.trim_start().chars().next() {
            Some('{') => only_element(&parse_json(text)?)?,
            Some('<') => parse_xml(text)?,
            _ => only_element(&parse_yaml(text)?)?,
        };
        element.within(cache)
    }

    /// The root element of JSON and YAML has no name.
    pub(super) fn parse_document(text: &str) -> Result<Self> {
        match text.trim_start().chars().next() {
            Some('{') => from_value("", &parse_json(text)?),
            Some('<') => parse_xml(text),
            _ => match parse_yaml(text)? {
                members @ (Value::Object(_) | Value::Null) => from_value("", &members),
                other => Err(DefinitionError::Unreadable(format!("{other} instead of caches"))),
            },
        }
    }

    pub(super) fn from_stored(cache: &str, value: &Value) -> Result<Self> {
        only_element(value)?.within(cache)
    }

    fn within(mut self, cache: &str) -> Result<Self> {
        loop {
            let is_container = matches!(&self.name[..], "infinispan" | "cache-container" | "caches");
            let is_name = self.written == cache && self.attributes.is_empty();
            match &mut self.children[..] {
                [inner] if is_container || is_name && mode_of(&inner.name).is_some() => {
                    let inner = std::mem::replace(inner, Self::new(""));
                    self = inner;
                }
                _ if is_container => return Err(not_one_cache()),
                _ => return Ok(self),
            }
        }
    }

    /// Fails if there are several, because it is unclear which is meant.
    pub(super) fn child(&self, name: &str) -> Result<Option<&Self>> {
        let mut found = self.children.iter().filter(|child| child.name == name);
        match (found.next(), found.next()) {
            (_, Some(_)) => Err(DefinitionError::Unreadable(format!("{name} is defined more than once"))),
            (found, None) => Ok(found),
        }
    }

    pub(super) fn check_children(&self, known: &[&str]) -> Result<()> {
        for child in &self.children {
            if !known.contains(&&child.name[..]) {
                return Err(self.unknown(&child.name));
            }
            self.child(&child.name)?;
        }
        Ok(())
    }

    pub(super) fn unknown(&self, name: &str) -> DefinitionError {
        DefinitionError::Unsupported(format!("{name} of {}", self.name))
    }

    pub(super) fn invalid(&self, attribute: &str, value: &str) -> DefinitionError {
        let attribute = format!("{attribute} of {}", self.name);
        DefinitionError::Invalid { attribute, value: value.to_owned() }
    }

    pub(super) fn refused(&self, attribute: &str, value: &str, why: &str) -> DefinitionError {
        refused(&format!("{attribute} of {} cannot be {value}", self.name), why)
    }
}

pub(super) fn refused(setting: &str, reason: &str) -> DefinitionError {
    DefinitionError::Refused { setting: setting.to_owned(), reason: reason.to_owned() }
}

fn not_one_cache() -> DefinitionError {
    DefinitionError::Unreadable("exactly one cache is expected".to_owned())
}

fn syntax_error(error: &dyn std::fmt::Display) -> DefinitionError {
    DefinitionError::Unreadable(error.to_string())
}

pub(crate) fn hyphenated(name: &str) -> String {
    let mut hyphenated = String::with_capacity(name.len() + 2);
    for character in name.chars() {
        if character.is_ascii_uppercase() {
            hyphenated.push('-');
        }
        hyphenated.push(character.to_ascii_lowercase());
    }
    hyphenated
}

fn parse_json(text: &str) -> Result<Value> {
    serde_json::from_str(text).map(|UniqueKeys(value)| value).map_err(|error| syntax_error(&error))
}

fn parse_yaml(text: &str) -> Result<Value> {
    serde_saphyr::from_str(text).map_err(|error| syntax_error(&error))
}

fn only_element(value: &Value) -> Result<Element> {
    let mut members = value.as_object().into_iter().flatten();
    let (Some((name, within)), None) = (members.next(), members.next()) else { return Err(not_one_cache()) };
    if !within.is_object() && !within.is_null() {
        return Err(DefinitionError::Unreadable(format!("{name} has {within} instead of settings")));
    }
    from_value(name, within)
}

fn from_value(name: &str, value: &Value) -> Result<Element> {
    let mut element = Element::new(name);
    for (name, value) in value.as_object().into_iter().flatten() {
        match value {
            Value::String(text) => element.attributes.push((hyphenated(name), text.clone())),
            Value::Number(_) | Value::Bool(_) => {
                element.attributes.push((hyphenated(name), value.to_string()));
            }
            // In XML this is an attribute with names separated by spaces.
            Value::Array(list) if list.iter().all(Value::is_string) => {
                let names: Vec<&str> = list.iter().filter_map(Value::as_str).collect();
                element.attributes.push((hyphenated(name), names.join(" ")));
            }
            Value::Object(_) | Value::Null => element.children.push(from_value(name, value)?),
            Value::Array(_) => return Err(element.unknown(&hyphenated(name))),
        }
    }
    Ok(element)
}

fn parse_xml(text: &str) -> Result<Element> {
    let mut reader = Reader::from_str(text);
    let mut open: Vec<Element> = Vec::new();
    let mut root = None;
    loop {
        let closed = match reader.read_event().map_err(|error| syntax_error(&error))? {
            Event::Start(start) if open.len() < NESTING_MAX => {
                open.push(from_start_tag(&start)?);
                continue;
            }
            Event::Start(_) => {
                let text = format!("elements are nested deeper than {NESTING_MAX}");
                return Err(DefinitionError::Unreadable(text));
            }
            Event::Empty(start) => Some(from_start_tag(&start)?),
            Event::End(_) => open.pop(),
            Event::Text(text) => {
                open.iter_mut()
                    .next_back()
                    .into_iter()
                    .for_each(|element| element.text.push_str(text.trim()));
                continue;
            }
            Event::Eof => break,
            _ => continue,
        };
        let Some(closed) = closed else { continue };
        match open.last_mut() {
            Some(parent) => parent.children.push(closed),
            None if root.is_some() => return Err(not_one_cache()),
            None => root = Some(closed),
        }
    }
    match open.last() {
        Some(element) => Err(DefinitionError::Unreadable(format!("{} has no end", element.name))),
        None => root.ok_or_else(|| DefinitionError::Unreadable("the document has no cache".to_owned())),
    }
}

fn from_start_tag(start: &BytesStart<'_>) -> Result<Element> {
    let mut element = Element::new(start.local_name().as_ref());
    for attribute in start.attributes() {
        let attribute = attribute.map_err(|error| syntax_error(&error))?;
        let key: &str = attribute.key.as_ref();
        // The schema of the document does not change its meaning.
        if !key.starts_with("xmlns") && !key.starts_with("xsi:") {
            let value = unescape(&attribute.value).map_err(|error| syntax_error(&error))?;
            element.attributes.push((hyphenated(key), value.into_owned()));
        }
    }
    Ok(element)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_forms_are_the_same_tree() {
        let json = r#"{"distributed-cache": {"mode": "SYNC", "owners": 3, "memory": {"max-count": 5}}}"#;
        let yaml = "distributedCache:\n  mode: SYNC\n  owners: 3\n  memory:\n    maxCount: 5\n";
        let xml = r#"<?xml version="1.0"?>
            <distributed-cache xmlns="urn:infinispan:config:16.0" mode="SYNC" owners="3">
            <!-- few --><memory max-count="5"></memory></distributed-cache>"#;
        let [json, yaml, xml] = [json, yaml, xml].map(|text| {
            let mut read = Element::read("c", text).unwrap();
            read.written.clear();
            read.children[0].written.clear();
            read
        });
        assert_eq!(json.attributes, [("mode".into(), "SYNC".into()), ("owners".into(), "3".into())]);
        assert_eq!((&json, &json), (&yaml, &xml));
    }

    #[test]
    fn elements_around_a_cache_are_skipped() {
        for text in [
            r#"<infinispan><cache-container name="x"><local-cache name="c"/></cache-container></infinispan>"#,
            r#"{"infinispan": {"cacheContainer": {"caches": {"c": {"local-cache": {}}}}}}"#,
            "c:\n  localCache: ~\n",
            "localCache:\n",
        ] {
            assert_eq!(Element::read("c", text).unwrap().name, "local-cache", "{text}");
        }
    }

    #[test]
    fn text_without_exactly_one_cache_is_refused() {
        let deep = "<a>".repeat(1_000);
        for text in [
            "",
            "{",
            "just text",
            "a: [",
            "a: 1",
            "{\"a\": {}, \"b\": {}}",
            r#"{"local-cache": {"memory": {"max-count": 1, "max-count": 2}}}"#,
            "localCache:\n  memory:\n    maxCount: 1\n    maxCount: 2\n",
            r#"{"local-cache": {"memory": [{"max-count": 1}]}}"#,
            "<local-cache>",
            "<local-cache></replicated-cache>",
            "<local-cache/><local-cache/>",
            "<infinispan><cache-container><local-cache/><local-cache/></cache-container></infinispan>",
            "<infinispan/>",
            "<local-cache a='1' a='2'/>",
            &deep,
        ] {
            assert!(Element::read("c", text).is_err(), "{text}");
        }
        let twice = Element::read("c", "<local-cache><memory/><memory/></local-cache>").unwrap();
        assert!(twice.check_children(&["memory"]).is_err() && twice.child("memory").is_err());
    }
}
