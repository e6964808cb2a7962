//! A PostgreSQL server of a test, with its data in a temporary directory.

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use consort_testbed::KillOnDrop;

use crate::eventually;

/// Where Debian's package `postgresql` has its programs, by release.
const DEBIAN: &str = "/usr/lib/postgresql";

/// The user of the database, and its password.
pub const DATABASE_USER: (&str, &str) = ("grid", "geheim");

/// The server's database.
pub const DATABASE: &str = "members";

/// A server. A drop kills it and removes its data.
pub struct Postgres {
    directory: PathBuf,
    port: u16,
    process: Option<KillOnDrop>,
}

impl Postgres {
    /// Starts a server at this port of 127.0.0.1, whose user [`DATABASE_USER`] logs in by SCRAM. `settings` are lines of
    /// postgresql.conf.
    ///
    /// # Panics
    ///
    /// If PostgreSQL is not installed or does not start.
    pub async fn start(port: u16, settings: &str) -> Self {
        let directory = std::env::temp_dir().join(format!("consort-postgres-{}-{port}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).expect("a directory");
        let mut server = Self { directory, port, process: None };
        let data = server.data();
        let mut make = unprivileged(&program("initdb"));
        make.args([
            "--no-sync",
            "--auth-local=trust",
            "--auth-host=scram-sha-256",
            "--username=postgres",
            "-D",
        ]);
        let made = make.arg(&data).stdin(Stdio::null()).output().expect("initdb starts");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let configuration = data.join("postgresql.conf");
        let text = fs::read_to_string(&configuration).expect("a configuration");
        let sockets = server.directory.display();
        let own = format!(
            "\nlisten_addresses = '127.0.0.1'\nport = {port}\nunix_socket_directories = '{sockets}'\nfsync = off\n{settings}\n"
        );
        fs::write(&configuration, text + &own).expect("written");
        server.resume().await;
        let (user, password) = DATABASE_USER;
        server.query("postgres", &format!("CREATE USER {user} PASSWORD '{password}'"));
        server.query("postgres", &format!("CREATE DATABASE {DATABASE} OWNER {user}"));
        server
    }

    fn data(&self) -> PathBuf {
        self.directory.join("data")
    }

    /// Returns the directory of the server's data, for certificates.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the JDBC URL of the server's database.
    pub fn url(&self) -> String {
        format!("jdbc:postgresql://127.0.0.1:{}/{DATABASE}", self.port)
    }

    /// Starts the server again after [`Postgres::stop`].
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub async fn resume(&mut self) {
        let log = fs::File::create(self.directory.join("log")).expect("a log");
        let mut command = unprivileged(&program("postgres"));
        let started =
            command.arg("-D").arg(self.data()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn();
        self.process = Some(KillOnDrop(started.expect("postgres starts")));
        eventually(&format!("a server with its log in {}", self.directory.display()), async || {
            self.is_ready()
        })
        .await;
    }

    fn is_ready(&self) -> bool {
        TcpStream::connect(("127.0.0.1", self.port)).is_ok()
            && self.psql("postgres", "SELECT 1").status().is_ok_and(|status| status.success())
    }

    /// Kills the server. Its data stay.
    pub fn stop(&mut self) {
        if let Some(KillOnDrop(process)) = &mut self.process {
            // SIGQUIT ends the processes of connections, too; SIGKILL would leave them.
            let _ = Command::new("kill").args(["-QUIT", &process.id().to_string()]).status();
            let _ = process.wait();
        }
        self.process = None;
        let _ = fs::remove_file(self.data().join("postmaster.pid"));
    }

    fn psql(&self, database: &str, statement: &str) -> Command {
        let mut command = Command::new(program("psql"));
        command.args([
            "--username=postgres",
            "--no-align",
            "--tuples-only",
            "--no-psqlrc",
            "--dbname",
            database,
        ]);
        command.arg("--host").arg(&self.directory).args([
            "--port",
            &self.port.to_string(),
            "--command",
            statement,
        ]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    /// Executes a statement as administrator, and returns its rows: columns separated by `|`.
    ///
    /// # Panics
    ///
    /// If it fails.
    pub fn query(&self, database: &str, statement: &str) -> String {
        let mut command = self.psql(database, statement);
        let output = command.stdout(Stdio::piped()).stderr(Stdio::piped()).output().expect("psql starts");
        assert!(output.status.success(), "{statement}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.stop();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Finds a program of PostgreSQL: on the path, or where Debian has it.
fn program(name: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let releases = fs::read_dir(DEBIAN).into_iter().flatten().flatten().map(|entry| entry.path().join("bin"));
    let found = std::env::split_paths(&path).chain(releases).map(|directory| directory.join(name));
    found
        .into_iter()
        .find(|path| path.exists())
        .unwrap_or_else(|| panic!("`{name}` is missing (Debian's package postgresql)"))
}

/// The server refuses to run as root, which a test is in its network: it runs as another user of a user namespace.
fn unprivileged(program: &Path) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-user=1000", "--map-group=1000"]).arg(program);
    command
}
