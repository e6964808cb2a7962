//! XML as a tree with places, for cache configurations.

use std::path::Path;

use consort_group::config::Position;
use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

use crate::error::{ConfigError, Fault};
use crate::known_names::nearest;
use crate::variables::Variables;
use crate::xml::{Attribute, ELEMENTS_MAX, Source, without_comments};

/// Cache configurations have five levels.
const DEPTH_MAX: usize = 32;

/// A parsed file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tree {
    /// The name, for messages.
    pub file: String,
    /// The root.
    pub root: Node,
}

/// An element.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    /// The name without namespace.
    pub name: String,
    /// Attributes with variables replaced.
    pub attributes: Vec<Attribute>,
    /// The children.
    pub children: Vec<Self>,
    /// The place.
    pub position: Position,
}

impl Node {
    /// Returns an attribute.
    pub fn get(&self, name: &str) -> Option<(&str, Position)> {
        let found = self.attributes.iter().find(|(own, ..)| own == name);
        found.map(|(_, value, position)| (value.as_str(), *position))
    }
}

impl Tree {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// If it is unreadable or no XML, or a variable is unset.
    pub fn load(path: &Path, variables: &Variables) -> Result<Self, ConfigError> {
        let file = path.display().to_string();
        let text = std::fs::read_to_string(path);
        let text = text.map_err(|error| {
            ConfigError::new(&file, None, Fault::Structure(format!("cannot be read: {error}")))
        })?;
        Self::parse(&file, &text, variables)
    }

    /// Parses a text; errors name it `file`.
    ///
    /// # Errors
    ///
    /// If it is no XML with one root, or a variable is unset.
    pub fn parse(file: &str, text: &str, variables: &Variables) -> Result<Self, ConfigError> {
        let source = Source { name: file, file: 0, text, original: text, variables };
        let root = read_tree(&source, |tag, at| source.attributes(tag, at))?;
        Ok(Self { file: file.to_owned(), root })
    }

    /// Checks that attributes are known.
    ///
    /// # Errors
    ///
    /// The first unknown attribute, with the most similar known name.
    pub fn check_attributes(&self, node: &Node, known: &[&'static str]) -> Result<(), ConfigError> {
        let unknown = node.attributes.iter().find(|(name, ..)| !known.contains(&name.as_str()));
        let Some((name, _, position)) = unknown else { return Ok(()) };
        let fault = Fault::UnknownAttribute {
            protocol: node.name.clone(),
            attribute: name.clone(),
            nearest: nearest(name, known.iter().copied()),
        };
        Err(ConfigError::new(&self.file, *position, fault))
    }

    /// Makes an error for a misplaced element.
    pub fn unknown_element(&self, parent: &Node, node: &Node, known: &[&'static str]) -> ConfigError {
        let fault = Fault::UnknownElement {
            parent: parent.name.clone(),
            element: node.name.clone(),
            nearest: nearest(&node.name, known.iter().copied()),
        };
        ConfigError::new(&self.file, node.position, fault)
    }

    /// Makes an error at a place.
    pub fn wrong(&self, position: Position, what: impl Into<String>) -> ConfigError {
        ConfigError::new(&self.file, position, Fault::Structure(what.into()))
    }
}

/// Reads the elements of stacks: comments may be between attributes, and an attribute of an unset variable is omitted.
/// `number` is the file's in positions. Adds the problems of attributes.
pub(crate) fn stack_tree(
    name: &str,
    number: u16,
    text: &str,
    variables: &Variables,
    problems: &mut Vec<ConfigError>,
) -> Result<Node, ConfigError> {
    let readable = without_comments(text);
    let source = Source { name, file: number, text: &readable, original: text, variables };
    read_tree(&source, |tag, at| Ok(source.stack_attributes(tag, at, problems)))
}

fn read_tree(
    source: &Source<'_>,
    mut attributes: impl FnMut(&BytesStart<'_>, usize) -> Result<Vec<Attribute>, ConfigError>,
) -> Result<Node, ConfigError> {
    let mut reader = Reader::from_str(source.text);
    // Open elements, the innermost last.
    let mut open: Vec<Node> = Vec::new();
    let mut root: Option<Node> = None;
    let mut count = 0;
    loop {
        let (at, event) = source.next(&mut reader)?;
        let is_empty = matches!(event, Event::Empty(_));
        match event {
            Event::Start(tag) | Event::Empty(tag) => {
                count += 1;
                if count > ELEMENTS_MAX || open.len() >= DEPTH_MAX {
                    return Err(source.fail(at, "too many elements"));
                }
                if open.is_empty() && root.is_some() {
                    return Err(source.fail(at, "a second outermost element"));
                }
                let node = Node {
                    name: tag.local_name().as_ref().to_owned(),
                    attributes: attributes(&tag, at)?,
                    children: Vec::new(),
                    position: source.position(at),
                };
                if is_empty {
                    close(node, &mut open, &mut root);
                } else {
                    open.push(node);
                }
            }
            Event::End(_) => {
                if let Some(node) = open.pop() {
                    close(node, &mut open, &mut root);
                }
            }
            Event::Eof => break,
            _ => {}
        }
    }
    if !open.is_empty() {
        return Err(source.fail(source.text.len(), "the file ends within an element"));
    }
    root.ok_or_else(|| source.fail(0, "there is no element"))
}

fn close(node: Node, open: &mut [Node], root: &mut Option<Node>) {
    match open.last_mut() {
        Some(parent) => parent.children.push(node),
        None => *root = Some(node),
    }
}

/// Returns an XML text's root element.
pub fn root_name(text: &str) -> Option<String> {
    let mut reader = Reader::from_str(text);
    loop {
        match reader.read_event().ok()? {
            Event::Start(tag) | Event::Empty(tag) => return Some(tag.local_name().as_ref().to_owned()),
            Event::Eof => return None,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Result<Tree, ConfigError> {
        Tree::parse("my.xml", text, &Variables::new().with("size", "7"))
    }

    #[test]
    fn elements_keep_their_order_and_places() {
        let text = "<?xml version=\"1.0\"?>\n<a xmlns=\"urn:x\">\n  <b n=\"${size}\"><c/></b>\n  <b/>\n</a>";
        let root = parse(text).unwrap().root;
        assert_eq!((root.name.as_str(), root.children.len()), ("a", 2));
        assert_eq!(root.children[0].get("n").unwrap().0, "7");
        assert_eq!(root.children[0].children[0].name, "c");
        assert_eq!(root.children[1].position, Position { file: 0, line: 4, column: 3 });
        assert_eq!(root_name(text).as_deref(), Some("a"));
        assert_eq!(root_name("TCP(bind_port=1)"), None);
    }

    #[test]
    fn tree_errors_have_their_places() {
        let error = |text: &str| parse(text).unwrap_err().to_string();
        assert_eq!(error("<a/>\n<b/>"), "my.xml:2:1: a second outermost element");
        assert_eq!(error("<a>\nx</a>"), "my.xml:1:4: text outside of attributes is not supported");
        assert!(error("<a><b></a>").starts_with("my.xml:1:"));
        assert!(error("<a n=\"${none}\"/>").contains("attribute n"));
        assert!(error("").contains("there is no element"));
        let deep = "<a>".repeat(DEPTH_MAX + 1);
        assert!(error(&deep).contains("too many elements"));
    }

    proptest! {
        #[test]
        fn no_markup_makes_it_panic(parts in prop::collection::vec(
            prop::sample::select(vec!["<a>", "</a>", "<b ", "a=\"${b}\"", "/>", "<!--", "-->", "&x;",
                "<![CDATA[", "]]>", ">", "\"", "x", " "]), 0..30)) {
            let _ = parse(&parts.concat());
        }
    }
}
