//! One checker for each guarantee of the grid. All of them judge every run.
//!
//! | guarantee | checker |
//! |---|---|
//! | a value that is read was written; a read gives the last acknowledged write or a newer one | [`register`] |
//! | acknowledged writes of a key have one order, in one partition only, and each saw the one before it | [`writes`] |
//! | reads at the primary are linearizable | [`linear`] |
//! | compare-and-swap counts exactly | [`counters`] |
//! | owners agree once the cluster is quiet, so do their stores, and no other member has entries | [`agreement`] |
//! | working disks refuse nothing, and members come back with their stored entries | [`Stores::check`](super::Stores::check) |
//! | in invalidation mode, no member reads a replaced value | [`invalidation`] |
//! | iterations return each lasting entry as often as guaranteed, or fail | [`iterations`] |
//! | listeners receive each acknowledged change once, in order, and no other event | [`listeners`] |
//! | entries from before a clear are gone after it | [`clears`] |
//! | no operation returns an expired entry, and expired entries leave memory | [`expiry`] |
//! | all members find entries in use, and none finds idle ones | [`idle`] |
//! | lookups in indexes find the entries that a scan finds, at each owner at any time | [`indexes`] |
//! | operations end in time; finished state is forgotten | [`bounds`] |
//!
//! The first four do not hold if partitions have gone on without each other, which `AllowReadWrites` allows;
//! [`merges`] judges then.

pub(super) mod agreement;
pub(super) mod bounds;
mod clears;
mod contents;
mod counters;
pub(super) mod expiry;
mod idle;
pub(super) mod indexes;
pub(super) mod invalidation;
pub(super) mod iterations;
mod linear;
pub(super) mod listeners;
pub(super) mod merges;
mod register;
mod writes;

use std::collections::BTreeMap;

use bytes::Bytes;
use consort_grid::{CacheMode, Version};
use consort_group::Time;

use super::GridWorld;
use super::history::Operation;
use super::keys::Kind;
use crate::checks::Broken;

pub(super) fn during_faults(world: &GridWorld) -> Result<(), Broken> {
    bounds::load(world)?;
    indexes::check(world)
}

pub(super) fn all(world: &GridWorld) -> Result<(), Broken> {
    let grid = &world.app;
    crate::checks::proofs(&world.nodes)?;
    bounds::deadlines(world, &grid.history)?;
    grid.stores.iter().try_for_each(super::Stores::check)?;
    indexes::check_built(world)?;
    iterations::all(world)?;
    listeners::all(world)?;
    let mut by_key: BTreeMap<&Bytes, Vec<&Operation>> = BTreeMap::new();
    for operation in &grid.history {
        by_key.entry(&operation.key).or_default().push(operation);
    }
    let found = iterations::found(world);
    let has_parted = merges::has_parted(world);
    for (key, operations) in by_key {
        listeners::check(world, key, &operations)?;
        clears::check(world, key, &operations)?;
        if matches!(Kind::of(key), Kind::Mortal | Kind::Idle) {
            expiry::check(world, key, &operations)?;
        }
        if grid.config.mode == CacheMode::Invalidation {
            invalidation::check(world, key, &operations)?;
            continue;
        }
        if has_parted {
            merges::check(world, key, &operations)?;
            continue;
        }
        let of_key = OfKey::new(world, key, operations)?;
        writes::check(&of_key)?;
        register::check(&of_key)?;
        iterations::check(&of_key, found.get(key).map(Vec::as_slice).unwrap_or_default())?;
        if matches!(Kind::of(key), Kind::Atom | Kind::Counter | Kind::Private | Kind::Mortal | Kind::Idle) {
            linear::check(&of_key)?;
        }
        if Kind::of(key) == Kind::Idle {
            idle::check(&of_key)?;
        }
        if Kind::of(key) == Kind::Counter && !grid.workload.clears {
            counters::check(&of_key)?;
        }
    }
    Ok(())
}

impl Done<'_> {
    pub(super) fn may_be_absent(&self, by: Time) -> bool {
        self.is_removal && self.operation.is_none()
            || self.operation.is_some_and(|write| write.may_be_absent(by))
    }
}

#[derive(Clone, Copy)]
pub(super) struct Done<'a> {
    pub(super) operation: Option<&'a Operation>,
    pub(super) is_removal: bool,
}

pub(super) struct OfKey<'a> {
    pub(super) world: &'a GridWorld,
    pub(super) key: &'a Bytes,
    pub(super) operations: Vec<&'a Operation>,
    pub(super) done: BTreeMap<Version, Done<'a>>,
    pub(super) values: BTreeMap<Version, &'a Bytes>,
    acknowledged: Vec<(Time, Version)>,
}

impl<'a> OfKey<'a> {
    fn new(world: &'a GridWorld, key: &'a Bytes, operations: Vec<&'a Operation>) -> Result<Self, Broken> {
        let mut of_key = Self {
            world,
            key,
            operations,
            done: BTreeMap::new(),
            values: BTreeMap::new(),
            acknowledged: Vec::new(),
        };
        // The operations of a cache that a member began alone have versions of their own.
        let shared: Vec<&Operation> =
            of_key.operations.iter().filter(|operation| !operation.is_by_itself).copied().collect();
        for &operation in &shared {
            let Some((version, ended)) = operation.acknowledged() else { continue };
            of_key.acknowledged.push((ended, version));
            let done = Done { operation: Some(operation), is_removal: operation.is_removal() };
            if let Some(other) = of_key.done.insert(version, done) {
                let what = format!("two writes have one version: {}", of_key.describe(operation));
                let other = other.operation.map(|other| of_key.describe(other)).unwrap_or_default();
                return Err(("one order of writes", format!("{what}\n  {other}")));
            }
            if let Some(value) = operation.value() {
                of_key.values.insert(version, value);
            }
        }
        of_key.acknowledged.sort_unstable();
        let mut highest = Version::NONE;
        for (_, version) in &mut of_key.acknowledged {
            highest = highest.max(*version);
            *version = highest;
        }
        for &operation in &shared {
            of_key.see(operation)?;
        }
        if Kind::of(key) != Kind::Counter {
            of_key.done_once()?;
        }
        Ok(of_key)
    }

    /// Each has a unique value.
    fn done_once(&self) -> Result<(), Broken> {
        let mut versions: BTreeMap<&Bytes, Version> = BTreeMap::new();
        for (version, _) in self.done.iter().filter(|(_, done)| !done.is_removal) {
            let Some(value) = self.values.get(version) else { continue };
            if let Some(other) = versions.insert(value, *version) {
                let what =
                    format!("{value:?} has versions {other} and {version}: {}", self.tell_version(*version));
                return Err(("writes are done once", what));
            }
        }
        Ok(())
    }

    /// A version means one value to all members.
    fn see(&mut self, operation: &'a Operation) -> Result<(), Broken> {
        let read = operation.read().and_then(|(found, _)| found);
        let previous = operation.written().and_then(|(written, _)| written.previous.as_ref());
        for stored in read.into_iter().chain(previous) {
            let known = *self.values.entry(stored.version).or_insert(&stored.value);
            if *known != stored.value {
                let what = format!("{known:?} elsewhere, but {}", self.describe(operation));
                return Err(("one value of a version", what));
            }
            // A single owner's state may be undone: with its partition, or with a primary that crashes before it has backed
            // up.
            let is_certain = operation.acknowledged().is_some() || operation.is_primary_read();
            if !is_certain || operation.is_excused && operation.acknowledged().is_none() {
                continue;
            }
            let writer = self.operations.iter().copied().find(|write| {
                write.value() == Some(&stored.value) && write.acknowledged().is_none() && write.is_uncertain()
            });
            self.done.entry(stored.version).or_insert(Done { operation: writer, is_removal: false });
        }
        Ok(())
    }

    pub(super) fn acknowledged_before(&self, at: Time) -> Version {
        let count = self.acknowledged.partition_point(|(ended, _)| *ended < at);
        count.checked_sub(1).map_or(Version::NONE, |last| self.acknowledged[last].1)
    }

    /// Because of a removal without a known outcome, or the expiration of such a put.
    pub(super) fn may_be_absent(&self, by: Time) -> bool {
        self.operations.iter().any(|other| other.is_uncertain() && other.may_be_absent(by))
    }

    /// One without a known outcome, whose value no operation has seen.
    pub(super) fn may_be_put(&self, by: Time) -> bool {
        self.operations.iter().any(|other| other.is_uncertain() && !other.is_removal() && other.began <= by)
    }

    pub(super) fn describe(&self, operation: &Operation) -> String {
        describe(self.world, self.key, operation)
    }

    pub(super) fn tell_version(&self, version: Version) -> String {
        let writer = self.done.get(&version).and_then(|done| done.operation);
        writer.map_or_else(|| format!("version {version}"), |writer| self.describe(writer))
    }
}

fn describe(world: &GridWorld, key: &[u8], operation: &Operation) -> String {
    format!(
        "{} at {}: {:?} from {:?} to {:?}: {:?}{}",
        String::from_utf8_lossy(key),
        world.nodes[operation.node].name,
        operation.action,
        operation.began,
        operation.ended,
        operation.result,
        if operation.is_excused { " (removed)" } else { "" },
    )
}
