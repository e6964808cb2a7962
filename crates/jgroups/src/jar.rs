//! JGroups' jar and our Java programs' classes in `target/interop`, fetched and compiled when they are first needed.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use thiserror::Error;

use crate::grids;

/// Its configuration files that are loaded unchanged.
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

/// The packages of our Java programs, below `interop/java`.
const PACKAGES: &[&str] = &["interop", "bench"];

/// Why there is no jar, or no class.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum JarError {
    /// A tool is not installed.
    #[error("`{program}` ({package}) does not start: {error}")]
    Tool {
        /// The tool.
        program: String,
        /// What it comes with.
        package: &'static str,
        /// Why it does not start.
        error: io::Error,
    },
    /// A tool has not done what it was asked for.
    #[error("`{program}` ended with {status}:\n{said}")]
    Failed {
        /// The tool.
        program: String,
        /// How it ended.
        status: ExitStatus,
        /// What it printed.
        said: String,
    },
    /// A file cannot be read or written.
    #[error("{path}: {error}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// The project file does not say which release it is.
    #[error("{0} names no release")]
    Release(PathBuf),
}

/// A directory with the jar in `lib`, our classes in `classes`, and JGroups' configurations.
#[derive(Clone, Debug)]
pub struct Jar {
    directory: PathBuf,
}

pub(crate) const JDK: &str = "a JDK 17 or later";

/// Where Java sources lie and where what is made of them goes. Nobody else changes that meanwhile.
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

    /// Fetches what a project names.
    pub(crate) fn copy_dependencies(
        &self,
        project: &Path,
        to: &Path,
        why: &'static str,
    ) -> Result<(), JarError> {
        self.copy_dependencies_with(project, to, &[], why)
    }

    /// The same, with settings of the project's.
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

    /// Compiles programs of a project into a directory of their own, unless what is there was made of the same sources and
    /// of the libraries that the same project files name: others may have loaded it.
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

    /// Fetches what a project names into a directory of its own, unless it is there.
    pub(crate) fn fetch(&self, project: &Path, to: &Path, why: &'static str) -> Result<(), JarError> {
        let release = project.join("pom.xml");
        let wanted = fs::read_to_string(&release).map_err(in_file(&release))?;
        fetch_once(&wanted, to, || self.copy_dependencies(project, to, why))
    }
}

impl Jar {
    /// Fetches and compiles what is not there yet.
    ///
    /// # Errors
    ///
    /// If Maven or the JDK is missing or fails.
    pub fn prepare() -> Result<Self, JarError> {
        let tree = JavaTree::open()?;
        let (java, directory) = (tree.root.join("interop/java"), &tree.directory);
        let project = java.join("pom.xml");
        let release = release(&project, "jgroups")?;
        let jar = directory.join(format!("lib/jgroups-{release}.jar"));
        if !jar.exists() {
            tree.copy_dependencies(&java, &directory.join("lib"), "Maven, for JGroups")?;
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

    /// Fetches the data grids of [`crate::JavaGrid`] and compiles their driver, where they are not there yet.
    ///
    /// # Errors
    ///
    /// If Maven or the JDK is missing or fails.
    pub fn prepare_grids() -> Result<Self, JarError> {
        let tree = JavaTree::open()?;
        grids::prepare(&tree)?;
        Ok(Self { directory: tree.directory })
    }

    /// What another process has prepared.
    pub fn in_directory(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into() }
    }

    /// Where everything lies, configurations among it.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The class path of our Java programs.
    pub fn classpath(&self) -> String {
        format!("{0}/classes:{0}/lib/*", self.directory.display())
    }
}

/// Fetches something into a directory of its own, unless what is there was fetched as it is wanted.
pub(crate) fn fetch_once(
    wanted: &str,
    to: &Path,
    fetch: impl FnOnce() -> Result<(), JarError>,
) -> Result<(), JarError> {
    // The last act is to say what it is.
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

/// The release of this artifact that the project file names.
pub(crate) fn release(pom: &Path, artifact: &str) -> Result<String, JarError> {
    let text = fs::read_to_string(pom).map_err(in_file(pom))?;
    let after = |text: &str, mark: &str| text.split_once(mark).map(|(_, rest)| rest.to_owned());
    after(&text, &format!("<artifactId>{artifact}</artifactId>"))
        .and_then(|rest| after(&rest, "<version>"))
        .and_then(|rest| rest.split_once("</version>").map(|(version, _)| version.to_owned()))
        .ok_or_else(|| JarError::Release(pom.to_owned()))
}

/// The sources below a directory, in the same order every time.
pub(crate) fn java_files(directory: &Path, found: &mut Vec<PathBuf>) -> Result<(), JarError> {
    let entries = fs::read_dir(directory).map_err(in_file(directory))?;
    let entries = entries.map(|entry| entry.map(|entry| entry.path()));
    let mut entries = entries.collect::<Result<Vec<_>, _>>().map_err(in_file(directory))?;
    entries.sort();
    for path in entries {
        if path.is_dir() {
            java_files(&path, found)?;
        } else if path.extension().is_some_and(|extension| extension == "java") {
            found.push(path);
        }
    }
    Ok(())
}

pub(crate) fn finish(command: &mut Command, package: &'static str) -> Result<(), JarError> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = match command.stdin(Stdio::null()).output() {
        Ok(output) => output,
        Err(error) => return Err(JarError::Tool { program, package, error }),
    };
    if output.status.success() {
        return Ok(());
    }
    let said = [output.stdout, output.stderr].concat();
    Err(JarError::Failed {
        program,
        status: output.status,
        said: String::from_utf8_lossy(&said).into_owned(),
    })
}

pub(crate) fn in_file(path: &Path) -> impl FnOnce(io::Error) -> JarError + use<> {
    let path = path.to_owned();
    move |error| JarError::File { path, error }
}
