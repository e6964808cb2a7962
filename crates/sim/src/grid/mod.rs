//! The grid in the simulator: members with stacks and a cache, clients, faults, and a checker for each
//! guarantee.
//!
//! [`run`] draws everything from the seed. Afterwards the cluster has to settle within
//! [`Plan::settle_limit`]; then every key is read everywhere, and everything is checked. The same seed gives
//! the same run.
//!
//! Faults that lose data by right are not drawn: a member crashes only while every segment has all its owners
//! and no member is cut off.

mod actions;
mod backpressure;
mod bulk_client;
mod checks;
mod client;
mod fault_preconditions;
mod full_restart;
mod grid_adapter;
mod growth;
mod history;
mod iterating_client;
mod keys;
mod listener_churn;
mod listener_client;
mod member;
mod operations;
mod outdated_members;
mod settle;
mod stores;
mod swarm;
mod transit;
mod turns;
mod value_fields;
mod workload_mix;

use std::collections::{BTreeMap, BTreeSet};

use consort_grid::{CacheConfig, Topology};
use consort_group::{Address, Rng, Time};

pub use growth::{Growth, grow};
pub use swarm::{Plan, Report, replay, run};
pub use workload_mix::WorkloadMix;

use backpressure::Backpressure;
use bulk_client::BulkOperation;
use client::Client;
use history::Operation;
use iterating_client::IteratingClients;
use keys::Keys;
use listener_client::ListenerClients;
use member::Member;
use stores::Stores;
use transit::Transit;

use crate::world::World;

pub(crate) type GridWorld = World<Grid>;

pub(crate) struct Grid {
    pub(crate) config: CacheConfig,
    pub(crate) members: Vec<Member>,
    pub(crate) keys: Keys,
    pub(crate) is_weighted: bool,
    pub(crate) chunk_bytes: u32,
    pub(crate) clients: Vec<Client>,
    pub(crate) history: Vec<Operation>,
    pub(crate) iterating_clients: Option<IteratingClients>,
    pub(crate) listener_clients: Option<ListenerClients>,
    pub(crate) stores: Option<Stores>,
    pub(crate) workload: WorkloadMix,
    pub(crate) own: Rng,
    pub(crate) idle: Rng,
    pub(crate) bulk: Vec<BulkOperation>,
    pub(crate) backpressure: Option<Backpressure>,
    pub(crate) transit: Option<Transit>,
    running: BTreeSet<usize>,
    /// The newest topologies of an available cache: several of the same id, if coordinators that do not know of
    /// each other have made them.
    newest: Vec<Topology>,
    /// The topology of the highest ballot, if no two partitions go on: a coordinator that was removed may count
    /// further meanwhile.
    elected: Option<Topology>,
    /// Since when topologies have gone on without a member that may have gone on, too.
    parted: BTreeMap<(u32, Address), Time>,
    /// They do not know that a newer topology has removed them or taken them in anew.
    left_out: BTreeMap<usize, Time>,
    /// Crashed or removed members. No other member knows of uses that only they have seen.
    pub(crate) lost: Vec<(usize, Time)>,
    sides: checks::merges::Sides,
    /// Members have gone on without all members that were merging their entries.
    has_forsaken: bool,
    indices: BTreeMap<Address, usize>,
    pub(crate) is_busy: bool,
    pub(crate) is_quiet: bool,
    pub(crate) malformed: u64,
    pub(crate) frames: u64,
    /// The installed topologies; with `with_operations`, operations as well.
    pub(crate) story: Vec<(Time, String)>,
    pub(crate) with_operations: bool,
    #[cfg(feature = "injected-bugs")]
    pub(crate) injected_bug: Option<consort_grid::InjectedBug>,
}

impl Grid {
    pub(crate) fn new(config: CacheConfig, keys: Keys) -> Self {
        Self {
            config,
            members: Vec::new(),
            keys,
            is_weighted: false,
            chunk_bytes: u32::MAX,
            clients: Vec::new(),
            history: Vec::new(),
            iterating_clients: None,
            listener_clients: None,
            stores: None,
            workload: WorkloadMix::NONE,
            own: Rng::new(0),
            idle: Rng::new(0),
            bulk: Vec::new(),
            backpressure: None,
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
            with_operations: false,
            #[cfg(feature = "injected-bugs")]
            injected_bug: None,
        }
    }
}
