//! A run: members join, faults strike, faults end, and everything is checked.

use std::time::Duration;

use consort_conf::{STOCK, Variables, parse_stack};
use consort_group::config::StackConfig;

use crate::checks::{self, Violation};
use crate::faults::{Faults, Mix};
use crate::world::{Traffic, World};

/// What a run is made of, besides the seed.
#[derive(Clone, Debug)]
pub struct Plan {
    stack: String,
    members: usize,
    mix: Mix,
    traffic: Traffic,
    /// How long faults strike.
    pub turmoil: Duration,
    /// How long healing may take after the faults have ended: suspicion, verification, merging, and stability that
    /// finds lost last messages.
    pub heal_limit: Duration,
}

/// How a run went.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// A hash over everything that was sent and delivered, and when.
    pub trace: u64,
    /// Packets on the network.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Messages that applications got.
    pub delivered: u64,
    /// How many members there have been.
    pub members: usize,
    /// How long it took from the end of the faults to one view with nothing outstanding.
    pub healed_after: Duration,
}

/// Timeouts that make a run of seconds show what a deployment shows in minutes.
const QUICK: &[(&str, &str, &str)] = &[
    ("MERGE3", "min_interval", "500ms"),
    ("MERGE3", "max_interval", "2s"),
    ("FD_ALL3", "timeout", "4s"),
    ("FD_ALL3", "interval", "500ms"),
    ("STABLE", "desired_avg_gossip", "2s"),
    ("GMS", "join_timeout", "500ms"),
];

impl Plan {
    /// Members on a stock stack, with all faults.
    pub fn new(stack: &str, members: usize) -> Self {
        Self {
            stack: stack.to_owned(),
            members,
            mix: Mix::ALL,
            traffic: Traffic { interval: Duration::from_millis(20), unicasts: 0.3, size_max: 2_000 },
            turmoil: Duration::from_secs(20),
            heal_limit: Duration::from_secs(120),
        }
    }

    /// The same without faults.
    #[must_use]
    pub fn without_faults(mut self) -> Self {
        self.mix = Mix::NONE;
        self
    }

    /// The same with these faults only.
    #[must_use]
    pub fn with_faults(mut self, mix: Mix) -> Self {
        self.mix = mix;
        self
    }

    /// The same with other traffic.
    #[must_use]
    pub fn with_traffic(mut self, traffic: Traffic) -> Self {
        self.traffic = traffic;
        self
    }

    fn config(&self) -> Result<StackConfig, String> {
        let (_, text) = STOCK
            .iter()
            .find(|(name, _)| *name == self.stack)
            .ok_or_else(|| format!("there is no stock stack {}", self.stack))?;
        let stack = parse_stack(&self.stack, text, &Variables::new()).map_err(|error| error.to_string())?;
        let mut config = stack.config;
        for (protocol, attribute, value) in QUICK {
            let Some(found) = config.protocols.iter_mut().find(|found| found.short_name() == *protocol)
            else {
                continue;
            };
            match found.attributes.iter_mut().find(|(name, _, _)| name == attribute) {
                Some((_, own, _)) => (*value).clone_into(own),
                None => {
                    found.attributes.push(((*attribute).to_owned(), (*value).to_owned(), found.position));
                }
            }
        }
        // Members of a simulation have no host names: they find each other in the process.
        for protocol in &mut config.protocols {
            if matches!(protocol.short_name(), "TCPPING" | "PING") {
                protocol.name = "LOCAL_PING".to_owned();
                protocol.attributes.retain(|(name, _, _)| name == "num_discovery_runs");
            }
        }
        Ok(config)
    }
}

/// Runs a plan with a seed.
///
/// # Errors
///
/// The first rule that was broken.
pub fn run(plan: &Plan, seed: u64) -> Result<Report, Violation> {
    let broken = |(rule, what): (&'static str, String)| Violation { seed, rule, what };
    let config = plan.config().map_err(|what| broken(("configuration", what)))?;
    let is_sequenced = config.protocols.iter().any(|protocol| protocol.short_name() == "SEQUENCER");
    let mut world = World::new(seed, config, plan.traffic);
    let until = world.now + plan.turmoil;
    let faults = Faults::begin(&mut world, plan.mix, plan.members, until);
    for _ in 0..plan.members {
        let node = world.start().map_err(|what| broken(("configuration", what)))?;
        world.nodes[node].rate = faults.clock_rate(&mut world);
    }
    while world.step(until) {
        if std::mem::take(&mut world.is_fault_due) {
            faults.strike(&mut world);
        }
    }
    Faults::end(&mut world);
    let ended = world.now;
    // Traffic goes on for a moment, so that what was lost last is noticed by what follows, and then stops.
    let calm = ended + Duration::from_secs(5);
    while world.step(calm) {}
    world.traffic.interval = Duration::ZERO;
    let limit = ended + plan.heal_limit;
    let mut healed = None;
    while world.now < limit {
        let next = world.now + Duration::from_millis(250);
        while world.step(next) {}
        let is_well =
            checks::is_one_view(&world) && checks::is_quiet(&world) && checks::completeness(&world).is_ok();
        if is_well {
            healed = Some(world.now.since(ended));
            break;
        }
    }
    checks::order(&world).map_err(broken)?;
    checks::views(&world).map_err(broken)?;
    checks::membership(&world).map_err(broken)?;
    if is_sequenced && plan.mix == Mix::NONE {
        checks::total_order(&world).map_err(broken)?;
    }
    if !checks::is_one_view(&world) {
        let views: Vec<String> = world
            .nodes
            .iter()
            .filter(|node| node.is_alive())
            .map(|node| format!("{}: {:?}", node.name, node.view().map(|view| (view.id().id, view.len()))))
            .collect();
        return Err(broken(("one view after faults", views.join(", "))));
    }
    checks::completeness(&world).map_err(broken)?;
    let healed_after =
        healed.ok_or_else(|| broken(("quiet after faults", "messages wait in a stack".to_owned())))?;
    Ok(Report {
        trace: world.trace,
        packets: world.totals.packets,
        bytes: world.totals.bytes,
        delivered: world.totals.delivered,
        members: world.nodes.len(),
        healed_after,
    })
}
