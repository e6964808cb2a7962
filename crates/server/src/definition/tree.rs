//! A definition as a tree of elements, whichever of XML, JSON and YAML it is written in.
//!
//! What is an attribute in XML is a text, a number or a truth value in the others; what is an element there has members here.
//! Names may be written as in YAML, `distributedCache`, or as in XML and JSON, `distributed-cache`.

use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};
use serde_json::Value;

use super::once::Once;
use super::{DefinitionError, Result, mode_of};

/// How deep elements of XML are nested. Real ones take seven.
const NESTING_MAX: usize = 32;

/// An element.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Element {
    /// Its name as XML has it.
    pub(super) name: String,
    /// Its name as it is written.
    pub(super) written: String,
    pub(super) attributes: Vec<(String, String)>,
    pub(super) children: Vec<Self>,
}

impl Element {
    fn new(written: &str) -> Self {
        let (attributes, children) = (Vec::new(), Vec::new());
        Self { name: hyphenated(written), written: written.to_owned(), attributes, children }
    }

    /// Reads what is said of a cache, without what stands around it: its container, and its name.
    pub(super) fn read(cache: &str, text: &str) -> Result<Self> {
        let element = match text.trim_start().chars().next() {
            Some('{') => of_root(&json(text)?)?,
            Some('<') => from_xml(text)?,
            _ => of_root(&yaml(text)?)?,
        };
        element.within(cache)
    }

    /// Reads a whole document. In JSON and YAML what it has is within an element without a name.
    pub(super) fn of_document(text: &str) -> Result<Self> {
        match text.trim_start().chars().next() {
            Some('{') => of_value("", &json(text)?),
            Some('<') => from_xml(text),
            _ => match yaml(text)? {
                members @ (Value::Object(_) | Value::Null) => of_value("", &members),
                other => Err(DefinitionError::Unreadable(format!("{other} instead of caches"))),
            },
        }
    }

    /// The same of what servers have written in JSON.
    pub(super) fn of_root(cache: &str, value: &Value) -> Result<Self> {
        of_root(value)?.within(cache)
    }

    /// The cache, without its container and its name.
    fn within(mut self, cache: &str) -> Result<Self> {
        loop {
            let is_container = matches!(&self.name[..], "infinispan" | "cache-container" | "caches");
            let is_name = self.written == cache && self.attributes.is_empty();
            match &mut self.children[..] {
                [inner] if is_container || is_name && mode_of(&inner.name).is_some() => {
                    let inner = std::mem::replace(inner, Self::new(""));
                    self = inner;
                }
                _ if is_container => return Err(one_cache()),
                _ => return Ok(self),
            }
        }
    }

    /// The element within it of this name.
    ///
    /// # Errors
    ///
    /// If there are several: it would not be known which of them counts.
    pub(super) fn child(&self, name: &str) -> Result<Option<&Self>> {
        let mut found = self.children.iter().filter(|child| child.name == name);
        match (found.next(), found.next()) {
            (_, Some(_)) => Err(DefinitionError::Unreadable(format!("{name} is there more than once"))),
            (found, None) => Ok(found),
        }
    }

    /// Refuses what is within it, but for elements of these names, one of each at most.
    pub(super) fn check_children(&self, known: &[&str]) -> Result<()> {
        for child in &self.children {
            if !known.contains(&&child.name[..]) {
                return Err(self.unknown(&child.name));
            }
            self.child(&child.name)?;
        }
        Ok(())
    }

    /// Something in this element that nobody knows.
    pub(super) fn unknown(&self, name: &str) -> DefinitionError {
        DefinitionError::Unsupported(format!("{name} of {}", self.name))
    }

    /// An attribute of this element cannot have this value.
    pub(super) fn invalid(&self, attribute: &str, value: &str) -> DefinitionError {
        let attribute = format!("{attribute} of {}", self.name);
        DefinitionError::Invalid { attribute, value: value.to_owned() }
    }

    /// The same, where there is a reason to tell.
    pub(super) fn refused(&self, attribute: &str, value: &str, why: &str) -> DefinitionError {
        refused(&format!("{attribute} of {} cannot be {value}", self.name), why)
    }
}

/// Something is refused for a reason.
pub(super) fn refused(what: &str, why: &str) -> DefinitionError {
    DefinitionError::Refused { what: what.to_owned(), why: why.to_owned() }
}

fn one_cache() -> DefinitionError {
    DefinitionError::Unreadable("one cache was expected".to_owned())
}

fn unreadable(error: &dyn std::fmt::Display) -> DefinitionError {
    DefinitionError::Unreadable(error.to_string())
}

/// A name of YAML, `distributedCache`, as it stands in XML and JSON.
fn hyphenated(name: &str) -> String {
    let mut hyphenated = String::with_capacity(name.len() + 2);
    for character in name.chars() {
        if character.is_ascii_uppercase() {
            hyphenated.push('-');
        }
        hyphenated.push(character.to_ascii_lowercase());
    }
    hyphenated
}

fn json(text: &str) -> Result<Value> {
    serde_json::from_str(text).map(|Once(value)| value).map_err(|error| unreadable(&error))
}

fn yaml(text: &str) -> Result<Value> {
    serde_saphyr::from_str(text).map_err(|error| unreadable(&error))
}

/// The only element of a document in JSON or YAML.
fn of_root(value: &Value) -> Result<Element> {
    let mut members = value.as_object().into_iter().flatten();
    let (Some((name, within)), None) = (members.next(), members.next()) else { return Err(one_cache()) };
    if !within.is_object() && !within.is_null() {
        return Err(DefinitionError::Unreadable(format!("{name} has {within} instead of settings")));
    }
    of_value(name, within)
}

fn of_value(name: &str, value: &Value) -> Result<Element> {
    let mut element = Element::new(name);
    for (name, value) in value.as_object().into_iter().flatten() {
        match value {
            Value::String(text) => element.attributes.push((hyphenated(name), text.clone())),
            Value::Number(_) | Value::Bool(_) => {
                element.attributes.push((hyphenated(name), value.to_string()));
            }
            // What is a list of names in XML.
            Value::Array(list) if list.iter().all(Value::is_string) => {
                let names: Vec<&str> = list.iter().filter_map(Value::as_str).collect();
                element.attributes.push((hyphenated(name), names.join(" ")));
            }
            Value::Object(_) | Value::Null => element.children.push(of_value(name, value)?),
            Value::Array(_) => return Err(element.unknown(&hyphenated(name))),
        }
    }
    Ok(element)
}

fn from_xml(text: &str) -> Result<Element> {
    let mut reader = Reader::from_str(text);
    let mut open: Vec<Element> = Vec::new();
    let mut root = None;
    loop {
        let closed = match reader.read_event().map_err(|error| unreadable(&error))? {
            Event::Start(start) if open.len() < NESTING_MAX => {
                open.push(of_start(&start)?);
                continue;
            }
            Event::Start(_) => {
                let text = format!("elements are nested deeper than {NESTING_MAX}");
                return Err(DefinitionError::Unreadable(text));
            }
            Event::Empty(start) => Some(of_start(&start)?),
            Event::End(_) => open.pop(),
            Event::Eof => break,
            _ => continue,
        };
        let Some(closed) = closed else { continue };
        match open.last_mut() {
            Some(parent) => parent.children.push(closed),
            None if root.is_some() => return Err(one_cache()),
            None => root = Some(closed),
        }
    }
    match open.last() {
        Some(element) => Err(DefinitionError::Unreadable(format!("{} has no end", element.name))),
        None => root.ok_or_else(|| DefinitionError::Unreadable("there is no cache".to_owned())),
    }
}

fn of_start(start: &BytesStart<'_>) -> Result<Element> {
    let mut element = Element::new(start.local_name().as_ref());
    for attribute in start.attributes() {
        let attribute = attribute.map_err(|error| unreadable(&error))?;
        let key: &str = attribute.key.as_ref();
        // Which schema a document is of is not part of what it says.
        if !key.starts_with("xmlns") && !key.starts_with("xsi:") {
            element.attributes.push((hyphenated(key), attribute.value.into_owned()));
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
    fn what_stands_around_a_cache_is_left_out() {
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
    fn what_is_no_tree_with_one_cache_is_refused() {
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
