//! The history of a segment's writes that an owner has seen, so that partitions can later assign changes to their
//! origin.
//!
//! Under the topologies of one coordinator a segment's writes have one order. When members are lost or another
//! coordinator begins, another partition may go on from the same state. Then a new lineage of history ([`Line`])
//! begins, and every topology names the lineages behind it. An owner remembers for each lineage the newest version
//! that it has seen. It has not seen newer versions, or versions of a lineage that it does not know. After a merge, a
//! partition has seen the writes of both partitions.
//!
//! A version's topology id determines its lineage for an owner that has seen part of both lineages. Therefore
//! lineages that begin in different partitions begin with ids that are far apart ([`Line::first_id`]).

use std::collections::BTreeMap;

use bytes::Bytes;
use consort_group::Address;
use consort_hotrod::hash;

use crate::{Topology, Version};

/// Maximum number of remembered lineages. Beyond it the oldest are forgotten, and their versions are no longer
/// distinguished. A partition and the merge after it begin three. A lineage takes some 30 bytes for every segment, in
/// memory and in its state transfer.
pub(crate) const LINES_MAX: usize = 32;

/// Number of topology ids reserved for a lineage: a partition uses a handful before it is merged. Partitions that use
/// more may overlap with each other's ids. That matters only to a third partition that has split from one of them
/// meanwhile.
const LINE_IDS: u32 = 16;

/// Number of places in which a lineage may begin. With more places fewer lineages share one, and ids grow faster: by
/// half as many times [`LINE_IDS`] where a coordinator is lost. With one coordinator lost every hour the ids last for
/// two years, and then as many again as are left without a place.
const LINE_PLACES: u32 = 64;

/// Maximum number of removals remembered per segment while members are partitioned, in case the other partition
/// changes the same key: 100 kB with usual keys. Later removals lose against any entry of another partition.
const REMOVALS_MAX: usize = 1_024;

/// A lineage of a cache's history: the topologies that one coordinator makes until it loses members, or finds others
/// that have gone on without it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Line {
    /// The id of its first topology.
    pub id: u32,
    /// The coordinator.
    pub by: Address,
}

impl Line {
    /// Returns the id for the first topology of a lineage that `by` begins: greater than `last`, and different from
    /// the id that another member would use that goes on from there as well.
    pub(crate) fn first_id(topology: &Topology, last: u32, by: &Address) -> u32 {
        let next = last.saturating_add(1);
        let line = topology.lines.last().filter(|_| next < Version::TOPOLOGY_MAX / 2);
        let Some(line) = line else { return next };
        let bytes = |address: &Address| {
            let uuid = address.uuid().unwrap_or_default();
            [uuid.most.to_be_bytes(), uuid.least.to_be_bytes()].concat()
        };
        // Members of one topology that go on from it have different places, which change from lineage to lineage.
        let nth = topology.addresses().position(|member| member == by);
        let nth = nth.map_or_else(|| hash::hash(&bytes(by)) as u32, |nth| nth as u32);
        let turn = hash::hash(&[bytes(&line.by), line.id.to_be_bytes().to_vec()].concat()) as u32;
        next + LINE_IDS * (1 + nth.wrapping_add(turn) % LINE_PLACES)
    }
}

/// A write owner's history of a segment, for the merge of partitions.
#[derive(Clone, PartialEq, Default, Debug)]
pub(crate) struct Past {
    /// The newest version seen of each lineage: applied, or merged from a partition that had applied it.
    pub(crate) seen: BTreeMap<Line, Version>,
    /// The newest version seen of forgotten lineages.
    pub(crate) older: Version,
    /// Keys that were removed while members were partitioned.
    pub(crate) removals: BTreeMap<Bytes, Version>,
}

impl Past {
    /// Whether the owner has seen no write.
    pub(crate) fn is_blank(&self) -> bool {
        self.older.is_none() && self.seen.values().all(|seen| seen.is_none())
    }

    /// Restores the history after a restart, of which only the newest version is known. An owner with that version
    /// has seen all lineages before it.
    pub(crate) fn restore(&mut self, lines: &[Line], newest: Version) {
        let ends = lines.iter().skip(1).map(|next| Version(Version::new(next.id, 0).0.saturating_sub(1)));
        let ends = ends.chain([newest]);
        for (line, end) in lines.iter().zip(ends).filter(|(line, _)| line.id <= newest.topology()) {
            let seen = self.seen.entry(line.clone()).or_default();
            *seen = end.min(newest).max(*seen);
        }
        self.forget_oldest();
    }

    /// Adds the lineages of a topology that is installed.
    pub(crate) fn begin<'a>(&mut self, lines: impl Iterator<Item = &'a Line>) {
        for line in lines {
            self.seen.entry(line.clone()).or_default();
        }
        self.forget_oldest();
    }

    fn forget_oldest(&mut self) {
        while self.seen.len() > LINES_MAX {
            if let Some((_, seen)) = self.seen.pop_first() {
                self.older = seen.max(self.older);
            }
        }
    }

    /// Records that a version was applied.
    pub(crate) fn note(&mut self, version: Version) {
        let of_it = self.seen.iter_mut().rev().find(|(line, _)| line.id <= version.topology());
        let seen = of_it.map_or(&mut self.older, |(_, seen)| seen);
        *seen = version.max(*seen);
    }

    pub(crate) fn note_put(&mut self, key: &[u8], version: Version) {
        self.note(version);
        self.note_present(key, version);
    }

    /// Records that the key has an entry of this version, whichever primary has ordered it.
    pub(crate) fn note_present(&mut self, key: &[u8], version: Version) {
        if self.removals.get(key).is_some_and(|removed| *removed < version) {
            self.removals.remove(key);
        }
    }

    pub(crate) fn note_removal(&mut self, key: &[u8], version: Version) {
        self.note(version);
        self.note_absent(key, version);
    }

    /// Records that the key was removed with this version, whichever primary has ordered the removal.
    pub(crate) fn note_absent(&mut self, key: &[u8], version: Version) {
        if let Some(removed) = self.removals.get_mut(key) {
            *removed = version.max(*removed);
        } else if self.removals.len() < REMOVALS_MAX {
            self.removals.insert(Bytes::copy_from_slice(key), version);
        }
    }

    /// Adds the history of another owner of this partition, or of a partition that is merged.
    pub(crate) fn learn(&mut self, other: &Self) {
        self.older = other.older.max(self.older);
        for (line, theirs) in &other.seen {
            let seen = self.seen.entry(line.clone()).or_default();
            *seen = theirs.max(seen).to_owned();
        }
        self.forget_oldest();
        for (key, version) in &other.removals {
            self.note_absent(key, *version);
        }
    }

    /// Returns the seen versions, without the removals.
    pub(crate) fn seen_only(&self) -> Self {
        Self { removals: BTreeMap::new(), ..self.clone() }
    }

    /// Whether this owner has seen a version that an owner with the other history has.
    pub(crate) fn has_seen(&self, version: Version, theirs: &Self) -> bool {
        let is_forgotten =
            |line: &Line| self.seen.first_key_value().is_some_and(|(first, _)| line.id < first.id);
        let newest = match theirs.line_of(version) {
            Some(line) => match self.seen.get(line) {
                Some(seen) => *seen,
                None if is_forgotten(line) => self.older,
                None => Version::NONE,
            },
            // The other owner has forgotten the lineage of the version.
            None => self.line_of(version).map_or(self.older, |line| self.seen[line]),
        };
        version <= newest
    }

    /// Returns the last lineage that had begun when a version was ordered.
    fn line_of(&self, version: Version) -> Option<&Line> {
        self.seen.keys().rev().find(|line| line.id <= version.topology())
    }
}

#[cfg(test)]
mod tests {
    use consort_group::Uuid;

    use super::*;

    fn line(id: u32, by: u64) -> Line {
        Line { id, by: Address::Uuid(Uuid { most: 1, least: by }) }
    }

    fn past(seen: &[(Line, Version)]) -> Past {
        Past { seen: seen.iter().cloned().collect(), ..Past::default() }
    }

    #[test]
    fn history_answers_for_each_lineage() {
        let mut ours = past(&[(line(1, 1), Version::new(5, 4)), (line(6, 1), Version::new(6, 1))]);
        let mut theirs = past(&[(line(1, 1), Version::new(5, 3)), (line(40, 2), Version::new(41, 2))]);
        assert!(ours.has_seen(Version::new(5, 3), &theirs) && !theirs.has_seen(Version::new(5, 4), &ours));
        assert!(!ours.has_seen(Version::new(41, 1), &theirs) && !theirs.has_seen(Version::new(6, 1), &ours));
        ours.learn(&theirs);
        assert!(ours.has_seen(Version::new(41, 2), &theirs) && !ours.has_seen(Version::new(41, 3), &theirs));
        // An id may be of another lineage for owners that have split from this one before they have seen the lineage.
        theirs.note(Version::new(6, 1));
        assert!(!theirs.has_seen(Version::new(6, 1), &ours));
    }

    #[test]
    fn late_write_of_a_lineage_counts_for_that_lineage() {
        let mut past = past(&[(line(1, 1), Version::new(5, 4)), (line(6, 1), Version::NONE)]);
        let other = past.clone();
        past.note(Version::new(6, 1));
        past.note(Version::new(5, 9));
        assert!(past.has_seen(Version::new(5, 9), &other), "handed over by another owner of this side");
        assert!(past.has_seen(Version::new(6, 1), &other) && !past.has_seen(Version::new(6, 2), &other));
    }

    #[test]
    fn of_a_life_before_all_lines_up_to_the_newest_version_were_seen() {
        let lines = [line(1, 1), line(6, 1), line(40, 2), line(60, 1)];
        let mut restored = Past::default();
        restored.restore(&lines, Version::new(41, 7));
        restored.begin(lines.iter());
        let all = past(&lines.clone().map(|line| (line, Version::NONE)));
        for (version, is_seen) in
            [((5, 900), true), ((39, 1), true), ((41, 7), true), ((41, 8), false), ((60, 1), false)]
        {
            let version = Version::new(version.0, version.1);
            assert_eq!(restored.has_seen(version, &all), is_seen, "{version}");
        }
    }

    #[test]
    fn lines_that_are_forgotten_are_seen_as_one() {
        let mut ours = past(&[(line(1, 1), Version::new(1, 7))]);
        let theirs = ours.clone();
        assert!(!Past::default().has_seen(Version::new(1, 7), &theirs));
        for n in 1..=LINES_MAX as u32 {
            ours.begin([line(10 * n, 1)].iter());
            ours.note(Version::new(10 * n, 3));
        }
        assert_eq!((ours.seen.len(), ours.older), (LINES_MAX, Version::new(1, 7)));
        assert!(ours.has_seen(Version::new(1, 7), &theirs), "known to those who have not forgotten it");
        assert!(theirs.has_seen(Version::new(1, 7), &ours), "and of those who have");
        assert!(!ours.has_seen(Version::new(1, 8), &theirs));
    }

    #[test]
    fn a_put_after_a_removal_is_no_removal() {
        let mut past = Past::default();
        past.note_removal(b"k", Version::new(2, 1));
        past.note_put(b"k", Version::new(2, 2));
        assert!(past.removals.is_empty());
        for n in 0..2 * REMOVALS_MAX {
            past.note_removal(&n.to_be_bytes(), Version::new(2, 3));
        }
        assert_eq!(past.removals.len(), REMOVALS_MAX);
    }
}
