//! Sites with RELAY2 or RELAY3 in virtual time: members of several clusters send each other messages over bridges, which are cut, while
//! site masters crash.
//!
//! ```
//! use consort_sim::sites::{Plan, run};
//!
//! let report = run(&Plan::new(2, 3, 1).without_faults(), 7).unwrap_or_else(|violation| panic!("{violation}"));
//! assert!(report.delivered > 0);
//! ```

mod application;
mod checks;
mod faults;
mod members;
mod relaying;
mod traffic;

use std::time::Duration;

use consort_group::config::{Position, ProtocolConfig, StackConfig};
use consort_group::{Rng, Time};

use crate::after_faults::advance;
use crate::checks::{Broken, Violation};
use crate::network::Weather;
use crate::stock::{Discovery, QUICK, stock};
use crate::world::World;
use checks::Deliveries;
use members::{Role, Site};
use relaying::Paths;

/// The names of sites and of their clusters.
const SITES: [&str; 3] = ["lon", "nyc", "sfo"];

/// The cluster of site masters.
const BRIDGE: &str = "bridge";

/// Suspicion by FD_ALL3 after 4 s, verification, views, and a merge of the bridge.
const HEAL_TIME: Duration = Duration::from_secs(60);

/// For the messages that are sent after the faults.
const QUIET_TIME: Duration = Duration::from_secs(20);

/// A run's settings, besides the seed.
#[derive(Clone, Debug)]
pub struct Plan {
    sites: usize,
    members: usize,
    max_site_masters: usize,
    has_faults: bool,
    turmoil: Duration,
    protocol: &'static str,
    #[cfg(feature = "injected-bugs")]
    injected_bug: Option<consort_group::InjectedBug>,
}

impl Plan {
    /// Two or three sites of so many members and site masters each, with all faults.
    pub const fn new(sites: usize, members: usize, max_site_masters: usize) -> Self {
        Self {
            sites,
            members,
            max_site_masters,
            has_faults: true,
            turmoil: Duration::from_secs(20),
            protocol: "RELAY2",
            #[cfg(feature = "injected-bugs")]
            injected_bug: None,
        }
    }

    /// Has RELAY3 in place of RELAY2.
    #[must_use]
    pub const fn with_relay3(mut self) -> Self {
        self.protocol = "RELAY3";
        self
    }

    /// Removes all faults except reordered packets.
    #[must_use]
    pub const fn without_faults(mut self) -> Self {
        self.has_faults = false;
        self
    }

    /// Adds a bug to every stack.
    #[cfg(feature = "injected-bugs")]
    #[must_use]
    pub const fn with_injected_bug(mut self, bug: consort_group::InjectedBug) -> Self {
        self.injected_bug = Some(bug);
        self
    }
}

/// A run's outcome.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// A hash over all packets and deliveries, and their times.
    pub trace: u64,
    /// Messages received by applications.
    pub delivered: u64,
    /// Messages that site masters have sent over bridges.
    pub relayed: u64,
    /// Messages that were refused because their site was unreachable.
    pub unreachable: u64,
    /// Changes of a sender's site master or route.
    pub failovers: usize,
}

/// The program above the stacks of members and bridges.
pub(crate) struct Sites {
    protocol: &'static str,
    roles: Vec<Role>,
    sites: Vec<Site>,
    max_site_masters: usize,
    bridge: StackConfig,
    traffic: traffic::Traffic,
    paths: Paths,
    deliveries: Deliveries,
    cuts: faults::Cuts,
    unreachable: u64,
    relayed: u64,
    #[cfg(feature = "injected-bugs")]
    injected_bug: Option<consort_group::InjectedBug>,
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
    let configured = stock("tcp.xml", QUICK, Discovery::Local);
    let config = match configured {
        Ok(config) => config,
        Err(what) => return (Err(Violation { seed, rule: "configuration", what }), Vec::new()),
    };
    let mut rng = Rng::new(seed);
    let sites = SITES.iter().take(plan.sites);
    let sites = sites
        .map(|name| Site { name, config: with_relay(&config, (plan.protocol, name), plan.max_site_masters) });
    let app = Sites {
        protocol: plan.protocol,
        roles: Vec::new(),
        sites: sites.collect(),
        max_site_masters: plan.max_site_masters,
        bridge: config.clone(),
        traffic: traffic::Traffic::default(),
        paths: Paths::default(),
        deliveries: Deliveries::default(),
        cuts: faults::Cuts::default(),
        unreachable: 0,
        relayed: 0,
        #[cfg(feature = "injected-bugs")]
        injected_bug: plan.injected_bug,
    };
    let weather = Weather {
        delay_min: Duration::from_micros(20),
        delay_max: Duration::from_micros(rng.between(100, 20_000)),
        loss: if plan.has_faults { rng.below(10) as f64 / 100.0 } else { 0.0 },
        duplication: if plan.has_faults { rng.below(10) as f64 / 100.0 } else { 0.0 },
    };
    let mut world = World::new(rng, config, app);
    world.network.weather = weather;
    #[cfg(feature = "injected-bugs")]
    {
        world.injected_bug = world.app.injected_bug;
    }
    let result = play(plan, &mut world).map_err(|(rule, what)| Violation { seed, rule, what });
    (result, world.story())
}

fn with_relay(config: &StackConfig, (protocol, site): (&str, &str), max_site_masters: usize) -> StackConfig {
    let mut config = config.clone();
    let attributes =
        [("site", site), ("config", "relay.xml"), ("max_site_masters", &max_site_masters.to_string())];
    let attributes =
        attributes.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned(), Position::default()));
    let attributes = attributes.collect();
    config.protocols.push(ProtocolConfig {
        name: protocol.to_owned(),
        attributes,
        position: Position::default(),
    });
    config
}

fn play(plan: &Plan, world: &mut World<Sites>) -> Result<Report, Broken> {
    for site in 0..plan.sites {
        for _ in 0..plan.members {
            members::start_member(world, site).map_err(|what| ("configuration", what))?;
            advance(world, Duration::from_millis(200));
        }
    }
    let until = world.now + HEAL_TIME;
    while !members::is_connected(world) {
        if world.now >= until {
            return Err(("sites find each other", members::missing_routes(world)));
        }
        advance(world, Duration::from_millis(250));
    }
    traffic::start_traffic(world);
    let until: Time = world.now + plan.turmoil;
    if plan.has_faults {
        faults::plan_fault(world, until);
    }
    advance(world, plan.turmoil);
    traffic::stop_traffic(world);
    faults::end_faults(world);
    let until = world.now + HEAL_TIME;
    while !members::is_connected(world) {
        if world.now >= until {
            return Err(("bridges heal", members::missing_routes(world)));
        }
        advance(world, Duration::from_millis(250));
    }
    // Members that wait for an acknowledgement of a dead site master give up on it.
    advance(world, Duration::from_secs(10));
    let first = traffic::send_to_all(world);
    advance(world, QUIET_TIME);
    // The order first, because it is what a sender's one site master is for.
    checks::order(world)?;
    if let Some(broken) = world.app.paths.broken() {
        return Err(broken);
    }
    checks::completeness(world, &first)?;
    crate::checks::proofs(&world.nodes)?;
    if !plan.has_faults {
        checks::nothing_lost(world)?;
    }
    Ok(Report {
        trace: world.trace,
        delivered: world.totals.delivered,
        relayed: world.app.relayed,
        unreachable: world.app.unreachable,
        failovers: world.app.paths.changes(),
    })
}
