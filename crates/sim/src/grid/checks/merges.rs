//! Caches in which every partition goes on (`AllowReadWrites`).
//!
//! Partitions acknowledge writes to one key without knowing of each other, so there is no order of all
//! writes. Instead:
//!
//! * A value that is read was written, and after the merge all members have the same value
//!   ([`super::agreement`]).
//! * A value that an acknowledged write has seen and replaced does not come back; except if the write was
//!   under way when members parted or its caller learned of that: the caller may have sent it again, as a
//!   change of both partitions.
//! * A key with one writer, which knows its previous write each time, ends with its last value under any
//!   policy.
//! * A key that is never removed has a value, unless the policy removes.
//! * `PreferredAlways`: a write acknowledged in the preferred partition stands until that partition replaces
//!   it.
//! * `RemoveAll`: a key with acknowledged writes in both partitions is absent until its next write; unless
//!   the last writes of both have the same value, or one partition has seen and replaced the other's.
//!
//! Only the first rule is judged if the whole preferred partition was lost while it merged the other
//! partitions' entries, because those are given up then.
//!
//! The caller's topology history during a write tells in which partition the write was acknowledged.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use consort_grid::{MergePolicy, PartitionHandling, SplitPoint, Stored, Topology, Version};
use consort_group::Time;

use super::super::history::Operation;
use super::super::keys::Kind;
use super::super::{Grid, GridWorld};
use crate::checks::Broken;

pub(super) fn has_parted(world: &GridWorld) -> bool {
    let grid = &world.app;
    grid.config.partitions == PartitionHandling::AllowReadWrites && !grid.parted.is_empty()
}

/// With its version, and its caller's lineage during the whole write.
type Acknowledged<'a> = (&'a Operation, Version, &'a [SplitPoint]);

struct Merged<'a> {
    world: &'a GridWorld,
    key: &'a Bytes,
    operations: &'a [&'a Operation],
}

pub(super) fn check(world: &GridWorld, key: &Bytes, operations: &[&Operation]) -> Result<(), Broken> {
    let last = operations.iter().rev().find(|one| one.is_look() && one.read().is_some());
    let merged = Merged { world, key, operations };
    merged.is_written()?;
    if world.app.has_forsaken {
        return Ok(());
    }
    // The value that all members have in the end, if it was read.
    let Some((last, _)) = last.and_then(|read| read.read()) else { return Ok(()) };
    merged.nothing_comes_back(last)?;
    match Kind::of(key) {
        // A clear removes the key.
        Kind::Private if !world.app.workload.clears => {
            merged.one_writer(last)?;
        }
        // An expiration in one partition is no change by that partition.
        Kind::Mortal | Kind::Idle => return Ok(()),
        _ => {}
    }
    merged.policy(last)
}

impl Merged<'_> {
    fn is_written(&self) -> Result<(), Broken> {
        for read in self.operations {
            let Some((Some(stored), ended)) = read.read() else { continue };
            let mut writes = self.operations.iter();
            if !writes.any(|write| write.value() == Some(&stored.value) && write.began <= ended) {
                return Err(("a read value was written", self.describe(read)));
            }
        }
        Ok(())
    }

    fn nothing_comes_back(&self, last: Option<&Stored>) -> Result<(), Broken> {
        let is_judged = |last: &&Stored| !self.is_of_both(Some(*last)) && !self.is_chosen(last);
        let Some(last) = last.filter(is_judged) else { return Ok(()) };
        if Kind::of(self.key) == Kind::Counter {
            // Two clients may write one number.
            return Ok(());
        }
        match self.operations.iter().find(|write| replaced(write) == Some(&last.value)) {
            Some(write) => Err((
                "nothing replaced comes back",
                format!("{last:?} in the end, but {}", self.describe(write)),
            )),
            None => Ok(()),
        }
    }

    /// Whether the policy has chosen this value against a newer one: a change by the chosen partition, also
    /// if a third partition had replaced the value.
    fn is_chosen(&self, last: &Stored) -> bool {
        let policy = &self.world.app.config.merge;
        if !matches!(policy, MergePolicy::PreferredNonNull | MergePolicy::Custom(_)) {
            return false;
        }
        let acknowledged = || {
            let of_line =
                |write: &&'_ Operation| Some((write.acknowledged()?.0, write.split_points.clone()?));
            self.operations.iter().filter_map(move |write| Some((write, of_line(write)?)))
        };
        acknowledged().filter(|(write, _)| write.value() == Some(&last.value)).any(|(_, (version, line))| {
            let is_rival = |other: Version| version < other && other.topology() < last.version.topology();
            version != last.version
                && acknowledged().any(|(_, (other, others))| is_rival(other) && line.last() != others.last())
        })
    }

    /// The key has one writing client, and none removes it.
    fn one_writer(&self, last: Option<&Stored>) -> Result<(), Broken> {
        let mut standing: Option<&Operation> = None;
        let mut uncertain: Vec<&Bytes> = Vec::new();
        let mut is_unbroken = !self.operations.iter().any(|one| self.spans_a_parting(one));
        for write in self.operations {
            if write.is_uncertain() {
                uncertain.extend(write.value());
            }
            let Some((written, _)) = write.acknowledged().and(write.written()) else { continue };
            let saw = written.previous.as_ref().map(|previous| &previous.value);
            let is_known = saw == standing.and_then(Operation::value);
            is_unbroken &= is_known || saw.is_some_and(|value| uncertain.contains(&value));
            standing = Some(write);
        }
        let Some(standing) = standing else { return Ok(()) };
        let is_lasting = last.map(|last| &last.value) == standing.value();
        if is_lasting || last.is_some_and(|last| uncertain.contains(&&last.value)) {
            return Ok(());
        }
        let removes = self.world.app.config.merge == MergePolicy::RemoveAll;
        // An uncertain write may have been done in another partition.
        if is_unbroken && (uncertain.is_empty() || last.is_some()) || last.is_none() && !removes {
            let what = format!("{last:?} in the end, but {}", self.describe(standing));
            return Err(("a write of one partition is merged", what));
        }
        Ok(())
    }

    fn policy(&self, last: Option<&Stored>) -> Result<(), Broken> {
        let grid = &self.world.app;
        let Some(end) = grid.newest.first().filter(|_| self.is_certain() && !self.is_of_both(last)) else {
            return Ok(());
        };
        let is_last = |write: &Operation| match last {
            Some(last) => write.value() == Some(&last.value),
            None => write.is_removal(),
        };
        // If the caller left the cache or changed its partition before its write was acknowledged, the write's partition is
        // unknown.
        let is_of_any_side = |write: &&Operation| write.split_points.is_none() && is_last(write);
        if self.operations.iter().any(|write| write.acknowledged().is_some() && is_of_any_side(write)) {
            return Ok(());
        }
        let acknowledged: Vec<Acknowledged<'_>> = (self.operations.iter())
            .filter_map(|write| Some((*write, write.acknowledged()?.0, write.split_points.as_deref()?)))
            .collect();
        let of_line = acknowledged.iter().filter(|(_, _, line)| is_line_of(end, line));
        let Some(&(write, version, line)) = of_line.max_by_key(|(_, version, _)| *version) else {
            return Ok(());
        };
        let is_it = is_last(write);
        // A write that is older than the parting may have been known to the other partition, which then changed it.
        let is_of_the_last = write.split_points.as_deref() == Some(&*end.split_points)
            && end.split_points.last().is_some_and(|last| version.topology() >= last.id);
        match grid.config.merge {
            MergePolicy::PreferredAlways if !is_it && is_of_the_last => {
                let what = format!("{last:?} in the end, but {}", self.describe(write));
                Err(("the preferred side's writes stand", what))
            }
            MergePolicy::RemoveAll => match last {
                Some(last) => self.remove_all(grid, end, &acknowledged, (write, version, line), last),
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }

    /// The last write on the final topology's lineage, against the last writes of other partitions since they parted.
    fn remove_all(
        &self,
        grid: &Grid,
        end: &Topology,
        acknowledged: &[Acknowledged<'_>],
        (write, version, line): Acknowledged<'_>,
        last: &Stored,
    ) -> Result<(), Broken> {
        // The last write of each other partition: partitions that have come to the same value agree.
        let mut lasts: BTreeMap<&SplitPoint, Acknowledged<'_>> = BTreeMap::new();
        // Whether a partition that parted once more has seen and replaced the write.
        let is_left_behind = |line: &[SplitPoint]| {
            let has_parted = |other: &[SplitPoint]| {
                other.len() > line.len() && line.last().is_some_and(|last| other.contains(last))
            };
            acknowledged.iter().any(|(.., other)| has_parted(other) && !is_line_of(end, other))
        };
        if is_left_behind(line) {
            return Ok(());
        }
        // The merges that moved members, which had the write of this lineage by then, to another partition.
        let taken = |line: &[SplitPoint], version: Version| {
            let all = line.last().and_then(|last| grid.sides.get(last)).into_iter().flatten();
            all.filter(move |one| version.topology() < one.until)
        };
        // Members of this partition had moved, and the key was written afterwards: the conflict was resolved there.
        let is_after = |(_, theirs, other): &&Acknowledged<'_>| {
            taken(line, version).any(|one| one.since <= theirs.topology() && other.contains(&one.by))
        };
        let decided: BTreeSet<Option<&SplitPoint>> =
            acknowledged.iter().filter(is_after).map(|(.., other)| other.last()).collect();
        for &(other, theirs, its) in acknowledged {
            let Some(parting) = its.last().filter(|_| !is_line_of(end, its)) else { continue };
            // The value that its partition has gone on with counts, and not an earlier one.
            if is_left_behind(its) || self.has_replaced(its, write) || decided.contains(&its.last()) {
                continue;
            }
            let side = taken(its, theirs).map(|one| one.since).min();
            let parted = end.split_points.iter().find(|parting| !its.contains(parting));
            let left = its.iter().find(|parting| !end.split_points.contains(parting));
            // Both were written after the partitions had parted, and this partition's write before the other partition was
            // merged.
            let is_meanwhile = side.is_some_and(|since| version.topology() < since)
                && parted.is_some_and(|parting| version.topology() >= parting.id)
                && left.is_some_and(|parting| theirs.topology() >= parting.id);
            if is_meanwhile && lasts.get(parting).is_none_or(|(_, last, _)| *last < theirs) {
                lasts.insert(parting, (other, theirs, its));
            }
        }
        // A partition that merged with a third one first had another last value, if the key was written afterwards. If two
        // partitions have both removed the key and merged first, one removal is remembered.
        let is_past = |(other, theirs, its): &Acknowledged<'_>| {
            taken(its, *theirs).any(|one| {
                let is_later = |(_, later, line): &Acknowledged<'_>| {
                    one.since <= later.topology() && line.contains(&one.by)
                };
                acknowledged.iter().any(is_later) || other.is_removal() && !end.split_points.contains(&one.by)
            })
        };
        let mut rivals = lasts.values().filter(|rival| !is_past(rival));
        match rivals.find(|(other, ..)| other.value() != write.value()) {
            Some((other, ..)) => {
                let (this, other) = (self.describe(write), self.describe(other));
                let what = format!("{last:?} in the end, but {this}\n  and {other}");
                Err(("writes of both partitions are removed", what))
            }
            None => Ok(()),
        }
    }

    /// A member that had the write has moved to that partition.
    fn has_replaced(&self, line: &[SplitPoint], write: &Operation) -> bool {
        self.operations.iter().any(|other| {
            let of = other.split_points.as_ref().and_then(|of| of.last());
            of.is_some() && of == line.last() && write.value().is_some() && replaced(other) == write.value()
        })
    }

    fn is_of_both(&self, last: Option<&Stored>) -> bool {
        let mut writes = self.operations.iter();
        last.is_some_and(|last| {
            writes.any(|write| write.value() == Some(&last.value) && self.spans_a_parting(write))
        })
    }

    fn spans_a_parting(&self, operation: &Operation) -> bool {
        let mut parted = self.world.app.parted.values();
        // A write may go on after its caller has stopped waiting.
        let ended = operation.ended.filter(|_| !operation.is_uncertain());
        let is_within = |at: &Time| *at >= operation.began && ended.is_none_or(|ended| *at <= ended);
        operation.write().is_some() && (operation.split_points.is_none() || parted.any(is_within))
    }

    fn is_certain(&self) -> bool {
        !self.operations.iter().any(|one| one.is_uncertain())
    }

    fn describe(&self, operation: &Operation) -> String {
        let line = operation.split_points.iter().flat_map(|line| line.iter().map(|parting| parting.id));
        let line: Vec<_> = line.collect();
        format!("{}, parted {line:?}", super::describe(self.world, self.key, operation))
    }
}

fn replaced(write: &Operation) -> Option<&Bytes> {
    let (written, _) = write.acknowledged().and(write.written())?;
    written.previous.as_ref().map(|previous| &previous.value)
}

fn is_line_of(topology: &Topology, line: &[SplitPoint]) -> bool {
    line.last().is_some_and(|last| topology.split_points.contains(last))
}

/// A merge moved members from one lineage to another partition.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Taken {
    pub(crate) since: u32,
    /// The last parting of the partition that has merged them.
    pub(crate) by: SplitPoint,
    /// The topology with which they had left the lineage before.
    pub(crate) until: u32,
}

pub(crate) type Sides = BTreeMap<SplitPoint, Vec<Taken>>;

pub(crate) fn note_sides(sides: &mut Sides, topology: &Topology) {
    let Some(by) = topology.split_points.last() else { return };
    for side in topology.merging.iter() {
        let ends = side.split_points.iter().skip(1).map(|next| next.id).chain([u32::MAX]);
        for (parting, until) in side.split_points.iter().zip(ends) {
            let taken = Taken { since: side.since, by: by.clone(), until };
            let all = sides.entry(parting.clone()).or_default();
            if !all.contains(&taken) {
                all.push(taken);
            }
        }
    }
}
