//! Simulated hosts: network namespaces, connected by a switch with links of a given speed.

use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader};
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};

use thiserror::Error;

use crate::KillOnDrop;

/// The network could not be set up.
#[derive(Debug, Error)]
pub enum HostsError {
    /// A program does not start.
    #[error("`{program}` does not start: {error}")]
    Program {
        /// Of util-linux or iproute2.
        program: &'static str,
        /// The reason.
        error: io::Error,
    },
    /// The namespace could not be made.
    #[error("cannot make a network namespace")]
    Namespace,
    /// `ip` or `tc` (iproute2) is missing, or permission is denied.
    #[error("`{script}`: {output}")]
    Setup {
        /// The commands.
        script: String,
        /// Their output.
        output: String,
    },
    /// There are more hosts than addresses.
    #[error("more hosts than {HOSTS_MAX}")]
    TooMany,
}

const HOSTS_MAX: usize = 254;

/// Settings of the links between hosts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Links {
    /// MTU, in bytes.
    pub mtu: u32,
    /// Rate and queue of a port, as arguments of `tc … tbf`; unlimited by default.
    pub limit: Option<&'static str>,
}

/// Hosts connected by a switch, removed on drop.
///
/// Needs `unshare` and `nsenter` of util-linux, `ip` and `tc` of iproute2, and root in its user namespace.
#[derive(Debug)]
pub struct Hosts {
    hosts: Vec<Host>,
    /// Of the ports, invisible in the caller's namespace.
    switch: Namespace,
}

impl Hosts {
    /// Makes `count` hosts.
    ///
    /// # Errors
    ///
    /// If permission is denied or a program is missing.
    pub fn start(count: usize, links: Links) -> Result<Self, HostsError> {
        let Links { mtu, limit } = links;
        let limited = |dev: &str| {
            limit.map_or_else(String::new, |limit| format!(" && tc qdisc add dev {dev} root tbf {limit}"))
        };
        let switch = Namespace::start()?;
        // Snooping needs a querier to learn the members of groups, and there is none.
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

    /// Returns all hosts.
    pub fn all(&self) -> &[Host] {
        &self.hosts
    }

    /// Disconnects a host, counted from 0, from the switch: its packets are lost without an error.
    ///
    /// # Errors
    ///
    /// If the command fails.
    pub fn cut(&self, nth: usize) -> Result<(), HostsError> {
        self.switch.shell(&format!("ip link set port{} nomaster", nth + 1))
    }

    /// Connects a host again.
    ///
    /// # Errors
    ///
    /// If the command fails.
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
    /// Returns its address.
    pub const fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// Returns a command that runs a program on this host.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        self.namespace.command(program)
    }
}

/// Kept open by a process that waits for its end.
#[derive(Debug)]
struct Namespace(KillOnDrop);

impl Namespace {
    fn start() -> Result<Self, HostsError> {
        let holder = Command::new("unshare")
            .args(["-n", "sh", "-c", "echo entered && exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut holder =
            KillOnDrop(holder.map_err(|error| HostsError::Program { program: "unshare", error })?);
        let mut line = String::new();
        if let Some(output) = holder.0.stdout.take() {
            // An unreadable line counts as none.
            let _ = BufReader::new(output).read_line(&mut line);
        }
        if line.is_empty() { Err(HostsError::Namespace) } else { Ok(Self(holder)) }
    }

    /// The path is valid for users that can see this process.
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
        let output = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Err(HostsError::Setup { script: script.to_owned(), output })
    }
}
