//! The configurations of caches and servers in Infinispan's jars, and Infinispan's parsers for them, in `target/interop`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::jar::{JDK, JarError, JavaTree, entries, extract, finish_with_output};
use crate::jvm::brief_jvm;

const PROJECT: &str = "interop/server-files";
const PROGRAM: &str = "ServerFiles.java";
const FORMATS: [&str; 4] = [".xml", ".json", ".yaml", ".yml"];

/// Files of one release of Infinispan: those of its server, and those that its tests parse.
#[derive(Clone, Debug)]
pub struct ServerFiles {
    program: PathBuf,
    libraries: PathBuf,
    directory: PathBuf,
}

impl ServerFiles {
    /// Fetches and extracts missing files, with Maven and the JDK.
    pub fn prepare() -> Result<Self, JarError> {
        let tree = JavaTree::open()?;
        let project = tree.root.join(PROJECT);
        let libraries = tree.directory.join("lib-server-files");
        tree.fetch(&project, &libraries, "Maven, for configurations of Infinispan's server")?;
        let directory = tree.directory.join("server-files");
        if directory.exists() {
            fs::remove_dir_all(&directory).map_err(crate::jar::in_file(&directory))?;
        }
        for jar in entries(&libraries)? {
            let name = jar.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            if name.starts_with("infinispan-") {
                let is_wanted = |file: &str| {
                    !file.starts_with("META-INF") && FORMATS.iter().any(|format| file.ends_with(format))
                };
                extract(&jar, &directory.join(name), is_wanted)?;
            }
        }
        Ok(Self { program: project.join(PROGRAM), libraries, directory })
    }

    /// Returns the directory of the files, with one directory for each jar.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns all files, sorted: also those of other programs, such as of a log.
    pub fn files(&self) -> Result<Vec<PathBuf>, JarError> {
        let mut files = Vec::new();
        let mut directories = vec![self.directory.clone()];
        while let Some(directory) = directories.pop() {
            for path in entries(&directory)? {
                if path.is_dir() { directories.push(path) } else { files.push(path) }
            }
        }
        files.sort();
        Ok(files)
    }

    /// Parses and validates files with Infinispan and these variables. Returns the error of each file, or `None` if Infinispan
    /// accepts it.
    pub fn parse(
        &self,
        files: &[PathBuf],
        variables: &[(&str, &str)],
    ) -> Result<BTreeMap<PathBuf, Option<String>>, JarError> {
        let mut java = brief_jvm();
        // Some configurations have key stores that the server creates in the current directory.
        java.current_dir(&self.directory);
        java.arg(format!("-Dinfinispan.server.home.path={}", self.directory.display()));
        java.args(variables.iter().map(|(name, value)| format!("-D{name}={value}")));
        java.arg("-cp").arg(format!("{}/*", self.libraries.display())).arg(&self.program).args(files);
        let output = finish_with_output(&mut java, JDK)?;
        let answers = output.lines().filter_map(|line| line.strip_prefix("@@ "));
        Ok(answers
            .filter_map(|line| {
                let mut parts = line.split('\t').skip(1);
                Some((PathBuf::from(parts.next()?), parts.next().map(str::to_owned)))
            })
            .collect())
    }
}
