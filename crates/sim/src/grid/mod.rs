//! The grid in the simulator: members with whole stacks and a cache above them, clients that use it, the same faults as for
//! the channel, and a checker for each guarantee.
//!
//! [`run`] draws everything from the seed: the cache's mode and settings, the clients' operations, iterations, listeners, and
//! the faults. After the faults the cluster has to settle within [`Plan::settle_limit`]; then every key is read everywhere,
//! and everything is checked. The same seed gives the same run.
//!
//! Faults that lose data by right are not drawn: a member crashes only while every segment has all its owners and no member
//! is cut off. A member opens the cache when it sees a member that has it.

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

/// The state of the cache in the world.
pub(crate) struct Grid {
    pub(crate) config: CacheConfig,
    pub(crate) keys: Keys,
    /// Whether members have different capacity factors, and some zero.
    pub(crate) is_weighted: bool,
    /// The bytes of a chunk of a state transfer.
    pub(crate) chunk_bytes: u32,
    pub(crate) clients: Vec<Client>,
    pub(crate) history: Vec<Operation>,
    /// The readers of iterations, if there are any.
    pub(crate) walkers: Option<Walkers>,
    /// The listeners, if there are any.
    pub(crate) hearers: Option<Hearers>,
    /// The members' stores, if they have any.
    pub(crate) stores: Option<Stores>,
    /// The clients' optional behaviours, and the random generator for them.
    pub(crate) habits: Habits,
    pub(crate) own: Rng,
    /// The random generator for entries with max-idle.
    pub(crate) idle: Rng,
    /// The clients' operations on several keys at once.
    pub(crate) several: Vec<Several>,
    /// The limits of members and channels, if they are low.
    pub(crate) narrow: Option<Narrow>,
    /// The transit times of frames, if a checker needs them.
    pub(crate) transit: Option<Transit>,
    /// Indices of unfinished operations in the history.
    running: BTreeSet<usize>,
    /// The newest topologies of an available cache that a member has installed: one, or several of the same id, if
    /// coordinators that do not know of each other have made them.
    newest: Vec<Topology>,
    /// The topology of the highest ballot, if no two partitions go on: a coordinator that was removed may count further
    /// meanwhile.
    elected: Option<Topology>,
    /// Since when topologies have gone on without a member that may have gone on, too.
    parted: BTreeMap<(u32, Address), Time>,
    /// Members that a newer topology has removed, or has taken in anew, and that do not know it: since when.
    left_out: BTreeMap<usize, Time>,
    /// Members without which the others went on, and when: they have crashed, or were removed. No other member knows of uses
    /// that only they have seen.
    pub(crate) lost: Vec<(usize, Time)>,
    /// The merged partitions.
    sides: checks::merges::Sides,
    /// Whether members have gone on without all members that were merging their entries.
    has_forsaken: bool,
    /// The last node that has an address.
    indices: BTreeMap<Address, usize>,
    /// Whether clients go on.
    pub(crate) is_busy: bool,
    /// Whether clients pause.
    pub(crate) is_quiet: bool,
    pub(crate) malformed: u64,
    /// The number of messages between members.
    pub(crate) frames: u64,
    /// The installed topologies; with `tells_all`, operations as well.
    pub(crate) story: Vec<(Time, String)>,
    pub(crate) tells_all: bool,
    /// The bug of all members.
    #[cfg(feature = "planted")]
    pub(crate) planted: Option<consort_grid::InjectedBug>,
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
