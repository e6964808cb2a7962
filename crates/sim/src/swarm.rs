//! A run: members join, faults strike, faults end, and everything is checked.

use std::collections::BTreeSet;
use std::time::Duration;

use consort_group::Rng;

use crate::after_faults;
use crate::checks::{self, Broken, Violation};
use crate::faults::{Faults, Mix};
use crate::messages::{Messages, Traffic};
use crate::node::Node;
use crate::runner::{self, Workload};
use crate::world::World;

/// A run's settings, besides the seed.
#[derive(Clone, Debug)]
pub struct Plan {
    stack: String,
    members: usize,
    mix: Mix,
    traffic: Traffic,
    #[cfg(feature = "injected-bugs")]
    injected_bug: Option<consort_group::InjectedBug>,
    /// The faults' duration.
    pub turmoil: Duration,
    /// The limit of healing after the faults: suspicion, verification, merging, and stability that finds lost
    /// last messages.
    pub heal_limit: Duration,
}

/// A run's outcome.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// A hash over all sent and delivered messages, and their times.
    pub trace: u64,
    /// Packets on the network.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Messages received by applications.
    pub delivered: u64,
    /// The most bytes of one sender in an application's backlog that flow control counts.
    pub backlog: u64,
    /// Members so far.
    pub members: usize,
    /// The time from the faults' end to one view with nothing outstanding.
    pub healed_after: Duration,
    /// The time from the faults' end to one view.
    pub met_after: Duration,
    /// Merge views of coordinators.
    pub merges: usize,
    /// Members whose crash was proven, without a wait for the verification.
    pub proven: usize,
}

impl Plan {
    /// Members on a stock stack, with all faults.
    pub fn new(stack: &str, members: usize) -> Self {
        Self {
            stack: stack.to_owned(),
            members,
            mix: Mix::ALL,
            traffic: Traffic { interval: Duration::from_millis(20), unicasts: 0.3, size_max: 2_000 },
            #[cfg(feature = "injected-bugs")]
            injected_bug: None,
            turmoil: Duration::from_secs(20),
            heal_limit: Duration::from_secs(120),
        }
    }

    /// Adds a bug to every stack.
    #[cfg(feature = "injected-bugs")]
    #[must_use]
    pub fn with_injected_bug(mut self, bug: consort_group::InjectedBug) -> Self {
        self.injected_bug = Some(bug);
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
/// The first broken rule.
pub fn run(plan: &Plan, seed: u64) -> Result<Report, Violation> {
    replay(plan, seed).0
}

/// Like [`run`], and returns faults and views in their order, one per line.
pub fn replay(plan: &Plan, seed: u64) -> (Result<Report, Violation>, Vec<String>) {
    runner::replay(plan, seed)
}

impl Workload for Plan {
    type Report = Report;
    type App = Messages;

    fn stack(&self) -> &str {
        &self.stack
    }

    fn application(&self, _: u64, _: &mut Rng) -> Messages {
        Messages::new(self.traffic)
    }

    fn run(&self, world: &mut World<Messages>) -> Result<Report, Broken> {
        #[cfg(feature = "injected-bugs")]
        {
            world.injected_bug = self.injected_bug;
        }
        let until = world.now + self.turmoil;
        let faults = Faults::begin(world, self.mix, self.members, until);
        runner::start_members(world, &faults, self.members, |_, _| Ok(()))?;
        runner::run_faults(world, &faults, until, |_| Ok(()))?;
        Faults::end(world);
        let ended = world.now;
        // Traffic goes on for 5 s, so that later messages reveal lost last ones, and then stops.
        after_faults::advance(world, Duration::from_secs(5));
        world.stop_traffic();
        // A slow application still has to consume the messages that were delivered to it until then.
        let worked_off = world.nodes.iter().filter(|node| node.is_alive()).map(|node| node.busy_until).max();
        after_faults::heal(world, worked_off.map_or(ended, |at| at.max(ended)) + self.heal_limit)?;
        let healed_after = world.now.since(ended);
        let last_view = |node: &Node| node.log.views.last().map(|(at, _)| *at);
        let met = world.nodes.iter().filter(|node| node.is_alive()).filter_map(last_view).max();
        let met_after = met.map_or(Duration::ZERO, |at| at.since(ended));
        after_faults::join_and_leave(world)?;
        checks::all(&world.nodes)?;
        Ok(Report {
            trace: world.trace,
            packets: world.totals.packets,
            bytes: world.totals.bytes,
            delivered: world.totals.delivered,
            backlog: world.nodes.iter().map(|node| node.backlog.most()).max().unwrap_or_default(),
            members: world.nodes.len(),
            healed_after,
            met_after,
            merges: merges(&world.nodes),
            proven: world.nodes.iter().map(|node| node.log.proofs.len()).sum(),
        })
    }
}

fn merges(nodes: &[Node]) -> usize {
    let views = nodes.iter().flat_map(|node| &node.log.views).map(|(_, view)| view);
    let ids: BTreeSet<_> = views.filter(|view| view.is_merge()).map(|view| view.id()).collect();
    ids.len()
}
