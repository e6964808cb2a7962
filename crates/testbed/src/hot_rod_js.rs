//! The Hot Rod client for Node.js and test programs for it, in `target/interop`.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::jar::{JarError, JavaTree, fetch_once, finish, in_file};

const PROGRAMS: [&str; 3] = ["client.js", "writes.js", "connect.js"];

/// A directory with the client in `node_modules` and the programs.
#[derive(Clone, Debug)]
pub struct HotRodJsClient {
    directory: PathBuf,
}

impl HotRodJsClient {
    /// Fetches missing files, with npm.
    pub fn prepare() -> Result<Self, JarError> {
        let tree = JavaTree::open()?;
        let (project, directory) = (tree.root.join("interop/hotrod-js"), tree.directory.join("hotrod-js"));
        let package = project.join("package.json");
        let wanted = fs::read_to_string(&package).map_err(in_file(&package))?;
        fetch_once(&wanted, &directory, || {
            fs::create_dir_all(&directory).map_err(in_file(&directory))?;
            fs::copy(&package, directory.join("package.json")).map_err(in_file(&package))?;
            let mut install = Command::new("npm");
            install.args(["install", "--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts"]);
            install.current_dir(&directory);
            finish(&mut install, "npm, for the Hot Rod client of Node.js")
        })?;
        for program in PROGRAMS {
            let (from, to) = (project.join(program), directory.join(program));
            let text = fs::read(&from).map_err(in_file(&from))?;
            // An unchanged program may be running.
            if fs::read(&to).ok().as_ref() != Some(&text) {
                fs::write(&to, text).map_err(in_file(&to))?;
            }
        }
        Ok(Self { directory })
    }

    /// Returns a command that runs `client` or `writes`.
    pub fn command(&self, program: &str) -> Command {
        let mut node = Command::new("node");
        node.arg(self.directory.join(format!("{program}.js")));
        node
    }
}
