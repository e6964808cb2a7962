//! Java data grids that Consort's is compared with: their jars and driver in `target/interop`.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::jar::{JDK, Jar, JarError, JavaTree, finish, release};

/// A data grid in Java. `interop/NAME/pom.xml` has the release.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum JavaGrid {
    /// Infinispan's embedded cache.
    Infinispan,
    /// Hazelcast's map.
    Hazelcast,
}

impl JavaGrid {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Infinispan, Self::Hazelcast];

    /// Returns the name for the Java program and in directories.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Infinispan => "infinispan",
            Self::Hazelcast => "hazelcast",
        }
    }

    const fn artifact(self) -> &'static str {
        match self {
            Self::Infinispan => "infinispan-core",
            Self::Hazelcast => "hazelcast",
        }
    }

    /// Returns the class path of its drivers, `consort.grid.Member` and `consort.grid.HazelcastRecovery`, with the JGroups of the grid's release, or none.
    pub fn classpath(self, jar: &Jar) -> String {
        format!("{0}/classes-grid:{0}/lib-{1}/*", jar.directory().display(), self.name())
    }

    fn project(self, tree: &JavaTree) -> PathBuf {
        tree.root.join("interop").join(self.name())
    }

    fn fetch(self, tree: &JavaTree) -> Result<(), JarError> {
        let project = self.project(tree);
        let lib = tree.directory.join(format!("lib-{}", self.name()));
        let release = release(&project.join("pom.xml"), self.artifact())?;
        if lib.join(format!("{}-{release}.jar", self.artifact())).exists() {
            return Ok(());
        }
        tree.copy_dependencies(&project, &lib, "Maven, for data grids in Java")
    }
}

impl Jar {
    /// Fetches the data grids and compiles their driver, if missing.
    pub fn prepare_grids() -> Result<Self, JarError> {
        let tree = JavaTree::open()?;
        prepare(&tree)?;
        Ok(Self::of_tree(tree))
    }
}

fn prepare(tree: &JavaTree) -> Result<(), JarError> {
    for grid in JavaGrid::ALL {
        grid.fetch(tree)?;
    }
    let (project, classes) = (tree.root.join("interop/java"), tree.directory.join("classes-grid"));
    let libraries = JavaGrid::ALL.map(|grid| grid.project(tree).join("pom.xml"));
    tree.compile_once(&project, &libraries, &classes, || {
        let sources = project.join("src/main/java");
        let mut compile = Command::new("javac");
        compile.args(["--release", "17", "-nowarn", "-proc:none", "-cp"]).arg(classpath(&tree.directory));
        compile.arg("-sourcepath").arg(&sources).arg("-d").arg(&classes);
        compile.args(
            ["Member", "HazelcastRecovery"]
                .map(|program| sources.join(format!("consort/grid/{program}.java"))),
        );
        finish(&mut compile, JDK)
    })
}

fn classpath(directory: &Path) -> String {
    JavaGrid::ALL.map(|grid| format!("{}/lib-{}/*", directory.display(), grid.name())).join(":")
}
