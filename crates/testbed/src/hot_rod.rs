//! The Java Hot Rod client and test programs for it, in `target/interop`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::jar::{JDK, JarError, JavaTree, fetch_once, finish, in_file, java_files};
use crate::jvm::brief_jvm;

const PROJECT: &str = "interop/hotrod";
const MAVEN: &str = "Maven, for the Hot Rod client";

/// They need no API of the newest client.
const OF_ALL_RELEASES: [&str; 9] =
    ["Maps", "Writes", "Walks", "Listeners", "Counters", "Multimaps", "Streams", "Transactions", "Asked"];

/// A release of the Java client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HotRodRelease {
    /// 15.0.21.Final, the last with versions 2.0 to 2.9 of the protocol: several connections to a server, each
    /// with one request at a time.
    V15_0,
    /// 15.2.6.Final.
    V15_2,
    /// The release in `interop/hotrod/pom.xml`.
    V16_0,
    /// 16.2.2: its own classes with the libraries of 16.0.
    V16_2,
}

impl HotRodRelease {
    const fn version(self) -> Option<&'static str> {
        match self {
            Self::V15_0 => Some("15.0.21.Final"),
            Self::V15_2 => Some("15.2.6.Final"),
            Self::V16_0 => None,
            Self::V16_2 => Some("16.2.2"),
        }
    }

    fn path(self, tree: &Path, of: &str) -> PathBuf {
        tree.join(self.version().map_or_else(|| of.to_owned(), |version| format!("{of}-{version}")))
    }

    fn fetch(self, tree: &JavaTree) -> Result<PathBuf, JarError> {
        let (project, to) = (tree.root.join(PROJECT), self.path(&tree.directory, "lib-hotrod"));
        match self.version() {
            None => tree.fetch(&project, &to, MAVEN)?,
            Some(version) if self == Self::V16_2 => {
                let other = Self::V16_0.fetch(tree)?;
                fetch_once(version, &to, || replaced(&other, version, &to))?;
            }
            Some(version) => fetch_once(&format!("{version} with queries"), &to, || {
                let releases = ["hotrod", "queries"].map(|of| format!("-D{of}.release={version}"));
                tree.copy_dependencies_with(&project, &to, &releases, MAVEN)
            })?,
        }
        Ok(to)
    }
}

fn replaced(other: &Path, version: &str, to: &Path) -> Result<(), JarError> {
    const OWN: [&str; 2] = ["infinispan-client-hotrod", "infinispan-commons"];
    fs::create_dir_all(to).map_err(in_file(to))?;
    for entry in fs::read_dir(other).map_err(in_file(other))? {
        let entry = entry.map_err(in_file(other))?;
        let name = entry.file_name();
        let is_own = OWN.iter().any(|own| name.to_string_lossy().starts_with(own));
        if !is_own && entry.path().extension().is_some_and(|extension| extension == "jar") {
            fs::copy(entry.path(), to.join(name)).map_err(in_file(to))?;
        }
    }
    for artifact in OWN {
        let mut copy = Command::new("mvn");
        // Later releases of this plugin read the POM of the copied artifact, which is not available.
        copy.args(["--quiet", "--batch-mode", "org.apache.maven.plugins:maven-dependency-plugin:2.10:copy"]);
        copy.arg(format!("-Dartifact=org.infinispan:{artifact}:{version}"));
        copy.arg(format!("-DoutputDirectory={}", to.display()));
        finish(&mut copy, MAVEN)?;
    }
    Ok(())
}

fn compiler(libraries: &Path, sources: &Path, classes: &Path) -> Command {
    let mut compile = Command::new("javac");
    compile.args(["--release", "17", "-nowarn", "-proc:none", "-cp"]);
    compile.arg(format!("{}/*", libraries.display()));
    compile.arg("-sourcepath").arg(sources).arg("-d").arg(classes);
    compile
}

fn class_path(classes: &Path, libraries: &Path) -> String {
    format!("{}:{}/*", classes.display(), libraries.display())
}

/// The directories of the client's libraries and the programs' classes.
#[derive(Clone, Debug)]
pub struct HotRodClient {
    libraries: PathBuf,
    classes: PathBuf,
}

impl HotRodClient {
    /// Prepares the release in `interop/hotrod/pom.xml`: see [`HotRodClient::prepare_release`].
    pub fn prepare() -> Result<Self, JarError> {
        Self::prepare_release(HotRodRelease::V16_0)
    }

    /// Fetches and compiles missing files of a release, with Maven and the JDK.
    pub fn prepare_release(release: HotRodRelease) -> Result<Self, JarError> {
        let tree = JavaTree::open()?;
        let (libraries, classes) = (release.fetch(&tree)?, release.path(&tree.directory, "classes-hotrod"));
        let project = tree.root.join(PROJECT);
        tree.compile_once(&project, &[project.join("pom.xml")], &classes, || {
            let sources = project.join("src/main/java");
            let package = sources.join("consort/hotrod");
            let mut programs = Vec::new();
            if release == HotRodRelease::V16_0 {
                java_files(&package, &mut programs)?;
            } else {
                programs.extend(OF_ALL_RELEASES.map(|program| package.join(format!("{program}.java"))));
            }
            finish(compiler(&libraries, &sources, &classes).args(programs), JDK)
        })?;
        Ok(Self { libraries, classes })
    }

    /// Fetches the client and compiles the programs that `cargo xtask bench` starts: `consort.served.Load` and
    /// `consort.served.HotRodRecovery`. Returns their class path.
    pub fn prepare_load() -> Result<String, JarError> {
        let tree = JavaTree::open()?;
        let (libraries, classes) =
            (HotRodRelease::V16_0.fetch(&tree)?, tree.directory.join("classes-served"));
        // It shares its load with the measured members.
        let project = tree.root.join("interop/java");
        let its_libraries = tree.root.join(PROJECT).join("pom.xml");
        tree.compile_once(&project, &[its_libraries], &classes, || {
            let sources = project.join("src/main/java");
            let mut compile = compiler(&libraries, &sources, &classes);
            compile.args(
                ["Load", "HotRodRecovery"]
                    .map(|program| sources.join(format!("consort/served/{program}.java"))),
            );
            finish(&mut compile, JDK)
        })?;
        Ok(class_path(&classes, &libraries))
    }

    /// Returns a command that runs one of the programs.
    pub fn command(&self, program: &str) -> Command {
        let mut java = brief_jvm();
        java.arg("-cp").arg(class_path(&self.classes, &self.libraries));
        java.arg(format!("consort.hotrod.{program}"));
        java
    }
}
