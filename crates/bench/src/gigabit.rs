//! Multicasts of Consort between hosts whose network carries 1 Gbit/s (S001-3).
//!
//! Every member has a network namespace of its own, joined to a bridge by a link that is limited in both directions
//! (`tc … tbf`), as a switch does it. A member gets its own multicasts without the wire: with n members it can receive
//! n / (n - 1) of what its link carries. The same is measured without the limit, which says whether this machine's
//! CPUs would have been enough.

use std::process::Stdio;

use anyhow::Context;
use consort_jgroups::{Host, Hosts, Killed, Links};

use crate::options::Options;
use crate::plan::Load;
use crate::progress::Progress;
use crate::sample::{Runs, Sample, Samples};
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
    let networks = [Network::start(options, Some(LIMIT))?, Network::start(options, None)?];
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
        rows.push(if network.links.limit.is_some() {
            Row::beside(Rival::Wire, of, &received, Some(&Runs(vec![bound])), Some(Target::AtLeast(TARGET)))
        } else {
            Row::alone(of, &received, None)
        });
        let cost = samples.runs(|sample| Some(sample.cpu_us));
        rows.push(Row::alone((subject, CPU_PER_MESSAGE), &cost, None));
    }
    Ok(rows)
}

/// A member on every host.
struct Network {
    hosts: Hosts,
    links: Links,
}

impl Network {
    fn start(options: &Options, limit: Option<&'static str>) -> anyhow::Result<Self> {
        let links = Links { mtu: options.mtu, limit };
        Ok(Self { hosts: Hosts::start(options.members, links)?, links })
    }

    fn name(&self) -> String {
        let limit = if self.links.limit.is_some() { "1 Gbit/s" } else { "no limit" };
        format!("{} hosts, MTU {}, {limit}", self.hosts.all().len(), self.links.mtu)
    }

    fn mperf(&self, load: &Load, options: &Options) -> anyhow::Result<Sample> {
        let (first, others) = self.hosts.all().split_first().context("hosts")?;
        let program = tools::program("consort")?;
        let own = |host: &Host, nth: usize| [format!("--bind={}", host.address()), format!("--name=M{nth}")];
        let mut members = Vec::new();
        for (nth, host) in others.iter().enumerate() {
            let mut member = host.command(&program);
            member.args(["mperf", "--join-only", "--config", CONFIG]).args(own(host, nth + 1));
            members.push(Killed(member.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?));
        }
        let more = [&["--start-none".to_owned()][..], &own(first, 0)].concat();
        tools::consort_by(first.command(&program), load, others.len() + 1, options, &more)
    }
}
