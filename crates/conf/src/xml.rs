//! XML elements with places. A stack is flat: an element per protocol.

use std::borrow::Cow;

use consort_group::config::{Position, ProtocolConfig};
use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

use crate::error::{ConfigError, Fault, PROBLEMS_MAX};
use crate::relay::is_relay;
use crate::variables::Variables;

/// The longest stack has a tenth of them.
pub(crate) const ELEMENTS_MAX: usize = 1_000;

/// The element with the sites of RELAY2 and RELAY3.
pub(crate) const SITES_ROOT: &str = "RelayConfiguration";

/// An attribute's name, value and place.
pub type Attribute = (String, String, Position);

pub(crate) enum Element {
    Protocol(ProtocolConfig),
    /// `attributes` go to all its protocols.
    Include {
        file: String,
        overrides: Vec<Attribute>,
        position: Position,
    },
}

pub(crate) struct Source<'t> {
    pub(crate) name: &'t str,
    /// The file's number in positions.
    pub(crate) file: u16,
    /// Offsets are those of `original`.
    pub(crate) text: &'t str,
    pub(crate) original: &'t str,
    pub(crate) variables: &'t Variables,
}

impl Source<'_> {
    pub(crate) fn position(&self, offset: usize) -> Position {
        let before = &self.original[..self.original.floor_char_boundary(offset)];
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

    /// Blanks and comments may be between elements.
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

    fn offset_of(&self, part: &str) -> usize {
        (part.as_ptr() as usize).saturating_sub(self.text.as_ptr() as usize)
    }

    /// With variables replaced; the error is the first problem.
    pub(crate) fn attributes(&self, tag: &BytesStart<'_>, at: usize) -> Result<Vec<Attribute>, ConfigError> {
        let mut problems = Vec::new();
        let attributes =
            self.read_attributes(tag, at, &mut problems, |text| self.variables.substitute(text).map(Some));
        match problems.into_iter().next() {
            Some(problem) => Err(problem),
            None => Ok(attributes),
        }
    }

    /// Adds the problems of invalid ones. `substitute` replaces variables; an attribute without a result is omitted.
    fn read_attributes(
        &self,
        tag: &BytesStart<'_>,
        at: usize,
        problems: &mut Vec<ConfigError>,
        substitute: impl Fn(&str) -> Result<Option<String>, String>,
    ) -> Vec<Attribute> {
        let mut attributes: Vec<Attribute> = Vec::new();
        for attribute in tag.attributes() {
            let attribute = match attribute {
                Ok(attribute) => attribute,
                Err(error) => {
                    problems.push(self.fail(at, format!("in the attributes: {error}")));
                    break;
                }
            };
            let offset = self.offset_of(attribute.key.as_ref());
            let name = attribute.key.as_ref().to_owned();
            if name == "xmlns" || name.starts_with("xmlns:") || name.starts_with("xsi:") {
                continue;
            }
            let value = match quick_xml::escape::unescape(&attribute.value) {
                Ok(text) => substitute(&text)
                    .map_err(|why| self.fault(offset, Fault::Variable { attribute: name.clone(), why })),
                Err(error) => Err(self.fail(offset, format!("attribute {name}: {error}"))),
            };
            match value {
                Ok(Some(value)) => attributes.push((name, value.trim().to_owned(), self.position(offset))),
                Ok(None) => {}
                Err(problem) => problems.push(problem),
            }
        }
        attributes
    }

    /// An attribute of an unset variable is omitted, so that it keeps its default.
    pub(crate) fn stack_attributes(
        &self,
        tag: &BytesStart<'_>,
        at: usize,
        problems: &mut Vec<ConfigError>,
    ) -> Vec<Attribute> {
        self.read_attributes(tag, at, problems, |text| self.variables.substitute_attribute(text))
    }

    fn element(
        &self,
        tag: &BytesStart<'_>,
        at: usize,
        problems: &mut Vec<ConfigError>,
    ) -> Result<Element, ConfigError> {
        let name = tag.name().as_ref().to_owned();
        let position = self.position(at);
        let attributes = self.stack_attributes(tag, at, problems);
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

/// Replaces comments by blanks, and keeps line breaks. As JGroups' parser, it finds comments between attributes and
/// in comments, which XML does not allow. One that does not end stays, and one in an attribute's value.
pub(crate) fn without_comments(text: &str) -> Cow<'_, str> {
    let mut out = String::new();
    let mut copied = 0;
    let mut at = 0;
    let mut in_tag = false;
    let mut quote = None;
    let bytes = text.as_bytes();
    while at < bytes.len() {
        match (bytes[at], quote) {
            (byte, Some(open)) if byte == open => quote = None,
            (_, Some(_)) => {}
            (b'<', None) if bytes[at..].starts_with(b"<!--") => {
                let Some(end) = end_of_comment(bytes, at) else { break };
                out.push_str(&text[copied..at]);
                out.extend(bytes[at..end].iter().map(|&byte| if byte == b'\n' { '\n' } else { ' ' }));
                (copied, at) = (end, end);
                continue;
            }
            (b'<', None) => in_tag = true,
            (b'>', None) => in_tag = false,
            (byte @ (b'"' | b'\''), None) if in_tag => quote = Some(byte),
            _ => {}
        }
        at += 1;
    }
    if copied == 0 {
        return Cow::Borrowed(text);
    }
    out.push_str(&text[copied..]);
    Cow::Owned(out)
}

/// With the comments in it. If one does not end, the first end counts, as in XML.
fn end_of_comment(bytes: &[u8], start: usize) -> Option<usize> {
    let (mut depth, mut first_end) = (0_usize, None);
    let mut at = start;
    while at < bytes.len() {
        if bytes[at..].starts_with(b"<!--") {
            depth += 1;
            at += 4;
        } else if bytes[at..].starts_with(b"-->") {
            depth -= 1;
            at += 3;
            first_end.get_or_insert(at);
            if depth == 0 {
                return Some(at);
            }
        } else {
            at += 1;
        }
    }
    first_end
}

/// `file` is the file's number in positions.
pub(crate) fn read(
    name: &str,
    file: u16,
    text: &str,
    variables: &Variables,
    problems: &mut Vec<ConfigError>,
) -> Vec<Element> {
    let readable = without_comments(text);
    let source = Source { name, file, text: &readable, original: text, variables };
    let mut elements = Vec::new();
    let limit = problems.len() + PROBLEMS_MAX;
    if let Err(problem) = read_elements(&source, limit, &mut elements, problems) {
        problems.push(problem);
    }
    elements
}

/// Stops at a problem after which the rest has no meaning.
fn read_elements(
    source: &Source<'_>,
    limit: usize,
    elements: &mut Vec<Element>,
    problems: &mut Vec<ConfigError>,
) -> Result<(), ConfigError> {
    let mut reader = Reader::from_str(source.text);
    let mut depth = 0;
    let mut has_root = false;
    // Whether the current protocol has an element with sites.
    let mut has_sites = false;
    while problems.len() < limit {
        let (at, event) = match source.next(&mut reader) {
            Ok(next) => next,
            Err(problem) if matches!(problem.fault, Fault::Structure(_)) => {
                problems.push(problem);
                continue;
            }
            Err(problem) => return Err(problem),
        };
        let is_start = matches!(event, Event::Start(_));
        match event {
            Event::Start(tag) | Event::Empty(tag) => {
                match depth {
                    0 => root(source, &tag, at, &mut has_root)?,
                    1 if elements.len() >= ELEMENTS_MAX => {
                        return Err(source.fail(at, format!("more than {ELEMENTS_MAX} elements")));
                    }
                    1 => match source.element(&tag, at, problems) {
                        Ok(element) => elements.push(element),
                        Err(problem) => problems.push(problem),
                    },
                    2 if is_sites_within(&tag, elements) => {
                        let name = source.name.to_owned();
                        sites_within(source, at, name, elements, problems);
                        has_sites = true;
                    }
                    // They are read when the member starts.
                    _ if has_sites && depth > 2 => {}
                    _ => problems.push(source.fail(at, "an element within a protocol is not supported")),
                }
                if depth == 1 {
                    has_sites = false;
                }
                depth += usize::from(is_start);
            }
            Event::End(_) => depth -= 1,
            Event::Eof if depth > 0 => {
                return Err(source.fail(source.text.len(), "the file ends within an element"));
            }
            Event::Eof if !has_root => return Err(source.fail(0, "there is no <config> element")),
            Event::Eof => return Ok(()),
            _ => {}
        }
    }
    Ok(())
}

/// The sites may be in the stack itself instead of a file of their own.
fn is_sites_within(tag: &BytesStart<'_>, elements: &[Element]) -> bool {
    let is_relay =
        |element: &Element| matches!(element, Element::Protocol(protocol) if is_relay(protocol.short_name()));
    tag.local_name().as_ref() == SITES_ROOT && elements.last().is_some_and(is_relay)
}

/// The stack's own file is then the one with the sites.
fn sites_within(
    source: &Source<'_>,
    at: usize,
    file: String,
    elements: &mut [Element],
    problems: &mut Vec<ConfigError>,
) {
    let Some(Element::Protocol(relay)) = elements.last_mut() else { return };
    if relay.get("config").is_some() {
        let what =
            format!("{} has sites of its own and the attribute config: leave one of them out", relay.name);
        return problems.push(source.fail(at, what));
    }
    relay.attributes.push(("config".to_owned(), file, source.position(at)));
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
        let mut problems = Vec::new();
        let elements = read("my.xml", 0, text, &Variables::new(), &mut problems);
        assert_eq!(problems, []);
        elements
            .into_iter()
            .filter_map(|element| match element {
                Element::Protocol(protocol) => Some(protocol),
                Element::Include { .. } => None,
            })
            .collect()
    }

    fn error(text: &str) -> String {
        let mut problems = Vec::new();
        read("my.xml", 0, text, &Variables::new(), &mut problems);
        ConfigError::combine(problems).unwrap().to_string()
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
    fn comments_between_attributes_and_within_comments_are_skipped() {
        let text = "<!-- a\n<!-- ä --> -->\n<config>\n<TCP <!-- ü --> a=\"1\"\n<!--b=\"2\"--> c=\"<!-- no -->\"/>\n\
                    <!--PING/--></config>";
        let found = protocols(text);
        assert_eq!(found.len(), 1);
        let attributes: Vec<_> = found[0]
            .attributes
            .iter()
            .map(|(name, value, at)| (name.as_str(), value.as_str(), at.line, at.column))
            .collect();
        assert_eq!(attributes, [("a", "1", 4, 17), ("c", "<!-- no -->", 5, 14)]);
        for text in ["<config><!-- <!-- --></config>", "<config></config><!-- -->"] {
            assert!(protocols(text).is_empty(), "{text}");
        }
        assert!(error("<config><!-- </config>").starts_with("my.xml:1:"));
        assert_eq!(without_comments("<a b='<!-- c -->'/>"), "<a b='<!-- c -->'/>");
    }

    #[test]
    fn an_attribute_of_an_unset_variable_keeps_its_default() {
        let found = protocols("<config><TCP bind_port=\"${y}\" a=\"x${y}\" b=\"\"/></config>");
        let attributes: Vec<_> =
            found[0].attributes.iter().map(|(name, value, _)| (name.as_str(), value.as_str())).collect();
        assert_eq!(attributes, [("a", "x"), ("b", "")]);
    }

    #[test]
    fn all_problems_of_a_text_are_found() {
        let text = "<config>\n<TCP a=\"${x\" b=\"1\" c=\"&no;\"/>\nx\n<PING><y/></PING>\n<include/></config>";
        let found = error(text);
        let lines: Vec<&str> = found.lines().collect();
        assert_eq!(lines.len(), 5, "{found}");
        assert_eq!(lines[0], "my.xml:2:6: attribute a: `${x` is not closed by a brace");
        assert!(lines[1].starts_with("my.xml:2:20: attribute c: "), "{found}");
        assert!(lines[2].ends_with("text outside of attributes is not supported"), "{found}");
        assert_eq!(lines[3], "my.xml:4:7: an element within a protocol is not supported");
        assert_eq!(lines[4], "my.xml:5:1: an include needs the attribute `file`");
        let many = format!("<config>{}</config>", "<include/>".repeat(10 * PROBLEMS_MAX));
        assert_eq!(error(&many).lines().count(), PROBLEMS_MAX);
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
            error("<config>\n <TCP x=\"${y\"/></config>"),
            "my.xml:2:7: attribute x: `${y` is not closed by a brace"
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
            read("my.xml", 0, &text, &Variables::new(), &mut Vec::new());
        }

        #[test]
        fn no_markup_makes_it_panic(parts in prop::collection::vec(
            prop::sample::select(vec!["<config>", "</config>", "<TCP ", "a=\"${b}\"", "/>", "<!--", "-->", "&x;",
                "<![CDATA[", "]]>", ">", "\"", "x", " ", "<include file=\"y\"/>"]), 0..30)) {
            read("my.xml", 0, &parts.concat(), &Variables::new(), &mut Vec::new());
        }
    }
}
