//! Infinispan's own server, in `target/interop`, fetched when it is first needed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::jar::{JarError, JavaTree, in_file};

/// What a server is set up with, beside what names its release.
const SETTINGS: &[&str] = &["infinispan.xml", "log4j2.xml"];

/// A directory with the server in `lib-infinispan-server`.
#[derive(Clone, Debug)]
pub struct InfinispanServer {
    settings: PathBuf,
    directory: PathBuf,
}

impl InfinispanServer {
    /// What a server writes when clients can connect.
    pub const READY: &str = "ISPN080001";

    /// Fetches what is not there yet.
    ///
    /// # Errors
    ///
    /// If Maven is missing or fails.
    pub fn prepare() -> Result<Self, JarError> {
        let tree = JavaTree::open()?;
        let settings = tree.root.join("interop/infinispan-server");
        tree.fetch(
            &settings,
            &tree.directory.join("lib-infinispan-server"),
            "Maven, for Infinispan's server",
        )?;
        Ok(Self { settings, directory: tree.directory.clone() })
    }

    /// A command that runs a server of this name without any caches. It has a Hot Rod connector on this port of the loopback,
    /// and finds others of its network; without others it is a cluster of its own.
    ///
    /// # Errors
    ///
    /// If its files cannot be written.
    pub fn command(&self, name: &str, port: u16) -> Result<Command, JarError> {
        let small = ["-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"];
        self.command_by(Path::new("java"), &small.map(str::to_owned), name, port)
    }

    /// The same by this `java`, with these options of its.
    ///
    /// # Errors
    ///
    /// If its files cannot be written.
    pub fn command_by(
        &self,
        java: &Path,
        options: &[String],
        name: &str,
        port: u16,
    ) -> Result<Command, JarError> {
        let root = self.directory.join("infinispan-servers").join(format!("{}-{name}", std::process::id()));
        for folder in ["conf", "data", "lib", "log"] {
            let folder = root.join(folder);
            fs::create_dir_all(&folder).map_err(in_file(&folder))?;
        }
        for file in SETTINGS {
            let to = root.join("conf").join(file);
            fs::copy(self.settings.join(file), &to).map_err(in_file(&to))?;
        }
        let mut java = Command::new(java);
        java.args(options);
        java.args(["-Djava.net.preferIPv4Stack=true", "-Djgroups.bind.address=127.0.0.1"]);
        java.arg("-cp").arg(format!("{}/lib-infinispan-server/*", self.directory.display()));
        java.args(["org.infinispan.server.Bootstrap", "-c", "infinispan.xml", "-l", "log4j2.xml"]);
        java.arg("-s").arg(&root).args(["-p", &port.to_string(), "-n", name]);
        Ok(java)
    }

    /// Where everything lies.
    pub fn directory(&self) -> &Path {
        &self.directory
    }
}
