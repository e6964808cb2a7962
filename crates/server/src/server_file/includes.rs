//! XInclude: an element `<xi:include href="FILE"/>` stands for the outermost element of a file, as in Infinispan.

use std::collections::BTreeSet;
use std::path::Path;

use consort_conf::Variables;

use super::document::{self, FILE_BYTES_MAX, Node, STACKS};
use super::locations::Locations;
use super::problem::{Place, Problems, Severity};

const INCLUDE: &str = "include";

/// The most included files.
const INCLUDES_MAX: usize = 64;

/// The most files that include each other; also the end of one that includes itself.
const NESTING_MAX: usize = 8;

struct Includes<'v> {
    variables: &'v Variables,
    count: usize,
    /// Variables in included texts.
    names: BTreeSet<String>,
}

/// Replaces the elements, and returns the variables that the included files use. Problems have the place of the element. Nothing is
/// replaced in a text without a directory.
pub(super) fn expand(root: &mut Node, locations: Locations<'_>, problems: &mut Problems) -> BTreeSet<String> {
    let mut includes = Includes { variables: locations.variables, count: 0, names: BTreeSet::new() };
    if let Some(directory) = locations.directory {
        includes.expand(root, directory, 0, problems);
    }
    includes.names
}

impl Includes<'_> {
    fn expand(&mut self, node: &mut Node, directory: &Path, depth: usize, problems: &mut Problems) {
        for child in node.children.iter_mut().filter(|child| child.name != STACKS) {
            if child.name != INCLUDE {
                self.expand(child, directory, depth, problems);
                continue;
            }
            let Some(href) = child.get("href").filter(|_| child.children.is_empty()) else { continue };
            let (path, place) = (directory.join(&href.value), child.place);
            if let Some(mut included) = self.read(&path, place, depth, problems) {
                let directory = path.parent().unwrap_or(directory).to_owned();
                // Its own places are those of another file.
                move_to(&mut included, place);
                *child = included;
                self.expand_included(child, &directory, depth + 1, problems);
            }
        }
    }

    /// The outermost element may itself stand for a file.
    fn expand_included(&mut self, node: &mut Node, directory: &Path, depth: usize, problems: &mut Problems) {
        let mut outer = Node::new("included", node.place);
        outer.children.push(std::mem::replace(node, Node::new("included", node.place)));
        self.expand(&mut outer, directory, depth, problems);
        if let Some(inner) = outer.children.pop() {
            *node = inner;
        }
    }

    fn read(&mut self, path: &Path, place: Place, depth: usize, problems: &mut Problems) -> Option<Node> {
        let file = path.display();
        self.count += 1;
        if depth == NESTING_MAX || self.count > INCLUDES_MAX {
            let text = format!(
                "include: {file} is not read: at most {INCLUDES_MAX} files are included, and {NESTING_MAX} by each other"
            );
            problems.refuse(place, text);
            return None;
        }
        let text = match std::fs::metadata(path) {
            Ok(found) if found.len() > FILE_BYTES_MAX as u64 => {
                let text =
                    format!("include: {file} has {} bytes; the limit is {FILE_BYTES_MAX}", found.len());
                problems.refuse(place, text);
                return None;
            }
            Ok(_) => std::fs::read_to_string(path),
            Err(error) => Err(error),
        };
        let text = match text {
            Ok(text) => text,
            Err(error) => {
                problems.refuse(place, format!("include: {file} cannot be read: {error}"));
                return None;
            }
        };
        self.names.extend(Variables::names_in(&text).map(str::to_owned));
        let mut own = Problems::new(&file.to_string());
        let read = document::parse_xml(text.trim_start_matches('\u{feff}'), self.variables, &mut own);
        for problem in own.listed() {
            let text = format!("include: {file}:{}: {}", problem.place, problem.text);
            match problem.severity {
                Severity::Refused => problems.refuse(place, text),
                Severity::Warning => problems.warn(place, text),
            }
        }
        read
    }
}

fn move_to(node: &mut Node, place: Place) {
    node.place = place;
    node.attributes.iter_mut().for_each(|attribute| attribute.place = place);
    node.children.iter_mut().for_each(|child| move_to(child, place));
}
