//! The history of a segment's writes that an owner has seen, by which partitions later assign changes to
//! their origin.
//!
//! When members are lost or another coordinator begins, another partition may go on from the same state. Then
//! a new [`Lineage`] begins, and every topology names the lineages behind it. An owner remembers the newest
//! version seen of each lineage; it has not seen newer ones or unknown lineages. After a merge, a partition
//! has seen both partitions' writes.
//!
//! A version's topology id determines its lineage for an owner that has seen part of both. Therefore lineages
//! of different partitions begin with ids far apart.

use std::collections::BTreeMap;

use bytes::Bytes;
use consort_group::Address;

use crate::Version;

/// Versions of older lineages are no longer distinguished. A partition and its merge begin three. A lineage
/// takes some 30 bytes for every segment, in memory and in its state transfer.
pub(crate) const LINEAGES_MAX: usize = 32;

/// Removals remembered per segment during a partition: 100 kB with usual keys. Later ones lose against any
/// entry of another partition.
const REMOVALS_MAX: usize = 1_024;

/// One coordinator's topologies until it loses members, or finds others that have gone on without it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Lineage {
    /// The first topology's id.
    pub id: u32,
    /// The coordinator.
    pub by: Address,
}

#[derive(Clone, PartialEq, Default, Debug)]
pub(crate) struct SegmentHistory {
    /// The newest version of each lineage that was applied, or merged from a partition.
    pub(crate) seen: BTreeMap<Lineage, Version>,
    /// Of forgotten lineages.
    pub(crate) older: Version,
    /// During a partition.
    pub(crate) removals: BTreeMap<Bytes, Version>,
}

impl SegmentHistory {
    pub(crate) fn is_empty(&self) -> bool {
        self.older.is_none() && self.seen.values().all(|seen| seen.is_none())
    }

    /// After a restart, an owner with the newest version has seen all lineages before it.
    pub(crate) fn restore(&mut self, lineages: &[Lineage], newest: Version) {
        let ends = lineages.iter().skip(1).map(|next| Version(Version::new(next.id, 0).0.saturating_sub(1)));
        let ends = ends.chain([newest]);
        for (lineage, end) in lineages.iter().zip(ends).filter(|(lineage, _)| lineage.id <= newest.topology())
        {
            let seen = self.seen.entry(lineage.clone()).or_default();
            *seen = end.min(newest).max(*seen);
        }
        self.forget_oldest();
    }

    pub(crate) fn begin<'a>(&mut self, lineages: impl Iterator<Item = &'a Lineage>) {
        for lineage in lineages {
            self.seen.entry(lineage.clone()).or_default();
        }
        self.forget_oldest();
    }

    fn forget_oldest(&mut self) {
        while self.seen.len() > LINEAGES_MAX {
            if let Some((_, seen)) = self.seen.pop_first() {
                self.older = seen.max(self.older);
            }
        }
    }

    pub(crate) fn note(&mut self, version: Version) {
        let of_it = self.seen.iter_mut().rev().find(|(lineage, _)| lineage.id <= version.topology());
        let seen = of_it.map_or(&mut self.older, |(_, seen)| seen);
        *seen = version.max(*seen);
    }

    pub(crate) fn note_put(&mut self, key: &[u8], version: Version) {
        self.note(version);
        self.note_present(key, version);
    }

    /// The key's version counts whichever primary has ordered it.
    pub(crate) fn note_present(&mut self, key: &[u8], version: Version) {
        if self.removals.get(key).is_some_and(|removed| *removed < version) {
            self.removals.remove(key);
        }
    }

    pub(crate) fn note_removal(&mut self, key: &[u8], version: Version) {
        self.note(version);
        self.note_absent(key, version);
    }

    pub(crate) fn note_absent(&mut self, key: &[u8], version: Version) {
        if let Some(removed) = self.removals.get_mut(key) {
            *removed = version.max(*removed);
        } else if self.removals.len() < REMOVALS_MAX {
            self.removals.insert(Bytes::copy_from_slice(key), version);
        }
    }

    /// The other owner is of this partition or a merged one.
    pub(crate) fn learn(&mut self, other: &Self) {
        self.older = other.older.max(self.older);
        for (lineage, theirs) in &other.seen {
            let seen = self.seen.entry(lineage.clone()).or_default();
            *seen = theirs.max(seen).to_owned();
        }
        self.forget_oldest();
        for (key, version) in &other.removals {
            self.note_absent(key, *version);
        }
    }

    pub(crate) fn seen_only(&self) -> Self {
        Self { removals: BTreeMap::new(), ..self.clone() }
    }

    /// Whether this owner has seen a version from an owner with the other history.
    pub(crate) fn has_seen(&self, version: Version, theirs: &Self) -> bool {
        let is_forgotten =
            |lineage: &Lineage| self.seen.first_key_value().is_some_and(|(first, _)| lineage.id < first.id);
        let newest = match theirs.lineage_of(version) {
            Some(lineage) => match self.seen.get(lineage) {
                Some(seen) => *seen,
                None if is_forgotten(lineage) => self.older,
                None => Version::NONE,
            },
            // The other owner has forgotten the lineage of the version.
            None => self.lineage_of(version).map_or(self.older, |lineage| self.seen[lineage]),
        };
        version <= newest
    }

    fn lineage_of(&self, version: Version) -> Option<&Lineage> {
        self.seen.keys().rev().find(|lineage| lineage.id <= version.topology())
    }
}

#[cfg(test)]
mod tests {
    use consort_group::Uuid;

    use super::*;

    fn lineage(id: u32, by: u64) -> Lineage {
        Lineage { id, by: Address::Uuid(Uuid { most: 1, least: by }) }
    }

    fn history(seen: &[(Lineage, Version)]) -> SegmentHistory {
        SegmentHistory { seen: seen.iter().cloned().collect(), ..SegmentHistory::default() }
    }

    #[test]
    fn history_answers_for_each_lineage() {
        let mut ours = history(&[(lineage(1, 1), Version::new(5, 4)), (lineage(6, 1), Version::new(6, 1))]);
        let mut theirs =
            history(&[(lineage(1, 1), Version::new(5, 3)), (lineage(40, 2), Version::new(41, 2))]);
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
        let mut history = history(&[(lineage(1, 1), Version::new(5, 4)), (lineage(6, 1), Version::NONE)]);
        let other = history.clone();
        history.note(Version::new(6, 1));
        history.note(Version::new(5, 9));
        assert!(history.has_seen(Version::new(5, 9), &other), "handed over by another owner of this side");
        assert!(
            history.has_seen(Version::new(6, 1), &other) && !history.has_seen(Version::new(6, 2), &other)
        );
    }

    #[test]
    fn restored_history_has_seen_all_lineages_up_to_the_newest_version() {
        let lineages = [lineage(1, 1), lineage(6, 1), lineage(40, 2), lineage(60, 1)];
        let mut restored = SegmentHistory::default();
        restored.restore(&lineages, Version::new(41, 7));
        restored.begin(lineages.iter());
        let all = history(&lineages.clone().map(|lineage| (lineage, Version::NONE)));
        for (version, is_seen) in
            [((5, 900), true), ((39, 1), true), ((41, 7), true), ((41, 8), false), ((60, 1), false)]
        {
            let version = Version::new(version.0, version.1);
            assert_eq!(restored.has_seen(version, &all), is_seen, "{version}");
        }
    }

    #[test]
    fn lines_that_are_forgotten_are_seen_as_one() {
        let mut ours = history(&[(lineage(1, 1), Version::new(1, 7))]);
        let theirs = ours.clone();
        assert!(!SegmentHistory::default().has_seen(Version::new(1, 7), &theirs));
        for n in 1..=LINEAGES_MAX as u32 {
            ours.begin([lineage(10 * n, 1)].iter());
            ours.note(Version::new(10 * n, 3));
        }
        assert_eq!((ours.seen.len(), ours.older), (LINEAGES_MAX, Version::new(1, 7)));
        assert!(ours.has_seen(Version::new(1, 7), &theirs), "known to those who have not forgotten it");
        assert!(theirs.has_seen(Version::new(1, 7), &ours), "and of those who have");
        assert!(!ours.has_seen(Version::new(1, 8), &theirs));
    }

    #[test]
    fn a_put_after_a_removal_is_no_removal() {
        let mut history = SegmentHistory::default();
        history.note_removal(b"k", Version::new(2, 1));
        history.note_put(b"k", Version::new(2, 2));
        assert!(history.removals.is_empty());
        for n in 0..2 * REMOVALS_MAX {
            history.note_removal(&n.to_be_bytes(), Version::new(2, 3));
        }
        assert_eq!(history.removals.len(), REMOVALS_MAX);
    }
}
