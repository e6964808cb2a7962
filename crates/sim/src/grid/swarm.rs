//! A run: members with a cache, clients, faults, and the final checks.

use std::time::Duration;

use consort_grid::{CacheConfig, CacheMode, MergePolicy, PartitionHandling};
use consort_group::Rng;

use super::backpressure::Backpressure;
use super::history::Operation;
use super::iterating_client::IteratingClients;
use super::keys::Keys;
use super::listener_client::ListenerClients;
use super::member::GREATEST;
use super::stores::{self, Stores};
use super::transit::Transit;
use super::workload_mix::{self, WorkloadMix};
use super::{Grid, GridWorld, checks, full_restart, listener_churn, settle};
use crate::after_faults::advance;
use crate::checks::{Broken, Violation};
use crate::faults::{Faults, Mix};
use crate::runner::{self, Workload};

/// A run's settings, besides the seed.
#[derive(Clone, Debug)]
pub struct Plan {
    stack: String,
    members: usize,
    mix: Mix,
    has_listeners: bool,
    /// Members are parted again and again, and all partitions go on.
    is_parted: bool,
    /// `None`: the seed decides, as for the next two.
    has_stores: Option<bool>,
    workload: Option<WorkloadMix>,
    mode: Option<CacheMode>,
    /// Whether the story includes operations.
    pub with_operations: bool,
    /// The faults' duration.
    pub turmoil: Duration,
    /// The limit until one view after the faults.
    pub heal_limit: Duration,
    /// The limit from there to one stable topology: confirmations, and requests that are repeated after seconds
    /// because they were lost while views differed.
    pub settle_limit: Duration,
    #[cfg(feature = "injected-bugs")]
    injected_bug: Option<consort_grid::InjectedBug>,
}

/// A run's outcome.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// A hash over all sent and delivered messages, and their times.
    pub trace: u64,
    /// Packets on the network.
    pub packets: u64,
    /// Members so far.
    pub members: usize,
    /// Operations begun.
    pub operations: usize,
    /// Successful operations, whether or not a condition held.
    pub succeeded: usize,
    /// Writes without a known outcome.
    pub uncertain: usize,
    /// Reads that a member may have answered that was removed from the topology without knowing it.
    pub excused: usize,
    /// Completed iterations.
    pub iterations: usize,
    /// Iterations that failed because owners were unreachable.
    pub refused_iterations: usize,
    /// Events received: changes and existing entries.
    pub events: usize,
    /// Gaps received.
    pub gaps: usize,
    /// Keys with values loaded from stores.
    pub loads: u64,
    /// Requests refused by stores.
    pub refusals: u64,
    /// How often the whole cluster has begun again with its stores.
    pub beginnings: u64,
    /// How often a member had calls that waited until other members may send more.
    pub waited: u64,
    /// Reads that waited for room for their responses, at the owner with the most of them.
    pub held: u64,
    /// The time from the faults' end to one view.
    pub healed_after: Duration,
    /// The time from there to one stable topology.
    pub settled_after: Duration,
}

impl Plan {
    /// Members on a stock stack, with all faults.
    pub fn new(stack: &str, members: usize) -> Self {
        Self {
            stack: stack.to_owned(),
            members,
            mix: Mix::ALL,
            has_listeners: true,
            is_parted: false,
            has_stores: None,
            workload: None,
            mode: None,
            with_operations: false,
            turmoil: Duration::from_secs(15),
            heal_limit: Duration::from_secs(120),
            settle_limit: Duration::from_secs(15),
            #[cfg(feature = "injected-bugs")]
            injected_bug: None,
        }
    }

    /// Allows only these faults.
    #[must_use]
    pub fn with_faults(mut self, mix: Mix) -> Self {
        self.mix = mix;
        self
    }

    /// Cuts links again and again, also while others are cut, and lets all partitions go on. A seed is another
    /// run then.
    #[must_use]
    pub fn parted(mut self) -> Self {
        self.is_parted = true;
        self
    }

    /// Removes all listeners. A listening member receives writes like an owner, so a seed is another run
    /// then.
    #[must_use]
    pub fn without_listeners(mut self) -> Self {
        self.has_listeners = false;
        self
    }

    /// Removes all stores: a seed that has drawn stores is another run then.
    #[must_use]
    pub fn without_stores(mut self) -> Self {
        self.has_stores = Some(false);
        self
    }

    /// Gives members stores, except for caches that can have none.
    #[must_use]
    pub fn with_stores(mut self) -> Self {
        self.has_stores = Some(true);
        self
    }

    /// Sets the optional behaviours of clients. With none, a seed is the run that it was before these existed.
    #[must_use]
    pub fn with_workload(mut self, workload: WorkloadMix) -> Self {
        self.workload = Some(workload);
        self
    }

    /// Sets the cache's mode. A local cache has one member.
    #[must_use]
    pub fn with_mode(mut self, mode: CacheMode) -> Self {
        self.mode = Some(mode);
        self
    }

    /// Adds a bug to every member.
    #[cfg(feature = "injected-bugs")]
    #[must_use]
    pub fn with_injected_bug(mut self, bug: consort_grid::InjectedBug) -> Self {
        self.injected_bug = Some(bug);
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

/// Like [`run`], and returns the events in their order, one per line.
pub fn replay(plan: &Plan, seed: u64) -> (Result<Report, Violation>, Vec<String>) {
    runner::replay(plan, seed)
}

const ITERATIONS: u64 = 0x5741_4c4b_5741_4c4b;

const LISTENERS: u64 = 0x4c49_5354_454e_4552;

/// Turns a seed into the one that decides whether the cache is local.
const LOCAL: u64 = 0x4c4f_4341_4c4c_4f43;

fn draw(seed: u64, rng: &mut Rng) -> Grid {
    let mut own = Rng::new(seed ^ ITERATIONS);
    let mut config = CacheConfig::new("sim");
    config.mode = match rng.below(11) {
        0 | 1 => CacheMode::Replicated,
        2 => CacheMode::Distributed { owners: 1 },
        3..8 => CacheMode::Distributed { owners: 2 },
        8 => CacheMode::Invalidation,
        _ => CacheMode::Distributed { owners: 3 },
    };
    config.segments = rng.between(1, 16) as u16;
    config.partitions = match rng.below(10) {
        0..4 => PartitionHandling::DenyReadWrites,
        4..7 => PartitionHandling::AllowReads,
        _ => PartitionHandling::AllowReadWrites,
    };
    config.merge = match rng.below(4) {
        0 => MergePolicy::PreferredAlways,
        1 => MergePolicy::PreferredNonNull,
        2 => MergePolicy::RemoveAll,
        _ => MergePolicy::Custom(GREATEST.into()),
    };
    // Few entries are several chunks, sometimes.
    let chunk_bytes = if rng.chance(0.7) { rng.between(1, 200) as u32 } else { u32::MAX };
    let is_weighted = rng.chance(0.3);
    let mut grid = Grid { chunk_bytes, is_weighted, ..Grid::new(config, Keys::draw(rng)) };
    if own.chance(0.5) {
        grid.keys.steady = own.between(1, 120);
        grid.iterating_clients = Some(IteratingClients::new(own));
    }
    grid
}

fn describe(grid: &Grid) -> String {
    format!(
        "{:?}, {} segments, {:?}, {:?}, {:?}{}{}",
        grid.config.mode,
        grid.config.segments,
        grid.config.partitions,
        grid.config.merge,
        grid.keys,
        [
            (grid.is_weighted, ", weighted"),
            (grid.iterating_clients.is_some(), ", walks"),
            (grid.listener_clients.is_some(), ", listeners"),
            (grid.workload.lifespans, ", lifespans"),
            (grid.workload.clears, ", clears"),
            (grid.workload.many, ", many keys at once"),
            (grid.workload.idle, ", max_idle"),
            (grid.workload.listeners_end, ", listeners end"),
            (grid.workload.backpressure, ", little room")
        ]
        .into_iter()
        .filter_map(|(is_it, what)| is_it.then_some(what))
        .collect::<String>(),
        grid.stores.as_ref().map(Stores::describe).unwrap_or_default()
    )
}

fn run_faults(world: &mut GridWorld, faults: &mut Faults, uptime: Duration) -> Result<(), Broken> {
    let until = world.now + uptime;
    faults.begin_again(world, until);
    runner::run_faults(world, faults, until, checks::during_faults)
}

impl Workload for Plan {
    type Report = Report;
    type App = Grid;

    fn stack(&self) -> &str {
        &self.stack
    }

    fn application(&self, seed: u64, rng: &mut Rng) -> Grid {
        let mut grid = draw(seed, rng);
        if self.is_parted {
            grid.config.partitions = PartitionHandling::AllowReadWrites;
        }
        let is_local = Rng::new(seed ^ LOCAL).chance(0.06) && !self.is_parted;
        if let Some(mode) = self.mode.or(is_local.then_some(CacheMode::Local)) {
            grid.config.mode = mode;
        }
        let mut own = Rng::new(seed ^ LISTENERS);
        if own.chance(0.4) && self.has_listeners {
            grid.listener_clients = Some(ListenerClients::new(own));
        }
        let mut own = Rng::new(seed ^ stores::SEED);
        // If every member has its own entries, a store would have no entries for another life.
        let is_drawn = own.chance(0.4);
        if self.has_stores.unwrap_or(is_drawn) && grid.config.mode != CacheMode::Invalidation {
            grid.stores = Some(Stores::draw(seed));
        }
        let mut own = Rng::new(seed ^ workload_mix::SEED);
        let drawn = WorkloadMix::draw(&mut own);
        grid.workload = self.workload.unwrap_or(drawn);
        grid.keys.mortals = grid.workload.mortals(&mut own);
        let mut idle = Rng::new(seed ^ workload_mix::IDLE_SEED);
        grid.keys.idlers = grid.workload.idlers(&mut idle);
        grid.idle = idle;
        grid.transit = grid.workload.has_expiry().then(Transit::default);
        grid.backpressure = grid.workload.backpressure.then(|| Backpressure::draw(seed));
        grid.own = own;
        grid.with_operations = self.with_operations;
        #[cfg(feature = "injected-bugs")]
        {
            grid.injected_bug = self.injected_bug;
        }
        grid
    }

    fn run(&self, world: &mut GridWorld) -> Result<Report, Broken> {
        world.note_story(describe(&world.app));
        let members = if world.app.config.mode == CacheMode::Local { 1 } else { self.members };
        let mut faults = Faults::begin(world, self.mix, members, world.now);
        if self.is_parted {
            faults = faults.parting();
        }
        runner::start_members(world, &faults, members, settle::wait_for)?;
        settle::populate(world);
        for _ in 0..full_restart::restart_count(world) {
            let uptime = full_restart::uptime(world, self.turmoil);
            run_faults(world, &mut faults, uptime)?;
            full_restart::stop_and_restart_all(world)?;
        }
        let uptime = if full_restart::restart_count(world) > 0 {
            full_restart::uptime(world, self.turmoil)
        } else {
            self.turmoil
        };
        run_faults(world, &mut faults, uptime)?;
        // Sometimes the merged entries are inspected, and not later writes.
        if world.app.config.partitions == PartitionHandling::AllowReadWrites && world.rng.chance(0.7) {
            world.app.is_busy = false;
        }
        Faults::end(world);
        stores::heal(world);
        advance(world, Duration::from_secs(2));
        let limit = world.now + self.heal_limit;
        let healed = settle::settle(world, limit, self.settle_limit);
        settle::stop_clients(world);
        // The failed check of all members explains more than the failure to settle.
        let (healed_after, settled_after) = match healed {
            Ok(times) => times,
            Err(why) => return checks::all(world).and(Err(why)),
        };
        let is_well = settle::write_every_segment(world)
            .and_then(|()| settle::read_every_key(world))
            .and_then(|()| settle::iterate_everywhere(world));
        let is_well = is_well.and_then(|()| settle::drain_listeners(world));
        let is_well = is_well.and_then(|()| match self.has_listeners {
            true => listener_churn::begin_and_end_listeners(world),
            false => Ok(()),
        });
        checks::all(world)?;
        is_well?;
        Ok(report(world, healed_after, settled_after))
    }
}

fn report(world: &GridWorld, healed_after: Duration, settled_after: Duration) -> Report {
    let grid = &world.app;
    let history = &grid.history;
    let count = |is: &dyn Fn(&Operation) -> bool| history.iter().filter(|one| is(one)).count();
    let (iterations, refused_iterations) =
        grid.iterating_clients.as_ref().map(IteratingClients::counts).unwrap_or_default();
    let (events, gaps) = grid.listener_clients.as_ref().map(ListenerClients::counts).unwrap_or_default();
    let (stores, backpressure) = (grid.stores.as_ref(), grid.backpressure.as_ref());
    Report {
        trace: world.trace,
        packets: world.totals.packets,
        members: world.nodes.len(),
        operations: history.len(),
        succeeded: count(&|one| matches!(one.result, Some(Ok(_)))),
        uncertain: count(&|one| one.is_uncertain()),
        excused: count(&|one| one.is_excused),
        iterations,
        refused_iterations,
        events,
        gaps,
        loads: stores.map_or(0, |stores| stores.loads),
        refusals: stores.map_or(0, |stores| stores.refusals),
        beginnings: stores.map_or(0, |stores| stores.beginnings),
        waited: backpressure.map_or(0, |backpressure| backpressure.waited),
        held: backpressure.map_or(0, |backpressure| backpressure.held),
        healed_after,
        settled_after,
    }
}
