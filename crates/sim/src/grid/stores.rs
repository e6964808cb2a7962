//! The stores of members, if the seed has drawn them: files on a simulated disk at every place, which outlive
//! their member.
//!
//! Their own random generator leaves a seed without stores the same run as before. Members with write-behind or
//! passivation are never all killed at once, because data would be lost by right, but may be shut down in
//! order.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use consort_grid::{
    CacheConfig, CapacityFactor, Container, Limit, MemoryBound, OperationError, PartitionHandling,
    StoreSettings, WhenFull,
};
use consort_group::Rng;
use consort_store::{Crash, Durability, FileStore, FileStoreConfig, SimDisk, Store};

use super::GridWorld;
use super::turns::Turn;
use crate::checks::Broken;
use crate::simulated_store::{Clocks, SimStore, StorageSettings, StoreFaults, restore_container};

pub(super) const SEED: u64 = 0x5354_4f52_4553_5354;

const TROUBLE: u64 = 0x5452_4f55_424c_4553;

const SPELL_MAX: Duration = Duration::from_millis(800);

/// Few, so that a run fills and compacts many files.
const FILE_BYTES: u32 = 4096;

const PAUSE: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    pub(crate) is_write_behind: bool,
    /// The store has only the entries for which memory has no room.
    pub(crate) passivation: bool,
    pub(crate) room: Option<u64>,
    preload: bool,
    /// Whether writes outlive a power failure, by which members end then.
    is_synced: bool,
    delay_max: Duration,
    pub(crate) ends: u64,
}

impl Kind {
    fn draw(rng: &mut Rng) -> Self {
        let is_write_behind = rng.chance(0.25);
        let room = rng.chance(0.6).then(|| rng.between(3, 40));
        let passivation = room.is_some() && rng.chance(0.3);
        Self {
            is_write_behind,
            passivation,
            room,
            preload: !passivation && rng.chance(0.5),
            is_synced: rng.chance(0.3),
            // The queue behind a slower disk would grow without end.
            delay_max: Duration::from_micros(rng.between(20, if is_write_behind { 1_000 } else { 5_000 })),
            ends: if rng.chance(0.6) { rng.between(1, 3) } else { 0 },
        }
    }

    pub(crate) fn outlives_kills(&self) -> bool {
        !self.is_write_behind && !self.passivation
    }

    fn crash(&self) -> Crash {
        if self.is_synced { Crash::PowerLoss } else { Crash::Kill }
    }
}

pub(crate) struct Stores {
    pub(crate) rng: Rng,
    pub(crate) kind: Kind,
    disks: BTreeMap<usize, SimDisk>,
    /// A capacity factor comes from a configuration, which a later life has as well.
    capacities: BTreeMap<usize, CapacityFactor>,
    faults: Option<StoreFaults>,
    pub(crate) refusals: u64,
    pub(crate) loads: u64,
    pub(crate) beginnings: u64,
    /// Members open the cache at once then, with their stored entries.
    pub(crate) is_beginning: bool,
    /// The refusal of a store, or of a member because of its store.
    refused: Option<String>,
}

impl Stores {
    pub(crate) fn draw(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ SEED);
        // This draw only keeps the order: whether there are stores is decided already.
        let _ = rng.chance(1.0);
        let kind = Kind::draw(&mut rng);
        Self {
            kind,
            rng,
            faults: draw_faults(seed, &kind),
            refusals: 0,
            disks: BTreeMap::new(),
            capacities: BTreeMap::new(),
            loads: 0,
            beginnings: 0,
            is_beginning: false,
            refused: None,
        }
    }

    pub(crate) fn describe(&self) -> String {
        let faults = self.faults.map(|faults| format!(", {faults:?}")).unwrap_or_default();
        format!(", stores: {:?}{faults}", self.kind)
    }

    /// `draw_from_stores` is the factor of its first life.
    pub(crate) fn capacity(&mut self, place: usize, draw_from_stores: CapacityFactor) -> CapacityFactor {
        *self.capacities.entry(place).or_insert(draw_from_stores)
    }

    fn open(&mut self, place: usize, config: &CacheConfig) -> Result<Arc<dyn Store>, String> {
        let seed = self.rng.next_u64();
        let disk = self.disks.entry(place).or_insert_with(|| SimDisk::new(seed));
        disk.restart(self.kind.crash());
        let config = FileStoreConfig {
            segments: config.segments,
            durability: if self.kind.is_synced { Durability::Disk } else { Durability::Process },
            file_bytes_max: FILE_BYTES,
            ..FileStoreConfig::default()
        };
        let store = FileStore::open_on(Arc::new(disk.clone()), config).map_err(|error| error.to_string())?;
        Ok(Arc::new(store))
    }

    pub(crate) fn refuse(&mut self, what: String) {
        self.refused.get_or_insert(what);
    }

    pub(crate) fn has_faults(&self) -> bool {
        self.faults.is_some() || self.refusals > 0
    }

    pub(crate) fn note(&mut self, error: &OperationError) {
        if self.has_faults() {
            return;
        }
        let is_stores = matches!(
            error,
            OperationError::StoreWriteFailed { .. }
                | OperationError::StoreUnavailable { .. }
                | OperationError::StoreReadFailed { .. }
        );
        if is_stores {
            self.refuse(error.to_string());
        }
    }

    pub(crate) fn check(&self) -> Result<(), Broken> {
        self.refused
            .as_ref()
            .map_or(Ok(()), |what| Err(("stores on good disks refuse nothing", what.clone())))
    }
}

/// Only write-through stores whose cluster does not end have faults: an entry that a store has not taken is
/// lost with the last owner that has it in memory.
fn draw_faults(seed: u64, kind: &Kind) -> Option<StoreFaults> {
    let mut rng = Rng::new(seed ^ TROUBLE);
    let is_drawn = rng.chance(0.6) && !kind.is_write_behind && kind.ends == 0;
    is_drawn.then(|| StoreFaults {
        begins: rng.between(1, 20) as f64 / 1_000.0,
        spell_max: rng.duration(Duration::from_millis(1), SPELL_MAX),
        refused: rng.between(10, 90) as f64 / 100.0,
        slowness: rng.between(1, 10) as u32,
    })
}

pub(crate) struct Opened {
    pub(crate) container: Arc<Container>,
    pub(crate) store: SimStore,
    pub(crate) backing: StoreSettings,
}

/// The store is as its predecessor at this place has left it, or, sometimes, emptied.
pub(super) fn open(world: &mut GridWorld, node: usize, hash_seed: u64) -> Option<Opened> {
    let clocks = clocks(world, node);
    let place = world.nodes[node].place;
    let name = world.nodes[node].name.clone();
    let grid = &mut world.app;
    let stores = grid.stores.as_mut()?;
    let is_new = !stores.disks.contains_key(&place);
    let is_purged = !is_new && !stores.is_beginning && stores.rng.chance(0.3);
    let kind = stores.kind;
    let storage = StorageSettings {
        bound: kind.room.map(|room| MemoryBound { limit: Limit::Entries(room), when_full: WhenFull::Remove }),
        passivation: kind.passivation,
        preload: kind.preload,
        is_shared: grid.config.mode.is_shared(),
        hash_seed,
    };
    let opened = stores.open(place, &grid.config).and_then(|store| {
        if is_purged {
            let purged = store.clear().and_then(|()| store.remember(&[]));
            purged.map_err(|error| error.to_string())?;
        }
        let (container, backing) =
            restore_container(&store, clocks, &storage).map_err(|error| error.to_string())?;
        Ok((store, container, backing))
    });
    let (store, container, backing) = match opened {
        Ok(opened) => opened,
        Err(why) => {
            stores.refuse(format!("{name}: {why}"));
            return None;
        }
    };
    let store = SimStore::new(store).with_delay(kind.delay_max);
    let store = if kind.is_write_behind { store.write_behind() } else { store };
    let store = match stores.faults {
        Some(faults) => store.with_faults(faults),
        None => store,
    };
    if !is_new {
        let what = match (&backing.remembered, is_purged) {
            (_, true) => "an emptied store".to_owned(),
            (None, false) => "a store that remembers nothing".to_owned(),
            (Some(note), false) => {
                let void = if note.is_void { ", void" } else { "" };
                format!("a store that remembers topology {}{void}", note.topology.id)
            }
        };
        world.note_story(format!("{name} has {what}"));
    }
    Some(Opened { container, store, backing })
}

/// All other members may wait for this member's store, so it does not wait until it sees a member with the cache.
pub(super) fn opens_alone(world: &mut GridWorld, node: usize) -> bool {
    let grid = &mut world.app;
    let remembers = grid.members[node].remembers();
    let Some(stores) = &mut grid.stores else { return false };
    // Partitions that go on without each other remember only themselves.
    let is_free = grid.config.partitions != PartitionHandling::AllowReadWrites;
    remembers && (stores.is_beginning || is_free && stores.rng.chance(0.5))
}

fn clocks(world: &GridWorld, node: usize) -> Clocks {
    Clocks { own: world.nodes[node].application_clock(world.now), world: world.now }
}

pub(super) fn take_requests(world: &mut GridWorld, node: usize) -> bool {
    let clocks = clocks(world, node);
    let grid = &mut world.app;
    let Some(stores) = &mut grid.stores else { return false };
    let member = &mut grid.members[node];
    let Some(store) = &mut member.store else { return false };
    let ready = store.take(&mut member.node, clocks, &mut stores.rng);
    ready.iter().for_each(|at| world.schedule(*at, Turn::Store(node)));
    !ready.is_empty()
}

pub(super) fn carry_out(world: &mut GridWorld, node: usize) {
    if world.nodes[node].is_paused {
        return world.schedule(world.now + PAUSE, Turn::Store(node));
    }
    let clocks = clocks(world, node);
    let grid = &mut world.app;
    let Some(stores) = &mut grid.stores else { return };
    let member = &mut grid.members[node];
    let Some(store) = &mut member.store else { return };
    let before = store.loads();
    store.carry_out(&mut member.node, clocks);
    stores.loads += store.loads() - before;
    world.note(&[world.now.0, node as u64]);
    world.work(node);
}

pub(super) fn heal(world: &mut GridWorld) {
    let grid = &mut world.app;
    let Some(stores) = &mut grid.stores else { return };
    stores.faults = None;
    for store in grid.members.iter_mut().filter_map(|member| member.store.as_mut()) {
        stores.refusals += store.refused();
        store.heal();
    }
}

pub(super) fn interrupt(world: &mut GridWorld, node: usize) {
    let place = world.nodes[node].place;
    let grid = &mut world.app;
    let Some(stores) = &mut grid.stores else { return };
    let Some(store) = grid.members[node].store.take() else { return };
    stores.refusals += store.refused();
    if let Some(disk) = stores.disks.get(&place).filter(|_| stores.rng.chance(0.5)) {
        disk.crash_after(stores.rng.below(4));
        store.interrupt(world.now);
    }
}

/// The member has closed its cache, or never had it.
pub(super) fn close(world: &mut GridWorld, node: usize) {
    take_requests(world, node);
    let grid = &mut world.app;
    let Some(stores) = &mut grid.stores else { return };
    let Some(store) = grid.members[node].store.take() else { return };
    stores.refusals += store.refused();
    if let Err(why) = store.close(world.now) {
        stores.refuse(format!("{}: {why}", world.nodes[node].name));
    }
}

/// It does not wait longer for unreachable members.
pub(super) fn end_alone(world: &mut GridWorld, node: usize) {
    world.note_story(format!("{} ends alone", world.nodes[node].name));
    close(world, node);
    let own = world.nodes[node].clock(world.now);
    world.app.members[node].is_left = true;
    if let Some(stack) = &mut world.nodes[node].stack {
        stack.handle_disconnect(own);
    }
    world.work(node);
}

/// Nodes of unoccupied places whose stores remember the cache.
pub(super) fn nodes_with_notes(world: &mut GridWorld) -> Vec<usize> {
    let ended: Vec<usize> = (0..world.nodes.len()).filter(|&node| world.may_restart(node)).collect();
    let grid = &mut world.app;
    let Some(stores) = &mut grid.stores else { return Vec::new() };
    let mut nodes = Vec::new();
    for node in ended {
        match stores.open(world.nodes[node].place, &grid.config) {
            Ok(store) if matches!(store.recall(), Ok(Some(_))) => nodes.push(node),
            Ok(_) => {}
            Err(why) => stores.refuse(format!("{}: {why}", world.nodes[node].name)),
        }
    }
    nodes
}
