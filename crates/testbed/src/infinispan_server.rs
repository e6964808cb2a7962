//! Infinispan's server, in `target/interop`.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::jar::{JarError, JavaTree, in_file};
use crate::jvm::{BRIEF, brief_jvm};

/// One without authentication, and one with users.
const OPEN: &str = "infinispan.xml";
const SECURED: &str = "secured.xml";
const LOGGING: &str = "log4j2.xml";

const SMALL: &str = "-Xmx512m";

/// Users of an Infinispan server.
#[derive(Clone, Debug)]
pub struct InfinispanUsers<'a> {
    /// Names, passwords and roles.
    pub users: &'a [(&'a str, &'a str, &'a str)],
    /// The port with TLS.
    pub tls_port: u16,
    /// The certificate and its key, as PEM.
    pub pem: &'a str,
}

/// A directory with the server in `lib-infinispan-server`.
#[derive(Clone, Debug)]
pub struct InfinispanServer {
    settings: PathBuf,
    directory: PathBuf,
}

impl InfinispanServer {
    /// The log code of a server that accepts clients.
    pub const READY: &str = "ISPN080001";

    /// Fetches missing files, with Maven.
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

    /// Returns a command that runs a server of this name without caches, with Hot Rod on this port of the
    /// loopback. It forms a cluster with others of its network.
    pub fn command(&self, name: &str, port: u16) -> Result<Command, JarError> {
        self.command_by(Path::new("java"), &[&[SMALL], &BRIEF[..]].concat(), name, port)
    }

    /// As [`command`](Self::command), with users that authenticate by SCRAM or PLAIN on this port, and on
    /// another one within TLS.
    pub fn secured(&self, name: &str, port: u16, secured: &InfinispanUsers<'_>) -> Result<Command, JarError> {
        let root = self.root(name)?;
        let lines = |line: fn(&(&str, &str, &str)) -> String| {
            secured.users.iter().map(line).collect::<Vec<_>>().join("\n")
        };
        for (file, text) in [
            ("users.properties", lines(|(name, password, _)| format!("{name}={password}"))),
            ("groups.properties", lines(|(name, _, role)| format!("{name}={role}"))),
            ("server.pem", secured.pem.to_owned()),
        ] {
            let to = root.join("conf").join(file);
            fs::write(&to, text).map_err(in_file(&to))?;
        }
        let mut java = brief_jvm();
        java.arg(SMALL).arg(format!("-Dconsort.tls.port={}", secured.tls_port));
        self.started(java, &root, SECURED, name, port)
    }

    /// As [`command`](Self::command), with this `java` and these options.
    pub fn command_by(
        &self,
        java: &Path,
        options: &[impl AsRef<OsStr>],
        name: &str,
        port: u16,
    ) -> Result<Command, JarError> {
        let root = self.root(name)?;
        let mut java = Command::new(java);
        java.args(options);
        self.started(java, &root, OPEN, name, port)
    }

    /// An empty directory: a killed server of an earlier process with this number has left its locks behind.
    fn root(&self, name: &str) -> Result<PathBuf, JarError> {
        let root = self.directory.join("infinispan-servers").join(format!("{}-{name}", std::process::id()));
        if root.exists() {
            fs::remove_dir_all(&root).map_err(in_file(&root))?;
        }
        for folder in ["conf", "data", "lib", "log"] {
            let folder = root.join(folder);
            fs::create_dir_all(&folder).map_err(in_file(&folder))?;
        }
        Ok(root)
    }

    fn started(
        &self,
        mut java: Command,
        root: &Path,
        settings: &str,
        name: &str,
        port: u16,
    ) -> Result<Command, JarError> {
        for file in [settings, LOGGING] {
            let to = root.join("conf").join(file);
            fs::copy(self.settings.join(file), &to).map_err(in_file(&to))?;
        }
        java.args(["-Djava.net.preferIPv4Stack=true", "-Djgroups.bind.address=127.0.0.1"]);
        java.arg("-cp").arg(format!("{}/lib-infinispan-server/*", self.directory.display()));
        java.args(["org.infinispan.server.Bootstrap", "-c", settings, "-l", LOGGING]);
        java.arg("-s").arg(root).args(["-p", &port.to_string(), "-n", name]);
        Ok(java)
    }

    /// Returns the directory of all files.
    pub fn directory(&self) -> &Path {
        &self.directory
    }
}
