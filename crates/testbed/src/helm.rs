//! Helm, and a program that parses manifests as Kubernetes' types, in `target/interop`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::jar::{JarError, JavaTree, fetch_once, finish, in_file, sources};

const SOURCES: &[&str] = &["go.mod", "go.sum", "manifests/main.go"];

/// A directory with `helm` and `manifests`.
#[derive(Clone, Debug)]
pub struct Helm {
    root: PathBuf,
    directory: PathBuf,
}

impl Helm {
    /// Fetches and compiles missing programs, with Go.
    pub fn prepare() -> Result<Self, JarError> {
        let tree = JavaTree::open()?;
        let (project, directory) = (tree.root.join("interop/helm"), tree.directory.join("helm"));
        fetch_once(&sources(&project, SOURCES)?, &directory, || {
            fs::create_dir_all(&directory).map_err(in_file(&directory))?;
            let mut build = Command::new("go");
            build.args(["build", "-mod=readonly", "-trimpath", "-ldflags=-s -w", "-o"]).arg(&directory);
            build.args(["helm.sh/helm/v3/cmd/helm", "./manifests"]).current_dir(&project);
            finish(&mut build, "Go 1.26 or later, for Helm")
        })?;
        Ok(Self { root: tree.root.clone(), directory })
    }

    /// Returns the directory of `consort server`'s chart.
    pub fn chart(&self) -> PathBuf {
        self.root.join("charts/consort")
    }

    /// Returns a command that runs Helm without a cluster, with all of its files in this directory.
    pub fn command(&self) -> Command {
        let mut helm = Command::new(self.directory.join("helm"));
        let home = |name: &str| -> PathBuf { Path::new(&self.directory).join(name) };
        helm.env("HELM_CACHE_HOME", home("cache")).env("HELM_CONFIG_HOME", home("config"));
        helm.env("HELM_DATA_HOME", home("data")).env("KUBECONFIG", home("no-cluster"));
        helm
    }

    /// Returns a command that parses YAML manifests as Kubernetes' own types and writes a list in JSON. Its
    /// arguments are the kinds that are not Kubernetes' own.
    pub fn manifests(&self) -> Command {
        Command::new(self.directory.join("manifests"))
    }
}
