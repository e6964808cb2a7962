use consort_group::config::StackConfig;
use consort_group::{Rng, Time};

use crate::checks::{Broken, Violation};
use crate::faults::Faults;
use crate::stock::{Discovery, QUICK, stock};
use crate::world::{Application, World};

pub(crate) trait Workload {
    type Report;
    type App: Application;

    fn stack(&self) -> &str;

    fn application(&self, seed: u64, rng: &mut Rng) -> Self::App;

    fn run(&self, world: &mut World<Self::App>) -> Result<Self::Report, Broken>;
}

pub(crate) fn replay<W: Workload>(workload: &W, seed: u64) -> (Result<W::Report, Violation>, Vec<String>) {
    let config = match quick_stack(workload.stack(), seed) {
        Ok(config) => config,
        Err(violation) => return (Err(violation), Vec::new()),
    };
    let mut rng = Rng::new(seed);
    let app = workload.application(seed, &mut rng);
    let mut world = World::new(rng, config, app);
    let result = workload.run(&mut world).map_err(|(rule, what)| Violation { seed, rule, what });
    (result, world.story())
}

fn quick_stack(stack: &str, seed: u64) -> Result<StackConfig, Violation> {
    stock(stack, QUICK, Discovery::Local).map_err(|what| Violation { seed, rule: "configuration", what })
}

/// The faults draw the clock rates. `wait` runs after each start.
pub(crate) fn start_members<A: Application>(
    world: &mut World<A>,
    faults: &Faults,
    members: usize,
    wait: impl Fn(&mut World<A>, usize) -> Result<(), Broken>,
) -> Result<(), Broken> {
    for _ in 0..members {
        let node = world.start().map_err(|what| ("configuration", what))?;
        world.nodes[node].rate = faults.clock_rate(world);
        wait(world, node)?;
    }
    Ok(())
}

pub(crate) fn run_faults<A: Application>(
    world: &mut World<A>,
    faults: &Faults,
    until: Time,
    check: impl Fn(&World<A>) -> Result<(), Broken>,
) -> Result<(), Broken> {
    while world.step(until) {
        if std::mem::take(&mut world.is_fault_due) {
            faults.strike(world);
            check(world)?;
        }
    }
    Ok(())
}
