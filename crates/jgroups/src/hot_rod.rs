//! The Java Hot Rod client and our programs that use it, in `target/interop`, fetched and compiled when they are first
//! needed.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::jar::{JDK, JarError, JavaTree, finish, in_file};

/// A directory with the client in `lib-hotrod` and our programs in `classes-hotrod`.
#[derive(Clone, Debug)]
pub struct HotRodClient {
    directory: PathBuf,
}

impl HotRodClient {
    /// Fetches and compiles what is not there yet.
    ///
    /// # Errors
    ///
    /// If Maven or the JDK is missing or fails.
    pub fn prepare() -> Result<Self, JarError> {
        let tree = JavaTree::open()?;
        let (java, directory) = (tree.root.join("interop/hotrod"), tree.directory.clone());
        let lib = directory.join("lib-hotrod");
        tree.fetch(&java, &lib, "Maven, for the Hot Rod client")?;
        let sources = java.join("src/main/java/consort/hotrod");
        let mut compile = Command::new("javac");
        compile.args(["--release", "17", "-nowarn", "-proc:none", "-cp"]).arg(format!("{}/*", lib.display()));
        compile.arg("-d").arg(directory.join("classes-hotrod"));
        for entry in fs::read_dir(&sources).map_err(in_file(&sources))? {
            compile.arg(entry.map_err(in_file(&sources))?.path());
        }
        finish(compile, JDK)?;
        Ok(Self { directory })
    }

    /// A command that runs one of our programs.
    pub fn command(&self, program: &str) -> Command {
        let mut java = Command::new("java");
        java.arg("-cp").arg(format!("{0}/classes-hotrod:{0}/lib-hotrod/*", self.directory.display()));
        java.arg(format!("consort.hotrod.{program}"));
        java
    }
}
