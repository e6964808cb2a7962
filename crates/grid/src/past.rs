//! What an owner has seen of a segment's writes, so that sides of a partition can tell later whose changes are whose.
//!
//! Under the topologies of one coordinator a segment's writes have one order. Where members are lost or another coordinator
//! begins, somebody may go on with what was before: a new [`Line`] of history begins, and every topology names the lines
//! behind it. An owner remembers of each line how far it has come. What is newer, or of a line that it does not know, it has
//! not seen. A side that merges another has seen from then on what either had.
//!
//! Which line a version is of is told by its topology, for whoever has seen something of both: so lines that begin apart
//! begin with numbers that are apart ([`Line::first_id`]).

use std::collections::BTreeMap;

use bytes::Bytes;
use consort_group::Address;
use consort_hotrod::hash;

use crate::{Topology, Version};

/// Lines that are remembered; of more the oldest are forgotten, and what is of them is told apart no more. A partition and the
/// merge after it begin three. A line takes some thirty bytes for every segment, in memory and when that moves.
pub(crate) const LINES_MAX: usize = 32;

/// Numbers of topologies that a line has to itself: sides use a handful each before they are merged. Those that use more may
/// count through each other's, which matters only to a third side that has parted from one of them meanwhile.
const LINE_IDS: u32 = 16;

/// Places in which a line may begin. With more of them fewer lines begin in one place, and numbers grow faster: by half as
/// many times [`LINE_IDS`] where a coordinator is lost. With one lost every hour they last for two years, and then as many
/// again as are left without a place.
const LINE_PLACES: u32 = 64;

/// Removals that are remembered per segment while somebody is parted, in case that the other side changes the same key: a
/// hundred kilobytes with usual keys. Later ones lose against whatever another side has.
const REMOVALS_MAX: usize = 1_024;

/// A line of a cache's history: the topologies that one coordinator makes until it loses members, or finds others that have
/// gone on without it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Line {
    /// The id of its first topology.
    pub id: u32,
    /// The coordinator.
    pub by: Address,
}

impl Line {
    /// The id for the first topology of a line that `by` begins: beyond `last`, and not what another member would take that
    /// goes on from there as well.
    pub(crate) fn first_id(topology: &Topology, last: u32, by: &Address) -> u32 {
        let next = last.saturating_add(1);
        let line = topology.lines.last().filter(|_| next < Version::TOPOLOGY_MAX / 2);
        let Some(line) = line else { return next };
        let bytes = |address: &Address| {
            let uuid = address.uuid().unwrap_or_default();
            [uuid.most.to_be_bytes(), uuid.least.to_be_bytes()].concat()
        };
        // Members of one topology that go on from it have places of their own, which differ from line to line.
        let nth = topology.addresses().position(|member| member == by);
        let nth = nth.map_or_else(|| hash::hash(&bytes(by)) as u32, |nth| nth as u32);
        let turn = hash::hash(&[bytes(&line.by), line.id.to_be_bytes().to_vec()].concat()) as u32;
        next + LINE_IDS * (1 + nth.wrapping_add(turn) % LINE_PLACES)
    }
}

/// What a write owner remembers of a segment for the case that sides that have parted come together again.
#[derive(Clone, PartialEq, Default, Debug)]
pub(crate) struct Past {
    /// The newest version of each line that was seen: applied, or merged with a side that had.
    pub(crate) seen: BTreeMap<Line, Version>,
    /// The newest that was seen of lines that are forgotten.
    pub(crate) older: Version,
    /// Keys that were removed while somebody was parted.
    pub(crate) removals: BTreeMap<Bytes, Version>,
}

impl Past {
    /// Whether it has seen nothing.
    pub(crate) fn is_blank(&self) -> bool {
        self.older.is_none() && self.seen.values().all(|seen| seen.is_none())
    }

    /// Of a life before, only the newest version is known. Whoever had that has seen all of the lines behind it.
    pub(crate) fn restore(&mut self, lines: &[Line], newest: Version) {
        let ends = lines.iter().skip(1).map(|next| Version(Version::new(next.id, 0).0.saturating_sub(1)));
        let ends = ends.chain([newest]);
        for (line, end) in lines.iter().zip(ends).filter(|(line, _)| line.id <= newest.topology()) {
            let seen = self.seen.entry(line.clone()).or_default();
            *seen = end.min(newest).max(*seen);
        }
        self.forget_oldest();
    }

    /// A topology is installed: lines have begun.
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

    /// A version was applied.
    pub(crate) fn note(&mut self, version: Version) {
        let of_it = self.seen.iter_mut().rev().find(|(line, _)| line.id <= version.topology());
        let seen = of_it.map_or(&mut self.older, |(_, seen)| seen);
        *seen = version.max(*seen);
    }

    pub(crate) fn note_put(&mut self, key: &[u8], version: Version) {
        self.note(version);
        self.note_present(key, version);
    }

    /// The key has an entry of this version, whoever has ordered it.
    pub(crate) fn note_present(&mut self, key: &[u8], version: Version) {
        if self.removals.get(key).is_some_and(|removed| *removed < version) {
            self.removals.remove(key);
        }
    }

    pub(crate) fn note_removal(&mut self, key: &[u8], version: Version) {
        self.note(version);
        self.note_absent(key, version);
    }

    /// The key was removed with this version, whoever has ordered that.
    pub(crate) fn note_absent(&mut self, key: &[u8], version: Version) {
        if let Some(removed) = self.removals.get_mut(key) {
            *removed = version.max(*removed);
        } else if self.removals.len() < REMOVALS_MAX {
            self.removals.insert(Bytes::copy_from_slice(key), version);
        }
    }

    /// What another owner of the same side remembers, or what a side that is merged had seen.
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

    /// What was seen, without what was removed.
    pub(crate) fn seen_only(&self) -> Self {
        Self { removals: BTreeMap::new(), ..self.clone() }
    }

    /// Whether a version was seen here that somebody has who remembers this.
    pub(crate) fn has_seen(&self, version: Version, theirs: &Self) -> bool {
        let is_forgotten =
            |line: &Line| self.seen.first_key_value().is_some_and(|(first, _)| line.id < first.id);
        let newest = match theirs.line_of(version) {
            Some(line) => match self.seen.get(line) {
                Some(seen) => *seen,
                None if is_forgotten(line) => self.older,
                None => Version::NONE,
            },
            // They have forgotten which line it was.
            None => self.line_of(version).map_or(self.older, |line| self.seen[line]),
        };
        version <= newest
    }

    /// The last line that had begun when a version was ordered.
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
    fn what_was_seen_is_told_for_each_line() {
        let mut ours = past(&[(line(1, 1), Version::new(5, 4)), (line(6, 1), Version::new(6, 1))]);
        let mut theirs = past(&[(line(1, 1), Version::new(5, 3)), (line(40, 2), Version::new(41, 2))]);
        assert!(ours.has_seen(Version::new(5, 3), &theirs) && !theirs.has_seen(Version::new(5, 4), &ours));
        assert!(!ours.has_seen(Version::new(41, 1), &theirs) && !theirs.has_seen(Version::new(6, 1), &ours));
        ours.learn(&theirs);
        assert!(ours.has_seen(Version::new(41, 2), &theirs) && !ours.has_seen(Version::new(41, 3), &theirs));
        // A number may be on another line for others, who have parted from this one before they have seen that.
        theirs.note(Version::new(6, 1));
        assert!(!theirs.has_seen(Version::new(6, 1), &ours));
    }

    #[test]
    fn what_comes_late_of_a_line_counts_for_that_line() {
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
