//! A server's file in YAML or JSON, which is YAML, as the tree that XML gives: a scalar is an attribute, an object an element. A
//! list of texts is an attribute with spaces between them, and a list of objects an element with one of its own name for each.

use consort_conf::Variables;
use granit_parser::{Event, Parser, ScalarStyle, Span};

use super::document::{Attribute, NESTING_MAX, Node, PARTS_MAX, ROOT, STACKS, substitute};
use super::problem::{Place, Problems};
use crate::catalog::definition::hyphenated;

/// Names of JGroups' attributes have underscores: `bindPort` and `bind-port` are `bind_port`.
fn underscored(name: &str) -> String {
    hyphenated(name).replace('-', "_").trim_start_matches('_').to_owned()
}

/// Whether the first key of a text is that of Infinispan's files.
pub(super) fn has_root(text: &str) -> bool {
    let mut events = Parser::new_from_str(text)
        .filter(|event| !matches!(event, Ok((Event::StreamStart | Event::DocumentStart(..), _))));
    matches!(events.next(), Some(Ok((Event::MappingStart(..), _))))
        && matches!(events.next(), Some(Ok((Event::Scalar(name, ..), _))) if name == ROOT)
}

enum Frame {
    Object { node: Node, key: Option<(String, Place)> },
    List { key: String, place: Place, words: Vec<String>, items: Vec<Node> },
}

enum Value {
    Null,
    Text(String),
    Object(Node),
    List { place: Place, words: Vec<String>, items: Vec<Node> },
}

struct YamlReader<'v, 'p> {
    variables: &'v Variables,
    problems: &'p mut Problems,
    open: Vec<Frame>,
    root: Option<Node>,
    parts: usize,
}

type Result<T> = std::result::Result<T, (Place, String)>;

fn place_of(span: &Span) -> Place {
    Place { line: span.start.line() as u32, column: span.start.col() as u32 + 1 }
}

/// Returns the element `infinispan`, and adds problems. `None`: the text is no YAML.
pub(super) fn parse(text: &str, variables: &Variables, problems: &mut Problems) -> Option<Node> {
    let mut reader = YamlReader { variables, problems, open: Vec::new(), root: None, parts: 0 };
    for event in Parser::new_from_str(text) {
        let read = match event {
            Ok((event, span)) => reader.event(event, place_of(&span)),
            Err(error) => {
                let marker = error.marker();
                let place = Place { line: marker.line() as u32, column: marker.col() as u32 + 1 };
                Err((place, format!("this is neither JSON nor YAML: {}", error.info())))
            }
        };
        if let Err((place, text)) = read {
            problems.refuse(place, text);
            return None;
        }
    }
    let root = reader.root;
    let is_infinispan = |root: &Node| root.attributes.is_empty() && root.children.len() == 1;
    match root.filter(is_infinispan).and_then(|root| root.children.into_iter().next()) {
        Some(node) => Some(node),
        None => {
            problems.refuse(Place { line: 1, column: 1 }, format!("one object `{ROOT}` was expected"));
            None
        }
    }
}

impl YamlReader<'_, '_> {
    fn event(&mut self, event: Event<'_>, place: Place) -> Result<()> {
        match event {
            Event::MappingStart(..) | Event::SequenceStart(..) if self.open.len() >= NESTING_MAX => {
                Err((place, format!("objects are nested deeper than {NESTING_MAX}")))
            }
            Event::MappingStart(..) => self.open_object(place),
            Event::SequenceStart(..) => {
                let (key, place) = match self.open.last_mut() {
                    Some(Frame::Object { key, .. }) => {
                        key.clone().ok_or((place, "a list as a key".to_owned()))?
                    }
                    _ => return Err((place, "a list where an object was expected".to_owned())),
                };
                self.open.push(Frame::List { key, place, words: Vec::new(), items: Vec::new() });
                Ok(())
            }
            Event::MappingEnd | Event::SequenceEnd => match self.open.pop() {
                Some(Frame::Object { node, .. }) if self.open.is_empty() => {
                    if self.root.is_some() {
                        return Err((place, "a second document".to_owned()));
                    }
                    self.root = Some(node);
                    Ok(())
                }
                Some(Frame::Object { node, .. }) => self.add(Value::Object(node), place),
                Some(Frame::List { place, words, items, .. }) => {
                    self.add(Value::List { place, words, items }, place)
                }
                None => Ok(()),
            },
            Event::Scalar(text, style, ..) => self.scalar(&text, style, place),
            Event::Alias(..) => Err((place, "aliases (*name) are not read; repeat the settings".to_owned())),
            _ => Ok(()),
        }
    }

    fn open_object(&mut self, place: Place) -> Result<()> {
        let (written, place) = match self.open.last() {
            None => (String::new(), place),
            Some(Frame::Object { key, .. }) => key.clone().ok_or((place, "an object as a key".to_owned()))?,
            Some(Frame::List { key, .. }) => (key.clone(), place),
        };
        let mut node = Node::new(&written, place);
        if self.is_raw() {
            node.name = written;
        }
        self.open.push(Frame::Object { node, key: None });
        Ok(())
    }

    fn is_raw(&self) -> bool {
        self.open.iter().any(|frame| matches!(frame, Frame::Object { node, .. } if node.name == STACKS))
    }

    fn scalar(&mut self, text: &str, style: ScalarStyle, place: Place) -> Result<()> {
        match self.open.last_mut() {
            None => Err((place, "a text where an object was expected".to_owned())),
            Some(Frame::Object { node, key: key @ None }) => {
                let is_known = node.children.iter().any(|child| child.written == text)
                    || node.attributes.iter().any(|attribute| attribute.name == hyphenated(text));
                if is_known {
                    return Err((place, format!("`{text}` is defined more than once")));
                }
                *key = Some((text.to_owned(), place));
                Ok(())
            }
            Some(_) => {
                let is_null = style == ScalarStyle::Plain && matches!(text, "" | "~" | "null");
                let value = if is_null { Value::Null } else { Value::Text(text.to_owned()) };
                self.add(value, place)
            }
        }
    }

    fn add(&mut self, value: Value, place: Place) -> Result<()> {
        self.parts += 1;
        if self.parts > PARTS_MAX {
            return Err((place, format!("more than {PARTS_MAX} objects and values")));
        }
        let is_raw = self.is_raw();
        match (self.open.last_mut(), value) {
            (Some(Frame::List { words, items, .. }), Value::Text(word)) if items.is_empty() => {
                words.push(word);
                Ok(())
            }
            (Some(Frame::List { words, items, .. }), Value::Object(item)) if words.is_empty() => {
                items.push(item);
                Ok(())
            }
            (Some(Frame::List { .. }) | None, _) => {
                Err((place, "a list has either texts or objects".to_owned()))
            }
            (Some(Frame::Object { node, key }), value) => {
                let Some((key, at)) = key.take() else {
                    return Err((place, "a value without a key".to_owned()));
                };
                match value {
                    Value::Null => node.children.push(Node::new(&key, at)),
                    Value::Object(child) => node.children.push(child),
                    Value::Text(text) => {
                        let attribute = if is_raw {
                            Some(Attribute { name: underscored(&key), value: text, place: at })
                        } else {
                            substitute(hyphenated(&key), &text, at, self.variables, self.problems)
                        };
                        node.attributes.extend(attribute);
                    }
                    Value::List { place, words, items } if items.is_empty() => {
                        let value = words.join(" ");
                        let name = if is_raw { underscored(&key) } else { hyphenated(&key) };
                        node.attributes.extend(substitute(
                            name,
                            &value,
                            place,
                            self.variables,
                            self.problems,
                        ));
                    }
                    Value::List { place, items, .. } => {
                        let mut list = Node::new(&key, place);
                        list.children = items;
                        node.children.push(list);
                    }
                }
                Ok(())
            }
        }
    }
}
