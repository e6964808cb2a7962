use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use consort_grid::{
    Action, CacheConfig, CacheId, CacheMember, CapacityFactor, Container, ContainerSettings, Lifetime,
    Lookup, Membership, Node, Outcome, ReadFrom, StoreSettings, Stored, Topology,
};
use consort_group::{Address, Time};

use super::GridWorld;
use super::stores::Opened;
use super::value_fields;
use crate::node::{self, Node as StackNode};
use crate::simulated_store::SimStore;

/// The clock's time at the member's beginning. As in a real program, expired entries may be older than the
/// member.
pub(super) const BEGINNING: Duration = Duration::from_secs(60 * 60 * 24 * 365);

pub(super) const GREATEST: &str = "greatest";

fn greatest(_: &[u8], preferred: Option<&Stored>, others: &[Option<&Stored>]) -> Option<(Bytes, Lifetime)> {
    let entries = others.iter().copied().chain([preferred]).flatten();
    entries
        .map(|stored| {
            let lifespan = stored.lifetime.lifespan.map(|lifespan| lifespan.saturating_sub(stored.age));
            (stored.value.clone(), Lifetime { lifespan, ..stored.lifetime })
        })
        .max_by(|(one, _), (other, _)| one.cmp(other))
}

#[derive(PartialEq)]
pub(crate) struct InstalledTopology {
    pub(crate) id: u32,
    pub(crate) members: Arc<[Membership]>,
    pub(crate) is_degraded: bool,
}

pub(crate) struct Member {
    pub(crate) node: Node,
    pub(crate) container: Arc<Container>,
    pub(crate) cache: CacheId,
    pub(crate) store: Option<SimStore>,
    /// Kept until the member has the cache open.
    backing: Option<StoreSettings>,
    pub(crate) capacity: CapacityFactor,
    /// A member opens the cache only once it sees a member that has it, because a member that is cut off would
    /// begin its own.
    pub(crate) is_open: bool,
    pub(crate) is_leaving: bool,
    pub(crate) is_left: bool,
    pub(crate) running: BTreeMap<u64, usize>,
    pub(crate) topologies: Vec<(Time, InstalledTopology)>,
}

impl Member {
    pub(crate) fn new(
        address: Address,
        config: &CacheConfig,
        capacity: CapacityFactor,
        hash_seed: u64,
        opened: Option<Opened>,
    ) -> Self {
        let settings = ContainerSettings {
            segment_count: config.segments,
            bound: None,
            is_backed: false,
            is_shared: config.mode.is_shared(),
        };
        let mut node = Node::new(address);
        node.register_merge(GREATEST, Arc::new(greatest));
        let (container, store, backing) = match opened {
            Some(Opened { container, store, backing }) => (container, Some(store), Some(backing)),
            None => (Arc::new(Container::new(&settings, hash_seed)), None, None),
        };
        value_fields::index(&container);
        Self {
            node,
            container,
            store,
            backing,
            cache: config.id(),
            capacity,
            is_open: false,
            is_leaving: false,
            is_left: false,
            running: BTreeMap::new(),
            topologies: Vec::new(),
        }
    }

    pub(crate) fn open(&mut self, own: Time, config: &CacheConfig) {
        let member = CacheMember { capacity: self.capacity, ..self.node.local().clone().into() };
        let (container, backing) = (self.container.clone(), self.backing.take());
        let opened = self.node.open_backed(own, config.clone(), member, container, backing);
        self.is_open = opened.is_ok();
    }

    pub(crate) fn remembers(&self) -> bool {
        self.backing.as_ref().is_some_and(|backing| backing.remembered.is_some())
    }

    pub(crate) fn topology(&self) -> Option<&Topology> {
        self.node.topology(self.cache)
    }

    pub(crate) fn topologies_between(
        &self,
        from: Time,
        until: Time,
    ) -> impl Iterator<Item = &InstalledTopology> {
        node::between(&self.topologies, from, until)
    }

    pub(crate) fn is_usable(&self) -> bool {
        self.topology().is_some() && !self.is_left
    }

    /// Whether it has a topology, or needs none.
    pub(crate) fn knows(&self) -> bool {
        self.is_left || self.is_open && self.topology().is_some()
    }

    /// The cache's handle reads the container itself, without the network.
    pub(crate) fn look_up(&self, own: Time, key: &[u8], action: &Action) -> Option<Outcome> {
        if *action != Action::Read(ReadFrom::Nearest) {
            return None;
        }
        let segment = self.topology()?.current.segment_of(key);
        match self.container.look_up(segment, key, || own) {
            Lookup::Hit(entry) => Some(Outcome::Read(Some(Stored {
                age: own.since(entry.created),
                idle: own.since(entry.last_used),
                value: entry.value,
                version: entry.version,
                lifetime: entry.lifetime,
            }))),
            Lookup::Miss => Some(Outcome::Read(None)),
            Lookup::NotLocal => None,
        }
    }
}

pub(super) fn alive(world: &GridWorld) -> impl Iterator<Item = (&StackNode, &Member)> {
    world.nodes.iter().zip(&world.app.members).filter(|(node, _)| node.is_alive())
}
