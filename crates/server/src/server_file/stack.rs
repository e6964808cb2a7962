//! The stack of a server's file: the part that JGroups' rules apply to, as XML for the reader of stacks, with all elements and
//! attributes where the file has them.

use std::path::Path;

use consort_conf::{ConfigError, Stack, Variables, check_required_layers, parse_stack_at};

use super::document::{Attribute, Node, STACKS};
use super::problem::{Place, Problems};
use crate::catalog::definition::hyphenated;

struct Writer {
    text: String,
    at: Place,
}

impl Writer {
    fn push(&mut self, text: &str) {
        self.text.push_str(text);
        self.at.column += text.chars().count() as u32;
    }

    /// Writes line breaks and spaces up to a place.
    fn move_to(&mut self, place: Place) {
        while self.at.line < place.line {
            self.text.push('\n');
            self.at = Place { line: self.at.line + 1, column: 1 };
        }
        while self.at < place {
            self.push(" ");
        }
    }

    fn attribute(&mut self, attribute: &Attribute) {
        self.push(" ");
        self.move_to(attribute.place);
        self.push(&attribute.name);
        self.push("=\"");
        self.push(&quick_xml::escape::escape(&attribute.value[..]));
        self.push("\"");
    }

    fn element(&mut self, node: &Node) {
        self.move_to(node.place);
        self.push("<");
        self.push(&node.name);
        node.attributes.iter().for_each(|attribute| self.attribute(attribute));
        self.push(">");
        node.children.iter().for_each(|child| self.element(child));
        self.push("</");
        self.push(&node.name);
        self.push(">");
    }
}

/// Stacks under their names, as in JSON and YAML, become elements with a name, as in XML.
fn named_stacks(jgroups: &Node, problems: &mut Problems) -> Node {
    let mut named = Node { children: Vec::new(), ..jgroups.clone() };
    for child in &jgroups.children {
        match &child.name[..] {
            "stack" | "stack-file" => named.children.push(child.clone()),
            "stacks" => {
                for member in &child.children {
                    let [stack] = &member.children[..] else {
                        problems.refuse(member.place, format!("`{}` is not one stack", member.written));
                        continue;
                    };
                    let mut stack = stack.clone();
                    stack.name = hyphenated(&stack.written);
                    let name = Attribute {
                        name: "name".to_owned(),
                        value: member.written.clone(),
                        place: member.place,
                    };
                    stack.attributes.insert(0, name);
                    named.children.push(stack);
                }
            }
            other => problems.refuse(child.place, format!("unknown element <{other}> in <jgroups>")),
        }
    }
    for attribute in named.attributes.drain(..) {
        // Infinispan has no attributes here since version 16.
        if attribute.name == "transport" {
            problems.warn(
                attribute.place,
                "transport of jgroups: it is a class of Infinispan's transport in Java",
            );
            continue;
        }
        problems.refuse(attribute.place, format!("unknown attribute `{}` of jgroups", attribute.name));
    }
    named
}

/// Returns the elements `jgroups`, and the stack that the transport names.
fn stacks_text(root: &Node, transport: Option<&Node>, problems: &mut Problems) -> String {
    let mut writer = Writer { text: String::new(), at: Place { line: 1, column: 1 } };
    writer.push("<infinispan>");
    let mut elements: Vec<(Place, Node)> = Vec::new();
    for jgroups in root.children.iter().filter(|child| child.name == STACKS) {
        elements.push((jgroups.place, named_stacks(jgroups, problems)));
    }
    if let Some(stack) = transport.and_then(|transport| transport.get("stack")) {
        // The enclosing elements have the first place, so that the attribute can be written at its own place.
        let mut named = Node::new("transport", Place::default());
        named.attributes.push(stack.clone());
        let mut container = Node::new("cache-container", Place::default());
        container.children.push(named);
        elements.push((stack.place, container));
    }
    elements.sort_by_key(|(place, _)| *place);
    elements.iter().for_each(|(_, element)| writer.element(element));
    writer.push("</infinispan>");
    writer.text
}

/// Reads the stack that the transport names. Adds problems, those of other stacks of the file, too.
pub(super) fn read(
    root: &Node,
    transport: Option<&Node>,
    directory: Option<&Path>,
    variables: &Variables,
    problems: &mut Problems,
) -> Option<Stack> {
    let text = stacks_text(root, transport, problems);
    match parse_stack_at(problems.file(), &text, directory, variables) {
        Ok(stack) => {
            let file = problems.file().to_owned();
            for ignored in stack.ignored.iter().filter(|ignored| stack.config.file(ignored.position) == file)
            {
                let place = Place { line: ignored.position.line, column: ignored.position.column };
                let text = format!(
                    "{} of {} has no effect: {}",
                    ignored.attribute, ignored.protocol, ignored.reason
                );
                problems.warn(place, text);
            }
            if let Err(error) = check_required_layers(&stack.config) {
                add(&error, problems);
            }
            Some(stack)
        }
        Err(error) => {
            add(&error, problems);
            error.others.iter().for_each(|other| add(other, problems));
            None
        }
    }
}

fn add(error: &ConfigError, problems: &mut Problems) {
    let place = error.position.map(|position| Place { line: position.line, column: position.column });
    let is_own = &*error.file == problems.file();
    let text = if is_own { error.fault.to_string() } else { format!("{}: {}", error.file, error.fault) };
    problems.refuse(place.filter(|_| is_own).unwrap_or(Place { line: 1, column: 1 }), text);
}
