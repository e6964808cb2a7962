//! Hosts for tests and benches: network namespaces that a switch joins, each link as fast as it is told to be.

use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader};
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};

use thiserror::Error;

use crate::Killed;

/// Why there is no such network.
#[derive(Debug, Error)]
pub enum HostsError {
    /// A program that does not start.
    #[error("`{program}` does not start: {error}")]
    Program {
        /// Of util-linux or iproute2.
        program: &'static str,
        /// Why.
        error: io::Error,
    },
    /// No namespace to be had.
    #[error("no network namespace to be had")]
    Namespace,
    /// Commands that fail: `ip` or `tc` (iproute2) is missing, or they may not do this.
    #[error("`{script}`: {said}")]
    Setup {
        /// The commands.
        script: String,
        /// What they said.
        said: String,
    },
    /// More than the addresses suffice for.
    #[error("more hosts than {HOSTS_MAX}")]
    TooMany,
}

/// What 10.0.0.0/24 has addresses for.
const HOSTS_MAX: usize = 254;

/// What joins hosts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Links {
    /// Bytes of a packet.
    pub mtu: u32,
    /// What a port sends at most, and keeps waiting, as `tc … tbf` takes it. Without it a link is as fast as the CPUs.
    pub limit: Option<&'static str>,
}

/// Hosts that a switch joins. All of it is gone when dropped.
///
/// It needs `unshare` and `nsenter` of util-linux and `ip` and `tc` of iproute2, and to be root in its user namespace.
#[derive(Debug)]
pub struct Hosts {
    hosts: Vec<Host>,
    /// The ports are in a namespace of their own, not to be seen where the caller runs.
    switch: Namespace,
}

impl Hosts {
    /// So many hosts.
    ///
    /// # Errors
    ///
    /// If this machine does not let us, or lacks a program.
    pub fn start(count: usize, links: Links) -> Result<Self, HostsError> {
        let Links { mtu, limit } = links;
        let limited = |dev: &str| {
            limit.map_or_else(String::new, |limit| format!(" && tc qdisc add dev {dev} root tbf {limit}"))
        };
        let switch = Namespace::start()?;
        // Snooping would have to learn who wants which group, as a switch may, but nobody asks there.
        switch.shell(&format!(
            "ip link add switch type bridge mcast_snooping 0 && ip link set switch mtu {mtu} up"
        ))?;
        let mut hosts = Vec::new();
        for nth in 1..=count {
            let number = u8::try_from(nth).ok().filter(|_| nth <= HOSTS_MAX).ok_or(HostsError::TooMany)?;
            let host = Host { namespace: Namespace::start()?, address: Ipv4Addr::new(10, 0, 0, number) };
            let port = format!("port{nth}");
            switch.shell(&format!(
                "ip link add {port} mtu {mtu} type veth peer name eth0 mtu {mtu} netns {} && \
                 ip link set {port} master switch up{}",
                host.namespace.path(),
                limited(&port)
            ))?;
            host.namespace.shell(&format!(
                "ip link set lo up && ip addr add {}/24 dev eth0 && ip link set eth0 up && \
                 ip route add 224.0.0.0/4 dev eth0{}",
                host.address,
                limited("eth0")
            ))?;
            hosts.push(host);
        }
        Ok(Self { hosts, switch })
    }

    /// All of them.
    pub fn all(&self) -> &[Host] {
        &self.hosts
    }

    /// Takes a host's plug out of the switch: what it sends and what others send it is lost, and nobody is told. Hosts
    /// count from 0.
    ///
    /// # Errors
    ///
    /// If the switch does not do it.
    pub fn cut(&self, nth: usize) -> Result<(), HostsError> {
        self.switch.shell(&format!("ip link set port{} nomaster", nth + 1))
    }

    /// Puts it back.
    ///
    /// # Errors
    ///
    /// If the switch does not do it.
    pub fn heal(&self, nth: usize) -> Result<(), HostsError> {
        self.switch.shell(&format!("ip link set port{} master switch", nth + 1))
    }
}

/// A network namespace with an interface `eth0`.
#[derive(Debug)]
pub struct Host {
    namespace: Namespace,
    address: Ipv4Addr,
}

impl Host {
    /// Its own.
    pub const fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// A program on this host: the caller adds its arguments.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        self.namespace.command(program)
    }
}

/// A network namespace, held by a process that waits for its end.
#[derive(Debug)]
struct Namespace(Killed);

impl Namespace {
    fn start() -> Result<Self, HostsError> {
        let holder = Command::new("unshare")
            .args(["-n", "sh", "-c", "echo entered && exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut holder = Killed(holder.map_err(|error| HostsError::Program { program: "unshare", error })?);
        let mut line = String::new();
        if let Some(output) = holder.0.stdout.take() {
            // What cannot be read is as good as not said.
            let _ = BufReader::new(output).read_line(&mut line);
        }
        if line.is_empty() { Err(HostsError::Namespace) } else { Ok(Self(holder)) }
    }

    /// Where the kernel has it, for who can see this process.
    fn path(&self) -> String {
        format!("/proc/{}/ns/net", self.0.0.id())
    }

    fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.path())).arg(program);
        command
    }

    fn shell(&self, script: &str) -> Result<(), HostsError> {
        let output = self.command("sh").args(["-c", script]).stdin(Stdio::null()).output();
        let output = output.map_err(|error| HostsError::Program { program: "nsenter", error })?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Err(HostsError::Setup { script: script.to_owned(), said })
    }
}
