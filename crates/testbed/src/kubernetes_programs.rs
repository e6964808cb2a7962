//! Programs of Kubernetes and Helm, compiled from Go modules into `target/interop`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::jar::{JarError, JavaTree, fetch_once, finish, in_file, sources};

const SOURCES: &[&str] = &["build.sh", "go.mod", "go.sum"];

/// A directory with programs of `interop/kubernetes`.
#[derive(Clone, Debug)]
pub struct KubernetesPrograms {
    root: PathBuf,
    directory: PathBuf,
}

impl KubernetesPrograms {
    /// Fetches and compiles `helm` and `manifests` with Go, unless they are there.
    pub fn prepare() -> Result<Self, JarError> {
        Self::of("helm", &["helm.sh/helm/v3/cmd/helm", "./manifests"], &["manifests/main.go"])
    }

    /// Fetches and compiles `cluster` and `pause` with Go, unless they are there. The first time takes about ten minutes of CPU time.
    pub(crate) fn prepare_cluster() -> Result<Self, JarError> {
        let sources = ["cluster/main.go", "cluster/keys.go", "pause/main.go"];
        Self::of("kubernetes", &["./cluster", "./pause"], &sources)
    }

    fn of(name: &str, packages: &[&str], programs: &[&str]) -> Result<Self, JarError> {
        let tree = JavaTree::open()?;
        let (project, directory) = (tree.root.join("interop/kubernetes"), tree.directory.join(name));
        fetch_once(&sources(&project, &[SOURCES, programs].concat())?, &directory, || {
            fs::create_dir_all(&directory).map_err(in_file(&directory))?;
            let mut build = Command::new("bash");
            build.arg(project.join("build.sh")).arg(&directory).args(packages);
            finish(&mut build, "Go 1.26 or later, for Kubernetes and Helm")
        })?;
        Ok(Self { root: tree.root.clone(), directory })
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the directory of `consort server`'s chart.
    pub fn chart(&self) -> PathBuf {
        self.root.join("charts/consort")
    }

    /// Returns a command that runs Helm without a cluster, with all of its files in this directory.
    pub fn helm(&self) -> Command {
        let mut helm = Command::new(self.directory.join("helm"));
        self.set_helm_directories(&mut helm);
        helm.env("KUBECONFIG", self.directory.join("no-cluster"));
        helm
    }

    /// Sets the directories of Helm's own files.
    pub(crate) fn set_helm_directories(&self, command: &mut Command) {
        for (variable, name) in [("CACHE", "cache"), ("CONFIG", "config"), ("DATA", "data")] {
            command.env(format!("HELM_{variable}_HOME"), self.directory.join(name));
        }
    }

    /// Returns a command that parses YAML manifests as Kubernetes' own types and writes a list in JSON. Its
    /// arguments are the kinds that are not Kubernetes' own.
    pub fn manifests(&self) -> Command {
        Command::new(self.directory.join("manifests"))
    }
}
