//! Documents with several caches in the form of Infinispan's server configuration, with optional enclosing elements.

use std::collections::BTreeSet;

use super::tree::{Element, refused};
use super::{Definition, DefinitionError, Result, mode_of, read};

/// "" is the root of a JSON or YAML document.
const ENCLOSING: [&str; 4] = ["", "infinispan", "cache-container", "caches"];

#[derive(Debug, PartialEq, Eq)]
pub(super) struct DocumentError {
    pub(super) cache: Option<String>,
    pub(super) error: DefinitionError,
}

impl From<DefinitionError> for DocumentError {
    fn from(error: DefinitionError) -> Self {
        Self { cache: None, error }
    }
}

pub(super) fn read_all(text: &str) -> std::result::Result<Vec<Definition>, DocumentError> {
    let root = Element::parse_document(text)?;
    let mut found = Vec::new();
    // The root element of JSON and YAML has no name.
    collect(&root, !root.written.is_empty(), &mut found)?;
    let mut names = BTreeSet::new();
    let read_one = |(name, element): (&str, &Element)| {
        let wrong = |error| DocumentError { cache: Some(name.to_owned()), error };
        if !names.insert(name.to_owned()) {
            return Err(wrong(DefinitionError::Unreadable("it is defined more than once".to_owned())));
        }
        read(name, element).map_err(wrong)
    };
    found.into_iter().map(read_one).collect()
}

/// A cache's name is an attribute in XML, an enclosing element in JSON and YAML.
fn collect<'a>(element: &'a Element, is_xml: bool, found: &mut Vec<(&'a str, &'a Element)>) -> Result<()> {
    if is_xml && mode_of(&element.name).is_some() {
        let name = element.attributes.iter().find(|(attribute, _)| attribute == "name");
        let name = name.map(|(_, name)| &name[..]).filter(|name| !name.is_empty());
        found.push((name.ok_or_else(|| nameless(element))?, element));
        return Ok(());
    }
    if !is_xml
        && let [inner] = &element.children[..]
        && element.attributes.is_empty()
        && mode_of(&inner.name).is_some()
    {
        let name = Some(&element.written[..]).filter(|name| !name.is_empty());
        found.push((name.ok_or_else(|| nameless(inner))?, inner));
        return Ok(());
    }
    if !ENCLOSING.contains(&&element.name[..]) {
        let why = "only caches are read from this file; other settings are options of the server";
        return Err(refused(&element.written, why));
    }
    for (attribute, _) in &element.attributes {
        // `statistics` has no effect because statistics are always on; `name` because a container is not addressed by name.
        if !matches!(&attribute[..], "name" | "statistics") {
            return Err(element.unknown(attribute));
        }
    }
    element.children.iter().try_for_each(|child| collect(child, is_xml, found))
}

fn nameless(cache: &Element) -> DefinitionError {
    DefinitionError::Unreadable(format!("{} has no name", cache.written))
}

#[cfg(test)]
mod tests {
    use consort_cache::CacheMode;

    use super::*;

    fn names(text: &str) -> Vec<(String, CacheMode)> {
        let read = read_all(text).unwrap_or_else(|wrong| panic!("{wrong:?}: {text}"));
        read.into_iter().map(|one| (one.config.name.to_string(), one.config.mode)).collect()
    }

    #[test]
    fn all_forms_have_the_same_caches() {
        let two = [
            ("orders".to_owned(), CacheMode::Distributed { owners: 3 }),
            ("Prices-2".to_owned(), CacheMode::Replicated),
        ];
        for text in [
            r#"<infinispan xmlns="urn:infinispan:config:16.0"><cache-container name="default" statistics="true">
               <distributed-cache name="orders" owners="3"/><replicated-cache name="Prices-2"><memory max-count="9"/>
               </replicated-cache></cache-container></infinispan>"#,
            r#"<caches><distributed-cache name="orders" owners="3"/><replicated-cache name="Prices-2"/></caches>"#,
            r#"{"infinispan": {"cache-container": {"name": "default", "caches": {
               "orders": {"distributed-cache": {"owners": 3}}, "Prices-2": {"replicated-cache": {}}}}}}"#,
            r#"{"orders": {"distributed-cache": {"owners": 3}}, "Prices-2": {"replicated-cache": {}}}"#,
            "infinispan:\n  cacheContainer:\n    caches:\n      orders:\n        distributedCache:\n          owners: 3\n      \
             Prices-2:\n        replicatedCache: ~\n",
            "caches:\n  orders:\n    distributedCache:\n      owners: 3\n  Prices-2:\n    replicatedCache:\n",
        ] {
            let mut found = names(text);
            // Members of a JSON object have no order.
            found.sort_by(|one, other| other.0.cmp(&one.0));
            assert_eq!(found, two, "{text}");
        }
    }

    #[test]
    fn the_documented_files_have_the_same_caches() {
        let page = include_str!("../../../../../docs/server.md");
        let (_, page) = page.split_once("--caches FILE").unwrap();
        let example = |form: &str| {
            let (_, example) = page.split_once(&format!("```{form}\n")).unwrap();
            read_all(example.split_once("```").unwrap().0).unwrap()
        };
        assert_eq!((example("xml").len(), example("xml")), (2, example("yaml")));
    }

    #[test]
    fn cache_may_have_the_name_of_an_element() {
        let called = [("local-cache".to_owned(), CacheMode::Local), ("caches".to_owned(), CacheMode::Local)];
        let xml = r#"<caches><local-cache name="local-cache"/><local-cache name="caches"/></caches>"#;
        assert_eq!(names(xml), called);
        let json = r#"{"caches": {"local-cache": {"local-cache": {}}, "caches": {"local-cache": {}}}}"#;
        let mut found = names(json);
        found.sort_by(|one, other| other.0.cmp(&one.0));
        assert_eq!(found, called);
    }

    #[test]
    fn a_document_may_have_no_caches() {
        for text in ["", "<infinispan/>", "{}", "caches:\n", "infinispan:\n  cacheContainer: ~\n"] {
            assert_eq!(names(text), [], "{text}");
        }
    }

    #[test]
    fn definition_error_names_the_cache() {
        for (text, cache, expected) in [
            ("<caches><local-cache name='a' owners='2'/></caches>", Some("a"), "owners of local-cache"),
            ("localCache: ~\n", None, "localCache has no name"),
            ("<caches><local-cache/></caches>", None, "local-cache has no name"),
            ("<caches><local-cache name='a'/><local-cache name='a'/></caches>", Some("a"), "more than once"),
            ("a:\n  distributedCache:\n    owners: two\n", Some("a"), "owners"),
            (r#"{"a": {"local-cache": {}}, "a": {"local-cache": {}}}"#, None, "duplicate a"),
            ("<infinispan><jgroups/></infinispan>", None, "jgroups: only caches are read from this file"),
            ("<cache-container default-cache='a'/>", None, "default-cache of cache-container"),
            ("just text", None, "instead of caches"),
            ("{\"a\": 1}", None, "a of "),
            ("{\"a\": {\"b\": {}}}", None, "a: only caches are read from this file"),
            ("<caches>", None, "caches has no end"),
        ] {
            let wrong = read_all(text).expect_err(text);
            assert_eq!(wrong.cache.as_deref(), cache, "{text}: {wrong:?}");
            assert!(wrong.error.to_string().contains(expected), "{text}: {}", wrong.error);
        }
    }
}
