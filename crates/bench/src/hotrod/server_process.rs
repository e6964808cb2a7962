use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use consort_procstat::process;
use consort_testbed::{InfinispanServer, KillOnDrop};

use super::PORT;
use crate::java::Jdk;
use crate::tools;

/// A JVM's first start takes the longest.
const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) struct ServerProcess {
    child: KillOnDrop,
    port: u16,
    pub(super) start: Duration,
}

impl ServerProcess {
    pub(super) fn consort() -> anyhow::Result<Self> {
        let mut command = Command::new(tools::program("consort")?);
        command.arg("server").arg(format!("--port={PORT}"));
        Self::start(command, "consort server", "Hot Rod on", PORT)
    }

    /// Allows PLAIN without TLS.
    pub(super) fn with_users(users: &Path) -> anyhow::Result<Self> {
        let mut command = Command::new(tools::program("consort")?);
        command
            .arg("server")
            .arg(format!("--port={PORT}"))
            .arg("--allow-cleartext")
            .arg("--users")
            .arg(users);
        Self::start(command, "consort server", "Hot Rod on", PORT)
    }

    pub(super) fn cluster(count: u16) -> anyhow::Result<Vec<Self>> {
        (0..count).map(|nth| Self::member(nth, count)).collect()
    }

    /// The `nth` server of a cluster of `count`.
    pub(crate) fn member(nth: u16, count: u16) -> anyhow::Result<Self> {
        let hosts: Vec<String> = (0..count).map(|nth| format!("127.0.0.1[{}]", 7_800 + nth)).collect();
        let mut command = Command::new(tools::program("consort")?);
        command.args(["server", "--cluster=bench", "--bind=127.0.0.1"]);
        command.arg(format!("--port={}", PORT + nth)).arg(format!("--name={nth}"));
        command.arg(format!("-Djgroups.tcpping.initial_hosts={}", hosts.join(",")));
        command.arg(format!("-Djgroups.bind_port={}", 7_800 + nth));
        Self::start(command, "consort server", "Hot Rod on", PORT + nth)
    }

    pub(super) fn infinispan(
        server: &InfinispanServer,
        jdk: &Jdk,
        heap: &str,
        port: u16,
    ) -> anyhow::Result<Self> {
        Self::infinispan_member(server, jdk, heap, ("bench", port))
    }

    /// Servers of one network with different names form a cluster.
    pub(crate) fn infinispan_member(
        server: &InfinispanServer,
        jdk: &Jdk,
        heap: &str,
        (name, port): (&str, u16),
    ) -> anyhow::Result<Self> {
        let options = [format!("-Xms{heap}"), format!("-Xmx{heap}")];
        let mut command = server.command_by(&jdk.java, &options, name, port)?;
        command.stderr(log(server.directory(), &format!("infinispan-server-{name}.log"))?);
        Self::start(command, "Infinispan's server", InfinispanServer::READY, port)
    }

    /// Waits for the line that reports that clients can connect.
    pub(crate) fn start(
        mut command: Command,
        name: &str,
        ready: &'static str,
        port: u16,
    ) -> anyhow::Result<Self> {
        let begun = Instant::now();
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let mut child = KillOnDrop(child.with_context(|| format!("starting {name}"))?);
        let output = child.0.stdout.take().with_context(|| format!("the output of {name}"))?;
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                // After the start no receiver is left, and the server may go on.
                let _ = sender.send(line);
            }
        });
        let (mut output, until) = (Vec::new(), begun + PATIENCE);
        loop {
            match lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) if line.contains(ready) => return Ok(Self { child, port, start: begun.elapsed() }),
                Ok(line) => output.push(line),
                Err(_) => bail!("{name} has not started:\n{}", output.join("\n")),
            }
        }
    }

    pub(super) fn at(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.0.id()
    }

    pub(super) fn cpu(&self) -> Duration {
        process::cpu_of(self.pid())
    }

    pub(super) fn peak_memory_mb(&self) -> f64 {
        process::peak_memory_mb_of(self.pid())
    }

    pub(super) fn memory_mb(&self) -> f64 {
        process::memory_mb_of(self.pid())
    }
}

fn log(directory: &Path, name: &str) -> anyhow::Result<std::fs::File> {
    let logs = directory.join("logs");
    std::fs::create_dir_all(&logs).with_context(|| format!("{}", logs.display()))?;
    let log = logs.join(name);
    std::fs::File::create(&log).with_context(|| format!("{}", log.display()))
}
