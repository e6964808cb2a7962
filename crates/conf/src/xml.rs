//! XML elements with places. A stack is flat: one element per protocol, with attributes only.

use consort_group::config::{Position, ProtocolConfig};
use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

use crate::error::{ConfigError, Fault};
use crate::variables::Variables;

/// Most elements of a file. The longest stack has a tenth of it.
pub(crate) const ELEMENTS_MAX: usize = 1_000;

/// An attribute's name, value and place.
pub type Attribute = (String, String, Position);

/// An element of a stack.
pub(crate) enum Element {
    Protocol(ProtocolConfig),
    /// The content of another file, with attributes for all its protocols.
    Include {
        file: String,
        overrides: Vec<Attribute>,
        position: Position,
    },
}

pub(crate) struct Source<'t> {
    pub(crate) name: &'t str,
    /// Its number in positions.
    pub(crate) file: u16,
    pub(crate) text: &'t str,
    pub(crate) variables: &'t Variables,
}

impl Source<'_> {
    pub(crate) fn position(&self, offset: usize) -> Position {
        let mut end = offset.min(self.text.len());
        while !self.text.is_char_boundary(end) {
            end -= 1;
        }
        let before = &self.text[..end];
        let line = before.matches('\n').count() as u32 + 1;
        let column = before.rsplit('\n').next().unwrap_or("").chars().count() as u32 + 1;
        Position { file: self.file, line, column }
    }

    pub(crate) fn fault(&self, offset: usize, fault: Fault) -> ConfigError {
        ConfigError::new(self.name, self.position(offset), fault)
    }

    pub(crate) fn fail(&self, offset: usize, what: impl Into<String>) -> ConfigError {
        self.fault(offset, Fault::Structure(what.into()))
    }

    /// Returns the next event and its offset. Between elements, blanks and comments are allowed.
    pub(crate) fn next<'x>(&self, reader: &mut Reader<&'x [u8]>) -> Result<(usize, Event<'x>), ConfigError> {
        let at = reader.buffer_position() as usize;
        let event = reader.read_event().map_err(|error| {
            self.fault(reader.error_position() as usize, Fault::NotXml(error.to_string()))
        })?;
        let is_foreign = match &event {
            Event::Text(text) => !text.trim().is_empty(),
            event => matches!(event, Event::CData(_) | Event::GeneralRef(_)),
        };
        if is_foreign {
            Err(self.fail(at, "text outside of attributes is not supported"))
        } else {
            Ok((at, event))
        }
    }

    /// Returns the offset of a part of the text.
    fn offset_of(&self, part: &str) -> usize {
        (part.as_ptr() as usize).saturating_sub(self.text.as_ptr() as usize)
    }

    pub(crate) fn attributes(&self, tag: &BytesStart<'_>, at: usize) -> Result<Vec<Attribute>, ConfigError> {
        let mut attributes: Vec<Attribute> = Vec::new();
        for attribute in tag.attributes() {
            let attribute =
                attribute.map_err(|error| self.fail(at, format!("in the attributes: {error}")))?;
            let offset = self.offset_of(attribute.key.as_ref());
            let name = attribute.key.as_ref().to_owned();
            if name == "xmlns" || name.starts_with("xmlns:") || name.starts_with("xsi:") {
                continue;
            }
            let text = quick_xml::escape::unescape(&attribute.value)
                .map_err(|error| self.fail(offset, format!("attribute {name}: {error}")))?;
            let value = self
                .variables
                .substitute(&text)
                .map_err(|why| self.fault(offset, Fault::Variable { attribute: name.clone(), why }))?;
            attributes.push((name, value.trim().to_owned(), self.position(offset)));
        }
        Ok(attributes)
    }

    fn element(&self, tag: &BytesStart<'_>, at: usize) -> Result<Element, ConfigError> {
        let name = tag.name().as_ref().to_owned();
        let position = self.position(at);
        let attributes = self.attributes(tag, at)?;
        if name == "include" {
            let (files, overrides): (Vec<_>, Vec<_>) =
                attributes.into_iter().partition(|(name, _, _)| name == "file");
            let Some((_, file, _)) = files.into_iter().next() else {
                return Err(self.fail(at, "an include needs the attribute `file`"));
            };
            return Ok(Element::Include { file, overrides, position });
        }
        Ok(Element::Protocol(ProtocolConfig { name, attributes, position }))
    }
}

/// Parses a file's text; `file` is its number in positions.
pub(crate) fn read(
    name: &str,
    file: u16,
    text: &str,
    variables: &Variables,
) -> Result<Vec<Element>, ConfigError> {
    let source = Source { name, file, text, variables };
    let mut reader = Reader::from_str(text);
    let mut elements = Vec::new();
    let mut depth = 0;
    let mut has_root = false;
    loop {
        let (at, event) = source.next(&mut reader)?;
        match event {
            Event::Start(tag) | Event::Empty(tag) if elements.len() >= ELEMENTS_MAX => {
                drop(tag);
                return Err(source.fail(at, format!("more than {ELEMENTS_MAX} elements")));
            }
            Event::Start(tag) => {
                match depth {
                    0 => root(&source, &tag, at, &mut has_root)?,
                    1 => elements.push(source.element(&tag, at)?),
                    _ => return Err(source.fail(at, "an element within a protocol is not supported")),
                }
                depth += 1;
            }
            Event::Empty(tag) => match depth {
                0 => root(&source, &tag, at, &mut has_root)?,
                1 => elements.push(source.element(&tag, at)?),
                _ => return Err(source.fail(at, "an element within a protocol is not supported")),
            },
            Event::End(_) => depth -= 1,
            Event::Eof => break,
            _ => {}
        }
    }
    if depth > 0 {
        return Err(source.fail(text.len(), "the file ends within an element"));
    }
    if !has_root {
        return Err(source.fail(0, "there is no <config> element"));
    }
    Ok(elements)
}

fn root(
    source: &Source<'_>,
    tag: &BytesStart<'_>,
    at: usize,
    has_root: &mut bool,
) -> Result<(), ConfigError> {
    let name = tag.local_name().as_ref().to_owned();
    if name != "config" || std::mem::replace(has_root, true) {
        return Err(source.fail(at, format!("<{name}> where one <config> was expected")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn protocols(text: &str) -> Vec<ProtocolConfig> {
        read("my.xml", 0, text, &Variables::new())
            .unwrap()
            .into_iter()
            .filter_map(|element| match element {
                Element::Protocol(protocol) => Some(protocol),
                Element::Include { .. } => None,
            })
            .collect()
    }

    fn error(text: &str) -> String {
        read("my.xml", 0, text, &Variables::new()).err().unwrap().to_string()
    }

    #[test]
    fn elements_and_attributes_have_their_places() {
        let text = "<!-- stack -->\n<config xmlns=\"urn:org:jgroups\">\n  <TCP\n    bind_port=\"${p:7800}\"/>\n</config>";
        let found = protocols(text);
        assert_eq!(found[0].name, "TCP");
        assert_eq!(found[0].position, Position { file: 0, line: 3, column: 3 });
        let place = Position { file: 0, line: 4, column: 5 };
        assert_eq!(found[0].attributes, [("bind_port".to_owned(), "7800".to_owned(), place)]);
    }

    #[test]
    fn xml_errors_have_their_places() {
        assert!(
            error("<config>\n<TCP\n</config>").starts_with("my.xml:"),
            "{}",
            error("<config>\n<TCP\n</config>")
        );
        assert_eq!(error("<stack/>"), "my.xml:1:1: <stack> where one <config> was expected");
        assert_eq!(error(""), "my.xml:1:1: there is no <config> element");
        assert_eq!(
            error("<config>\n <TCP x=\"${y}\"/></config>"),
            "my.xml:2:7: attribute x: variable `y` is not set and has no default"
        );
        assert_eq!(
            error("<config><TCP><deep/></TCP></config>"),
            "my.xml:1:14: an element within a protocol is not supported"
        );
        assert!(error("<config>TCP(bind_port=7800):PING</config>").contains("text outside of attributes"));
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in ".{0,200}") {
            let _ = read("my.xml", 0, &text, &Variables::new());
        }

        #[test]
        fn no_markup_makes_it_panic(parts in prop::collection::vec(
            prop::sample::select(vec!["<config>", "</config>", "<TCP ", "a=\"${b}\"", "/>", "<!--", "-->", "&x;",
                "<![CDATA[", "]]>", ">", "\"", "x", " ", "<include file=\"y\"/>"]), 0..30)) {
            let _ = read("my.xml", 0, &parts.concat(), &Variables::new());
        }
    }
}
