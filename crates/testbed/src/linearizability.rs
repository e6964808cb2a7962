//! The checker of histories in `interop/linearizability`, compiled in `target/interop`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::jar::{JarError, JavaTree, fetch_once, finish, in_file, sources};

const SOURCES: &[&str] = &["go.mod", "go.sum", "main.go", "main_test.go"];

/// A program that decides for each key of a history whether it is linearizable.
#[derive(Clone, Debug)]
pub struct LinearizabilityChecker {
    program: PathBuf,
}

impl LinearizabilityChecker {
    /// Compiles the checker with Go and runs its own tests, unless done for these sources.
    pub fn prepare() -> Result<Self, JarError> {
        let tree = JavaTree::open()?;
        let project = tree.root.join("interop/linearizability");
        let directory = tree.directory.join("linearizability");
        fetch_once(&sources(&project, SOURCES)?, &directory, || {
            fs::create_dir_all(&directory).map_err(in_file(&directory))?;
            let mut test = Command::new("go");
            test.args(["test", "-mod=readonly", "./..."]).current_dir(&project);
            finish(&mut test, "Go 1.26 or later, for the checker of histories")?;
            let mut build = Command::new("go");
            build.args(["build", "-mod=readonly", "-trimpath", "-o"]).arg(&directory).arg("./...");
            finish(build.current_dir(&project), "Go 1.26 or later, for the checker of histories")
        })?;
        Ok(Self { program: directory.join("linearizability") })
    }

    /// Returns a command that checks these histories: a line of JSON for each, and exit code 0 if all are linearizable.
    pub fn command<'a>(&self, histories: impl IntoIterator<Item = &'a Path>) -> Command {
        let mut command = Command::new(&self.program);
        command.args(histories);
        command
    }
}
