//! Directories for the data of servers.

use std::path::PathBuf;

/// Removed when the test ends.
pub(crate) struct Directory(PathBuf);

impl Directory {
    /// The path of a directory that is not there yet: a server makes it.
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("consort-data-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Self(path)
    }

    pub(crate) fn of(&self, server: &str) -> String {
        self.0.join(server).display().to_string()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
