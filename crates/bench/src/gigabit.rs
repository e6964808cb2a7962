//! Multicasts of Consort between hosts whose network carries 1 Gbit/s (S001-3).
//!
//! Every member has a network namespace of its own, joined to a bridge by a link that is limited in both directions
//! (`tc … tbf`), as a switch does it. A member gets its own multicasts without the wire: with n members it can receive
//! n / (n - 1) of what its link carries. The same is measured without the limit, which says whether this machine's
//! CPUs would have been enough.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, bail};

use crate::options::Options;
use crate::plan::Load;
use crate::progress::Progress;
use crate::sample::{Runs, Samples};
use crate::session::{CONSORT_OVERHEAD, shown};
use crate::targets::{CPU_PER_MESSAGE, Rival, Row, Target};
use crate::tools;

const CONFIG: &str = "udp.xml";

/// What a link carries, in megabytes a second: 1 Gbit/s.
const LINK_MB: f64 = 125.0;

/// What a port of a switch may have waiting, and what it may send at once.
const LIMIT: &str = "rate 1gbit burst 128kb limit 1mb";

/// What JGroups reached of what its network could carry.
const TARGET: f64 = 0.84;

const MB_PER_MEMBER: &str = "MB/s/member";

pub(crate) fn measure(options: &Options) -> anyhow::Result<Vec<Row>> {
    let (load, size) = (Load::multicasts(CONFIG, options), options.first_size());
    let networks = [Network::start(options, true)?, Network::start(options, false)?];
    let mut samples = [Samples::default(), Samples::default()];
    let planned = options.time() + options.lead() + CONSORT_OVERHEAD;
    let mut progress = Progress::new(planned * (options.runs() * networks.len()) as u32);
    for run in 1..=options.runs() {
        for (network, samples) in networks.iter().zip(&mut samples) {
            progress.step(&format!("{}, run {run}", network.name()));
            samples.samples.push(shown(network.mperf(&load, options)?));
            progress.finish(planned);
        }
    }
    let bound = LINK_MB * options.members as f64 / (options.members as f64 - 1.0);
    let mut rows = Vec::new();
    for (network, samples) in networks.iter().zip(&samples) {
        let subject = format!("{}, {}", load.name(), network.name());
        let rates = samples.runs(|sample| Some(sample.rate));
        let received = Runs(rates.0.iter().map(|rate| rate * size as f64 / 1e6).collect());
        let of = (subject.clone(), MB_PER_MEMBER);
        rows.push(if network.is_limited {
            Row::beside(Rival::Wire, of, &received, Some(&Runs(vec![bound])), Some(Target::AtLeast(TARGET)))
        } else {
            Row::alone(of, &received, None)
        });
        let cost = samples.runs(|sample| Some(sample.cpu_us));
        rows.push(Row::alone((subject, CPU_PER_MESSAGE), &cost, None));
    }
    Ok(rows)
}

/// Hosts around a bridge. It is gone with the namespace that this program runs in.
struct Network {
    hosts: Vec<Host>,
    is_limited: bool,
    mtu: u32,
}

impl Network {
    fn start(options: &Options, is_limited: bool) -> anyhow::Result<Self> {
        let (number, mtu) = (if is_limited { 1 } else { 2 }, options.mtu);
        let limited = |dev: &str| {
            if is_limited { format!("tc qdisc add dev {dev} root tbf {LIMIT}") } else { "true".to_owned() }
        };
        let bridge = format!("bench{number}");
        // Snooping would have to learn who wants which group, as a switch may, but nobody asks there.
        shell(&format!(
            "ip link add {bridge} type bridge mcast_snooping 0 && ip link set {bridge} mtu {mtu} up"
        ))?;
        let mut hosts = Vec::new();
        for nth in 1..=options.members {
            let host = Host::start(format!("10.{number}.0.{nth}"))?;
            let port = format!("port{number}n{nth}");
            shell(&format!(
                "ip link add {port} mtu {mtu} type veth peer name eth0 mtu {mtu} netns {} && \
                 ip link set {port} master {bridge} up && {}",
                host.namespace(),
                limited(&port)
            ))?;
            host.shell(&format!(
                "ip link set lo up && ip addr add {}/24 dev eth0 && ip link set eth0 up && \
                 ip route add 224.0.0.0/4 dev eth0 && {}",
                host.address,
                limited("eth0")
            ))?;
            hosts.push(host);
        }
        Ok(Self { hosts, is_limited, mtu })
    }

    fn name(&self) -> String {
        let limit = if self.is_limited { "1 Gbit/s" } else { "no limit" };
        format!("{} hosts, MTU {}, {limit}", self.hosts.len(), self.mtu)
    }

    fn mperf(&self, load: &Load, options: &Options) -> anyhow::Result<crate::sample::Sample> {
        let (first, others) = self.hosts.split_first().context("hosts")?;
        let program = tools::program("consort")?;
        let mut members = Vec::new();
        for (nth, host) in others.iter().enumerate() {
            let mut member = host.command(&program.to_string_lossy());
            member
                .args(["mperf", "--join-only"])
                .arg(format!("--config={CONFIG}"))
                .args(host.arguments(nth + 1));
            members.push(Killed(member.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?));
        }
        let more = [first.arguments(0), vec!["--start-none".to_owned()]].concat();
        tools::consort_by(first.command(&program.to_string_lossy()), load, self.hosts.len(), options, &more)
    }
}

/// A network namespace, held by a process that waits for its end.
struct Host {
    holder: Killed,
    address: String,
}

impl Host {
    fn start(address: String) -> anyhow::Result<Self> {
        let mut holder = Command::new("unshare")
            .args(["-n", "sh", "-c", "echo entered && exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("unshare")?;
        let output = holder.stdout.take().context("its output")?;
        let host = Self { holder: Killed(holder), address };
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        if line.is_empty() {
            bail!("no network namespace for {}", host.address);
        }
        Ok(host)
    }

    fn namespace(&self) -> String {
        format!("/proc/{}/ns/net", self.holder.0.id())
    }

    /// A program in this namespace.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.namespace())).arg(program);
        command
    }

    fn shell(&self, script: &str) -> anyhow::Result<()> {
        finish(self.command("sh").args(["-c", script]), script)
    }

    fn arguments(&self, nth: usize) -> Vec<String> {
        vec![format!("--bind={}", self.address), format!("--name=M{nth}")]
    }
}

/// A process that ends with its owner.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn shell(script: &str) -> anyhow::Result<()> {
    finish(Command::new("sh").args(["-c", script]), script)
}

fn finish(command: &mut Command, script: &str) -> anyhow::Result<()> {
    let output = command.stdin(Stdio::null()).output().with_context(|| script.to_owned())?;
    if !output.status.success() {
        bail!("`{script}`: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}
