//! The directories that relative paths of a file begin at.

use std::path::{Path, PathBuf};

use consort_conf::Variables;

use super::document::Node;
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
