//! The directories that relative paths of a file begin at.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use consort_conf::Variables;

use super::OptionsBeside;
use super::document::{Node, STACKS};
use super::problem::Problems;
use super::section::Section;

/// Infinispan's server sets this variable to the directory of its file.
pub(super) const CONFIG_PATH: &str = "infinispan.server.config.path";

/// Infinispan's server sets this variable to its directory for data.
pub(super) const DATA_PATH: &str = "infinispan.server.data.path";

/// The directory of a file, and the variables that name other directories.
#[derive(Clone, Copy)]
pub(super) struct Locations<'a> {
    pub(super) directory: Option<&'a Path>,
    pub(super) variables: &'a Variables,
    pub(super) options: OptionsBeside,
}

impl Locations<'_> {
    /// Returns the path of an element, relative to the directory that a variable names, or to that of the file.
    pub(super) fn path(
        &self,
        node: &Node,
        section: &mut Section<'_>,
        default: &str,
        problems: &mut Problems,
    ) -> Option<PathBuf> {
        let path = PathBuf::from(section.required("path", problems)?);
        let base = match section.attribute("relative-to").filter(|base| !base.value.is_empty()) {
            Some(base) => {
                let found = self.variables.get(&base.value);
                let is_own = found.is_none() && base.value == CONFIG_PATH;
                if found.is_none() && !is_own && path.is_relative() {
                    let text = format!(
                        "relative-to of {}: the variable {} is not set; set it with -D, or write an absolute path",
                        node.name, base.value
                    );
                    problems.refuse(base.place, text);
                    return None;
                }
                found.map(PathBuf::from)
            }
            None => self.variables.get(default).map(PathBuf::from),
        };
        let base = base.or_else(|| self.directory.map(Path::to_path_buf)).unwrap_or_default();
        Some(base.join(path))
    }
}

/// The names of variables with an effect: those within `${…}`, those in `relative-to`, and those at which paths begin otherwise.
pub(super) fn variables_of(text: &str, root: &Node) -> BTreeSet<String> {
    let mut all: BTreeSet<String> = Variables::names_in(text).map(str::to_owned).collect();
    // The directory for data, also without <global-state>.
    all.insert(DATA_PATH.to_owned());
    add_locations(root, DATA_PATH, &mut all);
    all
}

fn add_locations(node: &Node, default: &str, all: &mut BTreeSet<String>) {
    let default = match &node.name[..] {
        // A stack is not used without a cluster, and the path of a store has no effect.
        STACKS | "persistence" => return,
        "server" => CONFIG_PATH,
        _ => default,
    };
    if let Some(path) = node.get("path") {
        let base = node.get("relative-to").filter(|base| !base.value.is_empty());
        // An absolute path begins nowhere.
        if Path::new(&path.value).is_relative() {
            all.insert(base.map_or(default, |base| &base.value).to_owned());
        }
    }
    node.children.iter().for_each(|child| add_locations(child, default, all));
}
