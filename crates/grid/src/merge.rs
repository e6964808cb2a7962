//! The merge of a key when partitions reunite that have all accepted writes
//! ([`PartitionHandling::AllowReadWrites`](crate::PartitionHandling::AllowReadWrites)).
//!
//! A change that only one partition made since the split stands. If several changed a key to different
//! values, the [`MergePolicy`] decides. By its history ([`crate::history`]), a write unseen by another
//! partition is a change to it; one that it has seen and no longer has was replaced there.

use std::sync::Arc;

use bytes::Bytes;

use crate::catch_panic::{Panicked, catch_panic};
use crate::config::MergePolicy;
use crate::operation::Stored;
use crate::{Lifetime, Segment, Version};

/// Partitions of older split points are no longer distinguished.
pub(crate) const SPLIT_POINTS_MAX: usize = 16;

/// A custom merge policy. Its arguments are the key, the preferred partition's entry, and those of the other
/// partitions with changes; `None` is a removal. It returns the merged entry. It is called once per key, on
/// the segment's primary, and must not use the cache. If it panics, the preferred partition's entry stands.
pub type MergeFn =
    dyn Fn(&[u8], Option<&Stored>, &[Option<&Stored>]) -> Option<(Bytes, Lifetime)> + Send + Sync;

#[derive(Clone, PartialEq, Debug)]
pub(crate) enum KeyState {
    Entry(Stored),
    Removed(Version),
    /// No record of the key.
    Nothing,
}

impl KeyState {
    pub(crate) fn version(&self) -> Version {
        match self {
            Self::Entry(stored) => stored.version,
            Self::Removed(version) => *version,
            Self::Nothing => Version::NONE,
        }
    }

    fn entry(&self) -> Option<&Stored> {
        match self {
            Self::Entry(stored) => Some(stored),
            _ => None,
        }
    }

    fn is_made_of(&self, made: Option<&(Bytes, Lifetime)>) -> bool {
        let own = self.entry().map(|stored| (&stored.value, left_of(stored)));
        own == made.map(|(value, lifetime)| (value, *lifetime))
    }

    fn is_same(&self, other: &Self) -> bool {
        self.entry().map(|stored| &stored.value) == other.entry().map(|stored| &stored.value)
    }
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Resolution {
    /// The first partition's state stays.
    Stays,
    Copy(usize),
    Put(Bytes, Lifetime),
    /// The removal is a change also for partitions without a record of the key.
    Remove,
}

/// `standings` has the preferred state first; `has_seen(a, b)`: partition `a` has seen the state of `b`.
pub(crate) fn decide(
    key: &[u8],
    standings: &[&KeyState],
    has_seen: impl Fn(usize, usize) -> bool,
    policy: &MergePolicy,
    custom: Option<&MergeFn>,
) -> Resolution {
    let is_changed =
        |side: usize, other: usize| !matches!(standings[side], KeyState::Nothing) && !has_seen(other, side);
    // Two partitions that have each seen and replaced the other's state have merged other partitions meanwhile, with
    // different results. The policy decides these, too. Where the policy does not choose among values, the newer one
    // stands.
    let chooses = *policy != MergePolicy::RemoveAll;
    let is_entry = |side: usize| standings[side].entry().is_some();
    // A state that another partition has seen and then changed is replaced.
    let is_over = |side: usize| {
        (0..standings.len()).any(|other| {
            let (theirs, ours) = (is_changed(other, side), is_changed(side, other));
            let are_chosen = chooses && is_entry(side) && is_entry(other);
            let is_older = || standings[other].version() > standings[side].version();
            !ours && (theirs || !are_chosen && is_older())
        })
    };
    let mut left: Vec<usize> = Vec::new();
    for side in (0..standings.len()).filter(|&side| !is_over(side)) {
        match left.iter_mut().find(|other| standings[**other].is_same(standings[side])) {
            // Of the partitions with equal states, the one with the newest version is not behind the others.
            Some(other) if *other > 0 && standings[side].version() > standings[*other].version() => {
                *other = side;
            }
            Some(_) => {}
            None => left.push(side),
        }
    }
    // With a new version the state would count as a change when further partitions return later, which may have seen
    // and replaced it.
    let takes = |side: usize| match (standings[side], standings[0]) {
        // The same value, put again in another partition, is not the one that others have replaced.
        (KeyState::Entry(one), own) if one.version > own.version() => Resolution::Copy(side),
        (one, own) if one.is_same(own) => Resolution::Stays,
        (one, own) if one.version() > own.version() => Resolution::Copy(side),
        (KeyState::Entry(stored), _) => Resolution::Put(stored.value.clone(), left_of(stored)),
        _ => Resolution::Remove,
    };
    let Some((&first, others)) = left.split_first() else { return Resolution::Stays };
    if others.is_empty() {
        return takes(first);
    }
    let entries = || left.iter().filter(|&&side| standings[side].entry().is_some());
    match policy {
        MergePolicy::PreferredAlways => takes(first),
        MergePolicy::PreferredNonNull => takes(entries().next().copied().unwrap_or(first)),
        MergePolicy::RemoveAll => Resolution::Remove,
        MergePolicy::Custom(_) => {
            let others: Vec<Option<&Stored>> = others.iter().map(|&side| standings[side].entry()).collect();
            let Some(custom) = custom else { return takes(first) };
            match catch_panic(|| custom(key, standings[first].entry(), &others)) {
                Ok(made) => match left.iter().find(|&&side| standings[side].is_made_of(made.as_ref())) {
                    Some(&side) => takes(side),
                    None => {
                        made.map_or(Resolution::Remove, |(value, lifetime)| Resolution::Put(value, lifetime))
                    }
                },
                Err(Panicked) => takes(first),
            }
        }
    }
}

fn left_of(stored: &Stored) -> Lifetime {
    let lifespan = stored.lifetime.lifespan.map(|lifespan| lifespan.saturating_sub(stored.age));
    Lifetime { lifespan, ..stored.lifetime }
}

/// The topology that added a partition, and the partition's number in it.
pub(crate) type SideId = (u32, u32);

/// A partition whose entries are to be merged.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PartitionSide {
    /// The topology that added it.
    pub since: u32,
    /// Its number in that topology.
    pub nth: u32,
    /// The read owners in the view; for a segment without any, its write owners.
    pub owners: crate::ConsistentHash,
    /// The splits from other partitions.
    pub split_points: Arc<[SplitPoint]>,
}

impl PartitionSide {
    pub(crate) fn id(&self) -> SideId {
        (self.since, self.nth)
    }

    pub(crate) fn givers(&self, segment: Segment) -> impl Iterator<Item = &consort_group::Address> {
        self.owners.owners(segment)
    }
}

/// A topology that continues without members that may continue, too, or a cache's first one.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct SplitPoint {
    /// The topology's id.
    pub id: u32,
    /// Its coordinator: another partition may have the same id.
    pub by: consort_group::Address,
}

/// The id at which the first history leaves the common part.
pub(crate) fn parted_from(own: &[SplitPoint], other: &[SplitPoint]) -> Option<u32> {
    own.iter().find(|split_point| !other.contains(split_point)).map(|split_point| split_point.id)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn stored(value: &'static str, topology: u32, count: u64) -> KeyState {
        KeyState::Entry(Stored {
            value: Bytes::from_static(value.as_bytes()),
            version: Version::new(topology, count),
            lifetime: Lifetime::FOREVER,
            age: Duration::ZERO,
            idle: Duration::ZERO,
        })
    }

    fn put(value: &'static str) -> Resolution {
        Resolution::Put(Bytes::from_static(value.as_bytes()), Lifetime::FOREVER)
    }

    /// The preferred partition had seen all up to 5.7, the other all up to 5.4.
    fn decided(preferred: &KeyState, other: &KeyState, policy: &MergePolicy) -> Resolution {
        let sides = [preferred, other];
        let has_seen = |side: usize, other: usize| sides[other].version() <= Version::new(5, [7, 4][side]);
        decide(b"k", &sides, has_seen, policy, None)
    }

    const ALL: [MergePolicy; 3] =
        [MergePolicy::PreferredAlways, MergePolicy::PreferredNonNull, MergePolicy::RemoveAll];

    #[test]
    fn change_of_one_partition_wins_with_every_merge_policy() {
        let (old, new) = (stored("old", 5, 3), stored("new", 6, 1));
        let removed = KeyState::Removed(Version::new(6, 1));
        for policy in &ALL {
            assert_eq!(decided(&old, &new, policy), Resolution::Copy(1), "the other side has written");
            assert_eq!(decided(&new, &old, policy), Resolution::Stays, "the preferred side has written");
            assert_eq!(decided(&old, &removed, policy), Resolution::Copy(1), "the other side has removed");
            assert_eq!(decided(&removed, &old, policy), Resolution::Stays, "the preferred side has removed");
            assert_eq!(decided(&KeyState::Nothing, &new, policy), Resolution::Copy(1), "a new key");
            assert_eq!(decided(&KeyState::Nothing, &removed, policy), Resolution::Stays, "it was never here");
            assert_eq!(decided(&new, &KeyState::Nothing, policy), Resolution::Stays, "a new key here");
        }
    }

    #[test]
    fn write_in_flight_at_a_split_is_a_change_of_the_partition_that_has_it() {
        let (before, under_way, new) =
            (stored("before", 5, 3), stored("under way", 5, 6), stored("new", 6, 1));
        for policy in &ALL {
            assert_eq!(decided(&under_way, &before, policy), Resolution::Stays);
        }
        assert_eq!(decided(&under_way, &new, &MergePolicy::PreferredAlways), Resolution::Stays);
        assert_eq!(decided(&under_way, &new, &MergePolicy::RemoveAll), Resolution::Remove);
    }

    #[test]
    fn the_policy_decides_where_both_have_changed() {
        let (a, b) = (stored("a", 6, 2), stored("b", 6, 1));
        assert_eq!(decided(&a, &b, &MergePolicy::PreferredAlways), Resolution::Stays);
        assert_eq!(decided(&a, &b, &MergePolicy::PreferredNonNull), Resolution::Stays);
        assert_eq!(decided(&a, &b, &MergePolicy::RemoveAll), Resolution::Remove);
        let removed = KeyState::Removed(Version::new(6, 3));
        assert_eq!(decided(&removed, &b, &MergePolicy::PreferredAlways), Resolution::Stays);
        assert_eq!(decided(&removed, &b, &MergePolicy::PreferredNonNull), put("b"));
        assert_eq!(
            decided(&removed, &b, &MergePolicy::RemoveAll),
            Resolution::Remove,
            "which no side knows yet"
        );
        assert_eq!(decided(&a, &removed, &MergePolicy::RemoveAll), Resolution::Remove);
    }

    #[test]
    fn entries_with_different_results_of_earlier_merges_are_left_to_the_policy() {
        let (older, newer) = (stored("older", 5, 3), stored("newer", 6, 1));
        let removed = KeyState::Removed(Version::new(7, 1));
        let decided = |sides: [&KeyState; 2], policy| decide(b"k", &sides, |_, _| true, policy, None);
        for policy in &ALL {
            let is_newest = *policy == MergePolicy::RemoveAll;
            let wanted = if is_newest { Resolution::Copy(1) } else { Resolution::Stays };
            assert_eq!(decided([&older, &newer], policy), wanted, "{policy:?}");
            assert_eq!(decided([&newer, &older], policy), Resolution::Stays, "{policy:?}");
            assert_eq!(decided([&newer, &removed], policy), Resolution::Copy(1), "{policy:?}");
        }
    }

    #[test]
    fn equal_values_are_no_conflict() {
        let (a, b) = (stored("same", 6, 2), stored("same", 6, 1));
        assert_eq!(decided(&a, &b, &MergePolicy::RemoveAll), Resolution::Stays);
    }

    /// The second of three partitions has replaced the first's state with the third's value.
    #[test]
    fn newest_of_equal_states_is_copied() {
        let (old, a, b) = (stored("old", 5, 3), stored("same", 6, 1), stored("same", 40, 1));
        let has_seen = |_: usize, other: usize| other == 0;
        let verdict = decide(b"k", &[&old, &a, &b], has_seen, &MergePolicy::RemoveAll, None);
        assert_eq!(verdict, Resolution::Copy(2));
    }

    /// The third partition has removed the first's entry, and the second has put it again.
    #[test]
    fn a_value_that_was_put_once_more_is_taken_over_as_newer() {
        let (old, removed, again) =
            (stored("same", 5, 3), KeyState::Removed(Version::new(6, 1)), stored("same", 40, 1));
        let has_seen = |_: usize, other: usize| other == 0;
        let greatest = |_: &[u8], _: Option<&Stored>, others: &[Option<&Stored>]| {
            others.iter().flatten().next().map(|stored| (stored.value.clone(), stored.lifetime))
        };
        let policy = MergePolicy::Custom("greatest".into());
        let verdict = decide(b"k", &[&old, &removed, &again], has_seen, &policy, Some(&greatest));
        assert_eq!(verdict, Resolution::Copy(2));
        let policy = MergePolicy::PreferredNonNull;
        assert_eq!(decide(b"k", &[&old, &removed, &again], has_seen, &policy, None), Resolution::Copy(2));
    }

    #[test]
    fn a_custom_policy_may_make_a_value_of_both() {
        let (a, b) = (stored("a", 6, 2), stored("b", 6, 1));
        let both = |_: &[u8], preferred: Option<&Stored>, others: &[Option<&Stored>]| {
            let parts = std::iter::once(preferred).chain(others.iter().copied()).flatten();
            Some((parts.flat_map(|stored| stored.value.to_vec()).collect(), Lifetime::FOREVER))
        };
        let policy = MergePolicy::Custom("both".into());
        let verdict = decide(b"k", &[&a, &b], |_, _| false, &policy, Some(&both));
        assert_eq!(verdict, put("ab"));
    }

    #[test]
    fn entry_chosen_from_one_partition_counts_as_no_new_change() {
        let (a, b, c) = (stored("a", 6, 2), stored("b", 7, 1), stored("c", 5, 9));
        let greatest = |_: &[u8], preferred: Option<&Stored>, others: &[Option<&Stored>]| {
            let all = others.iter().copied().chain([preferred]).flatten();
            all.map(|stored| (stored.value.clone(), stored.lifetime)).max_by_key(|(value, _)| value.clone())
        };
        let policy = MergePolicy::Custom("greatest".into());
        let decided = |sides: [&KeyState; 2]| decide(b"k", &sides, |_, _| false, &policy, Some(&greatest));
        assert_eq!(decided([&b, &a]), Resolution::Stays);
        assert_eq!(decided([&a, &b]), Resolution::Copy(1));
        assert_eq!(decided([&a, &c]), put("c"), "an older version cannot be taken over");
        let removed = KeyState::Removed(Version::new(6, 1));
        let verdict = decide(b"k", &[&removed, &b], |_, _| false, &MergePolicy::PreferredNonNull, None);
        assert_eq!(verdict, Resolution::Copy(1));
    }

    #[test]
    fn conflict_at_which_a_custom_policy_panics_goes_to_the_preferred_partition() {
        let (a, b) = (stored("a", 6, 2), stored("b", 6, 1));
        let panics = |_: &[u8], _: Option<&Stored>, _: &[Option<&Stored>]| panic!("as the test wants it");
        let policy = MergePolicy::Custom("panics".into());
        let verdict = decide(b"k", &[&a, &b], |_, _| false, &policy, Some(&panics));
        assert_eq!(verdict, Resolution::Stays);
    }
}
