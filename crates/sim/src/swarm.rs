//! A run: members join, faults strike, faults end, and everything is checked.

use std::time::Duration;

use consort_group::config::StackConfig;

use crate::calm;
use crate::checks::{self, Broken, Violation};
use crate::faults::{Faults, Mix};
use crate::stock::{Change, Discovery, stock};
use crate::world::{Traffic, World};

/// The settings of a run, besides the seed.
#[derive(Clone, Debug)]
pub struct Plan {
    stack: String,
    members: usize,
    mix: Mix,
    traffic: Traffic,
    #[cfg(feature = "planted")]
    planted: Option<consort_group::InjectedBug>,
    /// The duration of the faults.
    pub turmoil: Duration,
    /// The limit of healing after the faults have ended: suspicion, verification, merging, and stability that finds lost last
    /// messages.
    pub heal_limit: Duration,
}

/// The outcome of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// A hash over all sent and delivered messages, and their times.
    pub trace: u64,
    /// Packets on the network.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Messages that applications received.
    pub delivered: u64,
    /// The maximum of one sender's bytes in an application's backlog, of those that flow control counts.
    pub backlog: u64,
    /// The number of members that the run has had.
    pub members: usize,
    /// The time from the end of the faults to one view with nothing outstanding.
    pub healed_after: Duration,
}

/// Timeouts by which a run of seconds shows the events of minutes in a deployment.
pub(crate) const QUICK: &[Change] = &[
    ("MERGE3", "min_interval", "500ms"),
    ("MERGE3", "max_interval", "2s"),
    ("FD_ALL3", "timeout", "4s"),
    ("FD_ALL3", "interval", "500ms"),
    ("STABLE", "desired_avg_gossip", "2s"),
    ("GMS", "join_timeout", "500ms"),
    // Low limits, so that a few seconds of traffic use them up and turn them over.
    ("UNICAST3", "conn_close_timeout", "5s"),
    ("UNICAST4", "conn_close_timeout", "5s"),
    ("MFC", "max_credits", "100K"),
    ("UFC", "max_credits", "100K"),
    ("FRAG2", "frag_size", "500"),
];

impl Plan {
    /// Members on a stock stack, with all faults.
    pub fn new(stack: &str, members: usize) -> Self {
        Self {
            stack: stack.to_owned(),
            members,
            mix: Mix::ALL,
            traffic: Traffic { interval: Duration::from_millis(20), unicasts: 0.3, size_max: 2_000 },
            #[cfg(feature = "planted")]
            planted: None,
            turmoil: Duration::from_secs(20),
            heal_limit: Duration::from_secs(120),
        }
    }

    /// Adds a bug to every stack.
    #[cfg(feature = "planted")]
    #[must_use]
    pub fn with_planted(mut self, bug: consort_group::InjectedBug) -> Self {
        self.planted = Some(bug);
        self
    }

    /// Removes all faults.
    #[must_use]
    pub fn without_faults(mut self) -> Self {
        self.mix = Mix::NONE;
        self
    }

    /// Allows only these faults.
    #[must_use]
    pub fn with_faults(mut self, mix: Mix) -> Self {
        self.mix = mix;
        self
    }

    /// Sets the traffic.
    #[must_use]
    pub fn with_traffic(mut self, traffic: Traffic) -> Self {
        self.traffic = traffic;
        self
    }
}

/// Runs a plan with a seed.
///
/// # Errors
///
/// The first rule that was broken.
pub fn run(plan: &Plan, seed: u64) -> Result<Report, Violation> {
    replay(plan, seed).0
}

/// Runs a plan with a seed. Also returns the faults and views of the run in their order, one per line.
pub fn replay(plan: &Plan, seed: u64) -> (Result<Report, Violation>, Vec<String>) {
    let config = match quick_stack(&plan.stack, seed) {
        Ok(config) => config,
        Err(violation) => return (Err(violation), Vec::new()),
    };
    let mut world = World::new(seed, config, plan.traffic);
    #[cfg(feature = "planted")]
    {
        world.planted = plan.planted;
    }
    let result = live(plan, &mut world).map_err(|(rule, what)| Violation { seed, rule, what });
    (result, world.story())
}

/// Returns a stock stack with the timeouts of a simulated run.
pub(crate) fn quick_stack(stack: &str, seed: u64) -> Result<StackConfig, Violation> {
    stock(stack, QUICK, Discovery::Local).map_err(|what| Violation { seed, rule: "configuration", what })
}

/// Runs a plan from its first member to its last check.
fn live(plan: &Plan, world: &mut World) -> Result<Report, Broken> {
    let until = world.now + plan.turmoil;
    let faults = Faults::begin(world, plan.mix, plan.members, until);
    for _ in 0..plan.members {
        let node = world.start().map_err(|what| ("configuration", what))?;
        world.nodes[node].rate = faults.clock_rate(world);
    }
    while world.step(until) {
        if std::mem::take(&mut world.is_fault_due) {
            faults.strike(world);
        }
    }
    Faults::end(world);
    let ended = world.now;
    // Traffic goes on for 5 s, so that later messages reveal lost last ones, and then stops.
    calm::go_on(world, Duration::from_secs(5));
    world.stop_traffic();
    // A slow application still has to consume the messages that were delivered to it until then.
    let worked_off = world.nodes.iter().filter(|node| node.is_alive()).map(|node| node.busy_until).max();
    calm::heal(world, worked_off.map_or(ended, |at| at.max(ended)) + plan.heal_limit)?;
    let healed_after = world.now.since(ended);
    calm::join_and_leave(world)?;
    checks::all(world)?;
    Ok(Report {
        trace: world.trace,
        packets: world.totals.packets,
        bytes: world.totals.bytes,
        delivered: world.totals.delivered,
        backlog: world.nodes.iter().map(|node| node.backlog.most()).max().unwrap_or_default(),
        members: world.nodes.len(),
        healed_after,
    })
}
