//! Multicasts of Consort between hosts whose network carries 1 Gbit/s (S001-3).
//!
//! Every member has a network namespace, joined to a bridge by a link that is limited in both directions (`tc …
//! tbf`). Without its own multicasts, a member of n can receive n / (n - 1) of its link's rate. A run without
//! the limit shows whether the CPUs suffice.

use std::process::Stdio;

use anyhow::Context;
use consort_testbed::{Host, Hosts, KillOnDrop, Links};

use crate::interleaved::{self, Turn};
use crate::options::Options;
use crate::plan::Load;
use crate::results::Outcome;
use crate::sample::{Runs, Sample, Samples};
use crate::targets::{CPU_PER_MESSAGE, Rival, Row, Target};
use crate::{report, tools};

const CONFIG: &str = "udp.xml";

/// 1 Gbit/s.
const LINK_MB: f64 = 125.0;

/// The queue of a switch's port, and its largest burst.
const LIMIT: &str = "rate 1gbit burst 128kb limit 1mb";

/// The part of the network's rate that JGroups reached.
const TARGET: f64 = 0.84;

const MB_PER_MEMBER: &str = "MB/s/member";

pub(crate) fn check(options: &Options) -> anyhow::Result<()> {
    networks(options).map(drop).context("gigabit cannot be measured (--only leaves it out)")
}

pub(crate) fn measure(options: &Options) -> anyhow::Result<Outcome> {
    let mut networks = networks(options)?;
    let measured = interleaved::measure(&mut networks, options);
    let rows: Vec<Row> = networks.iter().flat_map(|network| network.rows(options)).collect();
    report::print_rows(&rows);
    Ok(Outcome {
        rows,
        errors: networks.iter().map(|network| network.samples.errors()).sum(),
        failures: measured.err().into_iter().collect(),
        ..Outcome::default()
    })
}

fn networks(options: &Options) -> anyhow::Result<[Network; 2]> {
    Ok([Network::start(options, Some(LIMIT))?, Network::start(options, None)?])
}

struct Network {
    hosts: Hosts,
    links: Links,
    samples: Samples,
}

impl Network {
    fn start(options: &Options, limit: Option<&'static str>) -> anyhow::Result<Self> {
        let links = Links { mtu: options.mtu, limit };
        let hosts = Hosts::start(options.members, links)?;
        Ok(Self { hosts, links, samples: Samples::default() })
    }

    fn rows(&self, options: &Options) -> [Row; 2] {
        let subject = format!("{}, {}", Load::multicasts(CONFIG, options).name(), self.name());
        let bytes = options.first_size() as f64;
        let rates = self.samples.runs(|sample| Some(sample.rate));
        let received = Runs(rates.0.iter().map(|rate| rate * bytes / 1e6).collect());
        let of = (subject.clone(), MB_PER_MEMBER);
        let received = if self.links.limit.is_some() {
            let bound = LINK_MB * options.members as f64 / (options.members as f64 - 1.0);
            Row::beside(Rival::Wire, of, &received, Some(&Runs(vec![bound])), Some(Target::AtLeast(TARGET)))
        } else {
            Row::alone(of, &received, None)
        };
        let cost = self.samples.runs(|sample| Some(sample.cpu_us));
        [received, Row::alone((subject, CPU_PER_MESSAGE), &cost, None)]
    }
}

impl Turn for Network {
    fn name(&self) -> String {
        let limit = if self.links.limit.is_some() { "1 Gbit/s" } else { "no limit" };
        format!("{} hosts, MTU {}, {limit}", self.hosts.all().len(), self.links.mtu)
    }

    fn samples(&mut self) -> &mut Samples {
        &mut self.samples
    }

    fn sample(&self, options: &Options) -> anyhow::Result<Sample> {
        let (first, others) = self.hosts.all().split_first().context("hosts")?;
        let program = tools::program("consort")?;
        let own = |host: &Host, nth: usize| [format!("--bind={}", host.address()), format!("--name=M{nth}")];
        let mut members = Vec::new();
        for (nth, host) in others.iter().enumerate() {
            let mut member = host.command(&program);
            member.args(["mperf", "--join-only", "--config", CONFIG]).args(own(host, nth + 1));
            members.push(KillOnDrop(member.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?));
        }
        let more = [&["--start-none".to_owned()][..], &own(first, 0)].concat();
        let load = Load::multicasts(CONFIG, options);
        tools::consort_by(first.command(&program), &load, others.len() + 1, options, &more)
    }
}
