//! A reader of one element. It reports each attribute and child that its caller has not read, so that none is ignored silently.

use std::collections::BTreeSet;
use std::str::FromStr;
use std::time::Duration;

use super::document::{Attribute, Node};
use super::problem::Problems;
use crate::catalog::definition::duration_of;

pub(super) struct Section<'n> {
    pub(super) node: &'n Node,
    read: BTreeSet<&'n str>,
}

/// Names of settings, and why they have no effect or are not possible.
pub(super) type Reasons = &'static [(&'static str, &'static str)];

impl<'n> Section<'n> {
    pub(super) const fn new(node: &'n Node) -> Self {
        Self { node, read: BTreeSet::new() }
    }

    pub(super) fn attribute(&mut self, name: &str) -> Option<&'n Attribute> {
        let found = self.node.get(name)?;
        self.read.insert(&found.name);
        Some(found)
    }

    /// Returns the value of an attribute; `None` also for an empty value, as of `${variable:}`.
    pub(super) fn text(&mut self, name: &str) -> Option<&'n str> {
        self.attribute(name).map(|attribute| &attribute.value[..]).filter(|value| !value.is_empty())
    }

    pub(super) fn required(&mut self, name: &str, problems: &mut Problems) -> Option<&'n str> {
        let found = self.text(name);
        if found.is_none() {
            problems.refuse(self.node.place, format!("<{}> needs the attribute `{name}`", self.node.name));
        }
        found
    }

    pub(super) fn parsed<V: FromStr>(&mut self, name: &str, problems: &mut Problems) -> Option<V> {
        let attribute = self.attribute(name).filter(|attribute| !attribute.value.is_empty())?;
        match attribute.value.parse() {
            Ok(value) => Some(value),
            Err(_) => {
                self.invalid(attribute, problems);
                None
            }
        }
    }

    fn invalid(&self, attribute: &Attribute, problems: &mut Problems) {
        let Attribute { name, value, place } = attribute;
        problems.refuse(*place, format!("{name} of {} cannot be `{value}`", self.node.name));
    }

    pub(super) fn flag(&mut self, name: &str, problems: &mut Problems) -> Option<bool> {
        self.parsed(name, problems)
    }

    /// Reads milliseconds, or a number with a unit.
    pub(super) fn duration(&mut self, name: &str, problems: &mut Problems) -> Option<Duration> {
        let attribute = self.attribute(name).filter(|attribute| !attribute.value.is_empty())?;
        match duration_of(&attribute.value) {
            Some(duration) => Some(duration),
            None => {
                self.invalid(attribute, problems);
                None
            }
        }
    }

    /// Reads words that are separated by spaces or commas.
    pub(super) fn words(&mut self, name: &str) -> Option<Vec<&'n str>> {
        let is_separator = |character: char| character.is_whitespace() || character == ',';
        let text = self.text(name)?;
        Some(text.split(is_separator).filter(|word| !word.is_empty()).collect())
    }

    /// Counts children as read: the caller reads them itself.
    pub(super) fn mark(&mut self, name: &str) {
        let _ = self.children(name);
    }

    pub(super) fn children(&mut self, name: &str) -> impl Iterator<Item = &'n Node> + use<'n> {
        let mut found = Vec::new();
        for child in self.node.children.iter().filter(|child| child.name == name) {
            self.read.insert(&child.name);
            // A list in JSON and YAML has an element of its own name for each item.
            let is_list = child.attributes.is_empty() && child.children.iter().all(|item| item.name == name);
            if is_list && !child.children.is_empty() {
                found.extend(&child.children);
            } else {
                found.push(child);
            }
        }
        found.into_iter()
    }

    /// Returns the only child of a name. A second one is refused, because only one of them could apply.
    pub(super) fn child(&mut self, name: &str, problems: &mut Problems) -> Option<&'n Node> {
        let mut all = self.node.children.iter().filter(|child| child.name == name);
        let first = all.next();
        if let Some(first) = first {
            self.read.insert(&first.name);
        }
        if let Some(second) = all.next() {
            problems.refuse(second.place, format!("a second <{name}> in <{}>", self.node.name));
        }
        first
    }

    /// Reports attributes and children that have no effect here.
    pub(super) fn warn(&mut self, reasons: Reasons, problems: &mut Problems) {
        self.report(reasons, |place, text| problems.warn(place, text));
    }

    pub(super) fn refuse(&mut self, reasons: Reasons, problems: &mut Problems) {
        self.report(reasons, |place, text| problems.refuse(place, text));
    }

    fn report(&mut self, reasons: Reasons, mut report: impl FnMut(super::problem::Place, String)) {
        for (name, why) in reasons {
            if let Some(attribute) = self.attribute(name) {
                report(attribute.place, format!("{name} of {}: {why}", self.node.name));
            }
            for child in self.children(name) {
                report(child.place, format!("<{name}>: {why}"));
            }
        }
    }

    /// Reports attributes and children as unknown that have not been read.
    pub(super) fn finish(self, problems: &mut Problems) {
        let of = &self.node.name;
        for attribute in &self.node.attributes {
            if !self.read.contains(&attribute.name[..]) {
                problems.refuse(attribute.place, format!("unknown attribute `{}` of {of}", attribute.name));
            }
        }
        for child in &self.node.children {
            if !self.read.contains(&child.name[..]) {
                problems.refuse(child.place, format!("unknown element <{}> in <{of}>", child.written));
            }
        }
        if !self.node.text.is_empty() {
            problems.refuse(self.node.place, format!("text within <{of}>; remove it"));
        }
    }
}
