//! JGroups' jar and classes of Java programs in `target/interop`, fetched and compiled at first use.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use thiserror::Error;

/// The files stay unchanged.
const CONFIGURATIONS: &[&str] = &[
    "tcp.xml",
    "udp.xml",
    "tcp-nio.xml",
    "tcp-new.xml",
    "udp-new.xml",
    "sequencer.xml",
    "tunnel.xml",
    "tcp-default.xml",
    "udp-default.xml",
    "nio-default.xml",
];

const PACKAGES: &[&str] = &["interop", "bench"];

/// The jar or classes could not be prepared.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum JarError {
    /// A tool is not installed.
    #[error("`{program}` ({package}) does not start: {error}")]
    Tool {
        /// The tool.
        program: String,
        /// Its package.
        package: &'static str,
        /// The reason.
        error: io::Error,
    },
    /// A tool failed.
    #[error("`{program}` ended with {status}:\n{output_text}")]
    Failed {
        /// The tool.
        program: String,
        /// Its exit status.
        status: ExitStatus,
        /// Its output.
        output_text: String,
    },
    /// A file cannot be read or written.
    #[error("{path}: {error}")]
    File {
        /// The file.
        path: PathBuf,
        /// The error.
        error: io::Error,
    },
    /// The project file has no release.
    #[error("{0} names no release")]
    Release(PathBuf),
}

/// A directory with the jar in `lib`, classes in `classes`, and JGroups' configurations.
#[derive(Clone, Debug)]
pub struct Jar {
    directory: PathBuf,
}

pub(crate) const JDK: &str = "a JDK 17 or later";

/// Java sources and their results, locked against other processes.
pub(crate) struct JavaTree {
    pub(crate) root: PathBuf,
    pub(crate) directory: PathBuf,
    _lock: File,
}

impl JavaTree {
    pub(crate) fn open() -> Result<Self, JarError> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let root = root.canonicalize().map_err(in_file(&root))?;
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
        let directory = target.join("interop");
        fs::create_dir_all(&directory).map_err(in_file(&directory))?;
        // Two programs may start at once.
        let path = directory.join("lock");
        let lock = File::create(&path).map_err(in_file(&path))?;
        lock.lock().map_err(in_file(&path))?;
        Ok(Self { root, directory, _lock: lock })
    }

    pub(crate) fn copy_dependencies(
        &self,
        project: &Path,
        to: &Path,
        why: &'static str,
    ) -> Result<(), JarError> {
        self.copy_dependencies_with(project, to, &[], why)
    }

    pub(crate) fn copy_dependencies_with(
        &self,
        project: &Path,
        to: &Path,
        settings: &[String],
        why: &'static str,
    ) -> Result<(), JarError> {
        let mut fetch = Command::new("mvn");
        fetch.args(["--quiet", "--batch-mode", "dependency:copy-dependencies", "--file"]).arg(project);
        fetch.arg(format!("-DoutputDirectory={}", to.display())).args(settings);
        finish(&mut fetch, why)
    }

    /// Does nothing if the directory has the result of the same sources and project files: other processes may
    /// have loaded those classes.
    pub(crate) fn compile_once(
        &self,
        project: &Path,
        libraries: &[PathBuf],
        classes: &Path,
        compile: impl FnOnce() -> Result<(), JarError>,
    ) -> Result<(), JarError> {
        let mut made_of = libraries.to_vec();
        java_files(&project.join("src/main/java"), &mut made_of)?;
        let read = |path: &PathBuf| fs::read_to_string(path).map_err(in_file(path));
        let wanted = made_of.iter().map(read).collect::<Result<Vec<_>, _>>()?.concat();
        fetch_once(&wanted, classes, compile)
    }

    /// Into a directory of their own, unless they are there.
    pub(crate) fn fetch(&self, project: &Path, to: &Path, why: &'static str) -> Result<(), JarError> {
        let release = project.join("pom.xml");
        let wanted = fs::read_to_string(&release).map_err(in_file(&release))?;
        fetch_once(&wanted, to, || self.copy_dependencies(project, to, why))
    }
}

impl Jar {
    /// Fetches and compiles missing files, with Maven and the JDK.
    pub fn prepare() -> Result<Self, JarError> {
        let tree = JavaTree::open()?;
        let (java, directory) = (tree.root.join("interop/java"), &tree.directory);
        let project = java.join("pom.xml");
        let lib = directory.join("lib");
        let jar_of = |artifact| -> Result<PathBuf, JarError> {
            let release = release(&project, artifact)?;
            Ok(lib.join(format!("{artifact}-{release}.jar")))
        };
        let (jar, kubernetes, driver) =
            (jar_of("jgroups")?, jar_of("jgroups-kubernetes")?, jar_of("postgresql")?);
        if !jar.exists() || !kubernetes.exists() || !driver.exists() {
            tree.copy_dependencies(&java, &lib, "Maven, for JGroups")?;
        }
        let classes = directory.join("classes");
        tree.compile_once(&java, &[project], &classes, || {
            let mut unpack = Command::new("jar");
            unpack.args(["--extract", "--file"]).arg(&jar).args(CONFIGURATIONS).current_dir(directory);
            finish(&mut unpack, JDK)?;
            let mut compile = Command::new("javac");
            compile.args(["--release", "17", "-cp"]).arg(&jar).arg("-d").arg(&classes);
            let mut sources = Vec::new();
            for package in PACKAGES {
                java_files(&java.join("src/main/java/consort").join(package), &mut sources)?;
            }
            finish(compile.args(sources), JDK)
        })?;
        Ok(Self { directory: tree.directory })
    }

    pub(crate) fn of_tree(tree: JavaTree) -> Self {
        Self { directory: tree.directory }
    }

    /// Opens the directory that another process has prepared.
    pub fn in_directory(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into() }
    }

    /// Returns the directory of all files.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the class path of the Java programs.
    pub fn classpath(&self) -> String {
        format!("{0}/classes:{0}/lib/*", self.directory.display())
    }
}

pub(crate) fn sources(project: &Path, names: &[&str]) -> Result<String, JarError> {
    let read = |name: &&str| {
        let path = project.join(name);
        fs::read_to_string(&path).map_err(in_file(&path))
    };
    Ok(names.iter().map(read).collect::<Result<Vec<_>, _>>()?.concat())
}

/// Does nothing if the directory has the wanted files.
pub(crate) fn fetch_once(
    wanted: &str,
    to: &Path,
    fetch: impl FnOnce() -> Result<(), JarError>,
) -> Result<(), JarError> {
    // Written last, so that an interrupted fetch is repeated.
    let fetched = to.join("fetched");
    if fs::read_to_string(&fetched).is_ok_and(|found| found == wanted) {
        return Ok(());
    }
    if to.exists() {
        fs::remove_dir_all(to).map_err(in_file(to))?;
    }
    fetch()?;
    fs::write(&fetched, wanted).map_err(in_file(&fetched))
}

pub(crate) fn release(pom: &Path, artifact: &str) -> Result<String, JarError> {
    let text = fs::read_to_string(pom).map_err(in_file(pom))?;
    let after = |text: &str, mark: &str| text.split_once(mark).map(|(_, rest)| rest.to_owned());
    after(&text, &format!("<artifactId>{artifact}</artifactId>"))
        .and_then(|rest| after(&rest, "<version>"))
        .and_then(|rest| rest.split_once("</version>").map(|(version, _)| version.to_owned()))
        .ok_or_else(|| JarError::Release(pom.to_owned()))
}

/// The files are sorted.
pub(crate) fn java_files(directory: &Path, found: &mut Vec<PathBuf>) -> Result<(), JarError> {
    for path in entries(directory)? {
        if path.is_dir() {
            java_files(&path, found)?;
        } else if path.extension().is_some_and(|extension| extension == "java") {
            found.push(path);
        }
    }
    Ok(())
}

/// Extracts the wanted files with their directories, and returns their number.
pub(crate) fn extract(jar: &Path, to: &Path, is_wanted: impl Fn(&str) -> bool) -> Result<usize, JarError> {
    let mut list = Command::new("jar");
    let list = list.args(["--list", "--file"]).arg(jar).stdin(Stdio::null()).output();
    let list = list.map_err(|error| JarError::Tool { program: "jar".to_owned(), package: JDK, error })?;
    let names = String::from_utf8_lossy(&list.stdout).into_owned();
    let wanted: Vec<&str> = names.lines().filter(|name| is_wanted(name)).collect();
    // Without names `jar` would extract all files.
    if !wanted.is_empty() {
        fs::create_dir_all(to).map_err(in_file(to))?;
        let mut extract = Command::new("jar");
        extract.args(["--extract", "--file"]).arg(jar).args(&wanted).current_dir(to);
        finish(&mut extract, JDK)?;
    }
    Ok(wanted.len())
}

/// The paths are sorted.
pub(crate) fn entries(directory: &Path) -> Result<Vec<PathBuf>, JarError> {
    let entries = fs::read_dir(directory).map_err(in_file(directory))?;
    let entries = entries.map(|entry| entry.map(|entry| entry.path()));
    let mut entries = entries.collect::<Result<Vec<_>, _>>().map_err(in_file(directory))?;
    entries.sort();
    Ok(entries)
}

pub(crate) fn finish(command: &mut Command, package: &'static str) -> Result<(), JarError> {
    finish_with_output(command, package).map(drop)
}

/// Returns what the program wrote to its standard output.
pub(crate) fn finish_with_output(command: &mut Command, package: &'static str) -> Result<String, JarError> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = match command.stdin(Stdio::null()).output() {
        Ok(output) => output,
        Err(error) => return Err(JarError::Tool { program, package, error }),
    };
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let output_text = [output.stdout, output.stderr].concat();
    Err(JarError::Failed {
        program,
        status: output.status,
        output_text: String::from_utf8_lossy(&output_text).into_owned(),
    })
}

pub(crate) fn in_file(path: &Path) -> impl FnOnce(io::Error) -> JarError + use<> {
    let path = path.to_owned();
    move |error| JarError::File { path, error }
}
