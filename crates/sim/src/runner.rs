//! The runner of all workloads: a cluster on a stock stack, members that start, faults, and a report.

use consort_group::Time;
use consort_group::config::StackConfig;

use crate::checks::{Broken, Violation};
use crate::faults::Faults;
use crate::stock::{Discovery, QUICK, stock};
use crate::world::{Traffic, World};

/// A cluster's application, and the phases of its run.
pub(crate) trait Workload {
    /// The outcome of a run that breaks no rule.
    type Report;

    /// Returns the name of the stock stack.
    fn stack(&self) -> &str;

    /// Returns the traffic of members that have no cache.
    fn traffic(&self) -> Traffic;

    /// Draws the application from the seed.
    fn prepare(&self, world: &mut World, seed: u64);

    /// Runs all phases, from the first member to the last check.
    fn run(&self, world: &mut World) -> Result<Self::Report, Broken>;
}

/// Runs a workload with a seed. Also returns the events of the run in their order, one per line.
pub(crate) fn replay<W: Workload>(workload: &W, seed: u64) -> (Result<W::Report, Violation>, Vec<String>) {
    let config = match quick_stack(workload.stack(), seed) {
        Ok(config) => config,
        Err(violation) => return (Err(violation), Vec::new()),
    };
    let mut world = World::new(seed, config, workload.traffic());
    workload.prepare(&mut world, seed);
    let result = workload.run(&mut world).map_err(|(rule, what)| Violation { seed, rule, what });
    (result, world.story())
}

/// Returns a stock stack with the timeouts of a simulated run.
fn quick_stack(stack: &str, seed: u64) -> Result<StackConfig, Violation> {
    stock(stack, QUICK, Discovery::Local).map_err(|what| Violation { seed, rule: "configuration", what })
}

/// Starts members with the clock rates that the faults draw. `wait` runs after each start.
pub(crate) fn start_members(
    world: &mut World,
    faults: &Faults,
    members: usize,
    wait: impl Fn(&mut World, usize) -> Result<(), Broken>,
) -> Result<(), Broken> {
    for _ in 0..members {
        let node = world.start().map_err(|what| ("configuration", what))?;
        world.nodes[node].rate = faults.clock_rate(world);
        wait(world, node)?;
    }
    Ok(())
}

/// Runs the world with faults until this time. `check` runs after each fault.
pub(crate) fn run_faults(
    world: &mut World,
    faults: &Faults,
    until: Time,
    check: impl Fn(&World) -> Result<(), Broken>,
) -> Result<(), Broken> {
    while world.step(until) {
        if std::mem::take(&mut world.is_fault_due) {
            faults.strike(world);
            check(world)?;
        }
    }
    Ok(())
}
