//! A server's file as a tree of elements with places. XML's attribute is a scalar in JSON and YAML.

use consort_conf::Variables;
use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

use super::problem::{Place, Problems};
use crate::catalog::definition::hyphenated;

/// The most bytes of a file; those of Infinispan's distribution have 10 KB.
pub(super) const FILE_BYTES_MAX: usize = 1024 * 1024;

/// The most elements and attributes of a file, counted together.
pub(super) const PARTS_MAX: usize = 20_000;

/// The most levels of elements; real files need ten.
pub(super) const NESTING_MAX: usize = 32;

/// The outermost element of Infinispan's files.
pub(super) const ROOT: &str = "infinispan";

/// The element with the stacks. Its variables stay: the reader of stacks replaces them, by JGroups' rules.
pub(super) const STACKS: &str = "jgroups";

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Attribute {
    pub(super) name: String,
    pub(super) value: String,
    pub(super) place: Place,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Node {
    /// As in XML: `cache-container`.
    pub(super) name: String,
    pub(super) written: String,
    pub(super) attributes: Vec<Attribute>,
    pub(super) children: Vec<Self>,
    pub(super) text: String,
    pub(super) place: Place,
}

impl Node {
    pub(super) fn new(written: &str, place: Place) -> Self {
        Self {
            name: hyphenated(written),
            written: written.to_owned(),
            attributes: Vec::new(),
            children: Vec::new(),
            text: String::new(),
            place,
        }
    }

    pub(super) fn get(&self, name: &str) -> Option<&Attribute> {
        self.attributes.iter().find(|attribute| attribute.name == name)
    }
}

/// Finds the places of offsets. It passes through the text once, so the offsets must not decrease.
struct Places<'t> {
    text: &'t str,
    counted: usize,
    place: Place,
}

impl<'t> Places<'t> {
    const fn new(text: &'t str) -> Self {
        Self { text, counted: 0, place: Place { line: 1, column: 1 } }
    }

    /// Returns the place of an offset, which is not before the previous one.
    fn at(&mut self, offset: usize) -> Place {
        let end = self.text.floor_char_boundary(offset.max(self.counted));
        for character in self.text[self.counted..end].chars() {
            if character == '\n' {
                self.place = Place { line: self.place.line + 1, column: 1 };
            } else {
                self.place.column += 1;
            }
        }
        self.counted = end;
        self.place
    }
}

struct XmlReader<'t, 'v> {
    text: &'t str,
    places: Places<'t>,
    variables: &'v Variables,
    parts: usize,
    open: Vec<Node>,
    root: Option<Node>,
}

/// Returns the root element, and adds problems. `None`: the text is no XML.
pub(super) fn parse_xml(text: &str, variables: &Variables, problems: &mut Problems) -> Option<Node> {
    let (places, open) = (Places::new(text), Vec::new());
    let mut parsing = XmlReader { text, places, variables, parts: 0, open, root: None };
    match parsing.read(problems) {
        Ok(()) => parsing.root,
        Err((offset, text)) => {
            let place = Places::new(parsing.text).at(offset);
            problems.refuse(place, text);
            None
        }
    }
}

impl XmlReader<'_, '_> {
    fn read(&mut self, problems: &mut Problems) -> Result<(), (usize, String)> {
        let mut reader = Reader::from_str(self.text);
        loop {
            let at = reader.buffer_position() as usize;
            let event = reader
                .read_event()
                .map_err(|error| (reader.error_position() as usize, format!("this is not XML: {error}")))?;
            match event {
                Event::Start(tag) => {
                    let node = self.element(&tag, at, problems)?;
                    self.open.push(node);
                }
                Event::Empty(tag) => {
                    let node = self.element(&tag, at, problems)?;
                    self.close(node);
                }
                Event::End(_) => {
                    if let Some(node) = self.open.pop() {
                        self.close(node);
                    }
                }
                Event::Text(text) => self.add_text(&text),
                Event::CData(text) => self.add_text(&text),
                Event::GeneralRef(reference) => {
                    let text = format!("&{};", &*reference);
                    let text = quick_xml::escape::unescape(&text).map_err(|error| (at, error.to_string()))?;
                    self.add_text(&text);
                }
                Event::Eof if !self.open.is_empty() => {
                    return Err((at, "the file ends within an element".to_owned()));
                }
                Event::Eof if self.root.is_none() => return Err((at, "the file has no element".to_owned())),
                Event::Eof => return Ok(()),
                _ => {}
            }
        }
    }

    fn add_text(&mut self, text: &str) {
        if let Some(node) = self.open.last_mut() {
            node.text.push_str(text.trim());
        }
    }

    fn close(&mut self, node: Node) {
        match self.open.last_mut() {
            Some(parent) => parent.children.push(node),
            None => self.root = Some(node),
        }
    }

    fn element(
        &mut self,
        tag: &BytesStart<'_>,
        at: usize,
        problems: &mut Problems,
    ) -> Result<Node, (usize, String)> {
        if self.open.is_empty() && self.root.is_some() {
            return Err((at, "a second outermost element".to_owned()));
        }
        if self.open.len() >= NESTING_MAX {
            return Err((at, format!("elements are nested deeper than {NESTING_MAX}")));
        }
        let place = self.places.at(at);
        let mut node = Node::new(tag.local_name().as_ref(), place);
        let is_raw = self.open.iter().any(|outer| outer.name == STACKS);
        if is_raw {
            // Names of protocols and their attributes have their own spelling.
            tag.local_name().as_ref().clone_into(&mut node.name);
        }
        self.parts += 1;
        for attribute in tag.attributes() {
            self.parts += 1;
            if self.parts > PARTS_MAX {
                return Err((at, format!("more than {PARTS_MAX} elements and attributes")));
            }
            let attribute = attribute.map_err(|error| (at, format!("in the attributes: {error}")))?;
            let key: &str = attribute.key.as_ref();
            if key == "xmlns" || key.starts_with("xmlns:") || key.starts_with("xsi:") {
                continue;
            }
            // The reader borrows a key from the text, so its address is the offset.
            let offset = key.as_ptr().addr().saturating_sub(self.text.as_ptr().addr());
            let place = self.places.at(offset);
            let local = key.rsplit(':').next().unwrap_or(key);
            let name = if is_raw { local.to_owned() } else { hyphenated(local) };
            let value = quick_xml::escape::unescape(&attribute.value)
                .map_err(|error| (offset, format!("attribute {name}: {error}")))?;
            node.attributes.extend(self.attribute(name, &value, place, is_raw, problems));
        }
        Ok(node)
    }

    fn attribute(
        &self,
        name: String,
        value: &str,
        place: Place,
        is_raw: bool,
        problems: &mut Problems,
    ) -> Option<Attribute> {
        if is_raw {
            return Some(Attribute { name, value: value.to_owned(), place });
        }
        substitute(name, value, place, self.variables, problems)
    }
}

/// Replaces the variables of a value. `None`, with a problem, if that is not possible.
pub(super) fn substitute(
    name: String,
    value: &str,
    place: Place,
    variables: &Variables,
    problems: &mut Problems,
) -> Option<Attribute> {
    match variables.substitute(value) {
        Ok(value) => Some(Attribute { name, value: value.trim().to_owned(), place }),
        Err(why) => {
            problems.refuse(
                place,
                format!("{name}: {why}; set it with -D, or write a default: ${{name:default}}"),
            );
            None
        }
    }
}
