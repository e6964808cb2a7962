//! The element `indexing`. The fields of entities are those that the registered schemas annotate; indexes are in memory, within the
//! segments of the cache.

use std::collections::BTreeSet;

use super::tree::{Element, refused};
use super::values::flag;
use super::{Result, without_effect};

#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Indexing {
    /// Empty for all types with an annotation.
    pub(crate) entities: BTreeSet<String>,
}

pub(super) fn read(element: &Element) -> Result<Option<Indexing>> {
    element.check_children(&["index-reader", "index-writer", "index-sharding", "indexed-entities"])?;
    let (mut is_enabled, mut indexing) = (true, Indexing::default());
    for (attribute, value) in &element.attributes {
        match &attribute[..] {
            "enabled" => is_enabled = flag(element, attribute, value)?,
            "indexed-entities" => indexing.add(value),
            "indexing-mode" if value.eq_ignore_ascii_case("auto") => {}
            "indexing-mode" => {
                let why = "an index changes with its entries, so that queries miss none";
                return Err(element.refused(attribute, value, why));
            }
            other => without_effect::accept(element, other, value)?,
        }
    }
    for child in &element.children {
        match &child.name[..] {
            "indexed-entities" => read_entities(child, &mut indexing)?,
            _ => accept_writer(child)?,
        }
    }
    Ok(is_enabled.then_some(indexing))
}

impl Indexing {
    fn add(&mut self, names: &str) {
        self.entities.extend(names.split_whitespace().map(str::to_owned));
    }
}

/// XML has an element for each name, and JSON and YAML a list.
fn read_entities(element: &Element, indexing: &mut Indexing) -> Result<()> {
    for (attribute, names) in &element.attributes {
        if attribute != "indexed-entity" {
            return Err(element.unknown(attribute));
        }
        indexing.add(names);
    }
    for child in &element.children {
        if child.name != "indexed-entity" || !child.attributes.is_empty() || !child.children.is_empty() {
            return Err(element.unknown(&child.name));
        }
        if child.text.is_empty() {
            return Err(refused("indexed-entity", "the name of the type is missing"));
        }
        indexing.add(&child.text);
    }
    Ok(())
}

fn accept_writer(element: &Element) -> Result<()> {
    element.check_children(if element.name == "index-writer" { &["index-merge"] } else { &[] })?;
    for (attribute, value) in &element.attributes {
        without_effect::accept(element, attribute, value)?;
    }
    element.children.iter().try_for_each(accept_writer)
}

#[cfg(test)]
mod tests {
    use super::super::{from_text, to_text};

    fn read_text(text: &str) -> Option<Vec<String>> {
        let definition = from_text("c", text).unwrap_or_else(|error| panic!("{text}: {error}"));
        let entities = definition.indexing.as_ref().map(|one| one.entities.iter().cloned().collect());
        assert_eq!(from_text("c", &to_text(&definition)), Ok(definition), "{text}");
        entities
    }

    #[test]
    fn entities_are_named_in_each_form() {
        let two = Some(vec!["shop.Book".to_owned(), "shop.Maker".to_owned()]);
        for text in [
            "<local-cache><indexing storage=\"local-heap\"><indexed-entities><indexed-entity>shop.Maker</indexed-entity>\n\
             <indexed-entity> shop.Book </indexed-entity></indexed-entities></indexing></local-cache>",
            r#"{"local-cache": {"indexing": {"enabled": true, "indexed-entities": ["shop.Book", "shop.Maker"]}}}"#,
            r#"{"local-cache": {"indexing": {"indexed-entities": {"indexed-entity": ["shop.Book", "shop.Maker"]}}}}"#,
            "localCache:\n  indexing:\n    indexedEntities:\n      - \"shop.Book\"\n      - \"shop.Maker\"\n",
        ] {
            assert_eq!(read_text(text), two, "{text}");
        }
        assert_eq!(read_text("<local-cache><indexing/></local-cache>"), Some(Vec::new()));
        let off = "<local-cache><indexing enabled=\"false\"/></local-cache>";
        assert_eq!((read_text(off), read_text("<local-cache/>")), (None, None));
    }

    #[test]
    fn settings_that_would_change_results_are_refused() {
        for (text, expected) in [
            (
                "<local-cache><indexing indexing-mode=\"manual\"/></local-cache>",
                "indexing-mode of indexing cannot be manual",
            ),
            ("<local-cache><indexing mine=\"1\"/></local-cache>", "'mine of indexing' is not supported"),
            ("<local-cache><indexing storage=\"x\"/></local-cache>", "storage of indexing cannot be x"),
            (
                "<local-cache><indexing><indexed-entities><indexed-entity/></indexed-entities></indexing></local-cache>",
                "the name of the type is missing",
            ),
            ("<invalidation-cache><indexing/></invalidation-cache>", "indexing of invalidation-cache"),
            (
                "<local-cache><indexing/><encoding media-type=\"text/plain\"/></local-cache>",
                "indexing: the values have to be application/x-protostream",
            ),
        ] {
            let error = from_text("c", text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
