//! The grid in the simulator: members with whole stacks and a cache above them, clients that use it, the same faults as
//! the channel has to bear, and a checker for each guarantee.
//!
//! [`run`] draws everything from the seed: the cache's mode and settings, what clients do, whether somebody walks through
//! everything meanwhile or listens, and what goes wrong. After the
//! faults the cluster has to settle within [`Plan::settle_limit`]; then every key is read everywhere, and everything is
//! checked. The same seed gives the same run.
//!
//! Not drawn is what loses data by right: a member crashes only while every segment has all its owners and nobody is cut
//! off, and a member opens the cache when it sees somebody who has it.

mod above;
mod checks;
mod client;
mod comings;
mod growth;
mod guards;
mod habits;
mod hearer;
mod history;
mod keys;
mod lives;
mod member;
mod narrow;
mod settle;
mod several;
mod stores;
mod swarm;
mod transit;
mod walker;

use std::collections::{BTreeMap, BTreeSet};

use consort_grid::{CacheConfig, Topology};
use consort_group::{Address, Rng, Time};

pub use growth::{Growth, grow};
pub use habits::Habits;
pub use swarm::{Plan, Report, replay, run};

pub(crate) use member::Member;

use client::Client;
use hearer::Hearers;
use history::Operation;
use keys::Keys;
use narrow::Narrow;
use several::Several;
use stores::Stores;
use transit::Transit;
use walker::Walkers;

/// What the world knows of the cache.
pub(crate) struct Grid {
    pub(crate) config: CacheConfig,
    pub(crate) keys: Keys,
    /// Whether members take different amounts, and some nothing.
    pub(crate) is_weighted: bool,
    /// How much a chunk of a transfer has.
    pub(crate) chunk_bytes: u32,
    pub(crate) clients: Vec<Client>,
    pub(crate) history: Vec<Operation>,
    /// Those who go through everything, if somebody does.
    pub(crate) walkers: Option<Walkers>,
    /// Those who listen, if somebody does.
    pub(crate) hearers: Option<Hearers>,
    /// The stores of members, if they have some.
    pub(crate) stores: Option<Stores>,
    /// What clients do besides, and what they draw for that.
    pub(crate) habits: Habits,
    pub(crate) own: Rng,
    /// The same for entries that live as long as they are used.
    pub(crate) idle: Rng,
    /// What clients have done with several keys at once.
    pub(crate) several: Vec<Several>,
    /// What members take, and what channels have room for, if that is little.
    pub(crate) narrow: Option<Narrow>,
    /// How long frames were under way, if somebody has to know.
    pub(crate) transit: Option<Transit>,
    /// Places in the history that have no end yet.
    running: BTreeSet<usize>,
    /// The newest topologies of an available cache that somebody has installed: one, or several of the same id, if
    /// coordinators that do not know of each other have made them.
    newest: Vec<Topology>,
    /// That of the highest ballot, where no two sides go on: a coordinator that was left out may count further meanwhile.
    elected: Option<Topology>,
    /// Since when topologies have gone on without somebody who may have gone on, too.
    parted: BTreeMap<(u32, Address), Time>,
    /// Members that a newer topology is without, or has taken in anew, and that do not know: since when.
    left_out: BTreeMap<usize, Time>,
    /// Members that others went on without, and when: they have crashed, or were left out. What only they have used, nobody
    /// knows.
    pub(crate) lost: Vec<(usize, Time)>,
    /// Sides that were merged.
    sides: checks::merges::Sides,
    /// Whether somebody has gone on without all who were merging what it had.
    has_forsaken: bool,
    /// The last node that has an address.
    indices: BTreeMap<Address, usize>,
    /// Whether clients go on.
    pub(crate) is_busy: bool,
    /// Whether they wait meanwhile.
    pub(crate) is_quiet: bool,
    pub(crate) malformed: u64,
    /// Messages that members have sent to each other.
    pub(crate) frames: u64,
    /// Topologies as they were installed; with `tells_all`, operations as well.
    pub(crate) story: Vec<(Time, String)>,
    pub(crate) tells_all: bool,
    /// The bug of all members.
    #[cfg(feature = "planted")]
    pub(crate) planted: Option<consort_grid::Planted>,
}

impl Grid {
    pub(crate) fn new(config: CacheConfig, keys: Keys) -> Self {
        Self {
            config,
            keys,
            is_weighted: false,
            chunk_bytes: u32::MAX,
            clients: Vec::new(),
            history: Vec::new(),
            walkers: None,
            hearers: None,
            stores: None,
            habits: Habits::NONE,
            own: Rng::new(0),
            idle: Rng::new(0),
            several: Vec::new(),
            narrow: None,
            transit: None,
            running: BTreeSet::new(),
            newest: Vec::new(),
            elected: None,
            parted: BTreeMap::new(),
            left_out: BTreeMap::new(),
            lost: Vec::new(),
            sides: BTreeMap::new(),
            has_forsaken: false,
            indices: BTreeMap::new(),
            is_busy: true,
            is_quiet: false,
            malformed: 0,
            frames: 0,
            story: Vec::new(),
            tells_all: false,
            #[cfg(feature = "planted")]
            planted: None,
        }
    }
}
