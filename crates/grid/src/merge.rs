//! What becomes of a key when two or more sides of a partition come together that have all gone on, as
//! [`PartitionHandling::AllowReadWrites`](crate::PartitionHandling::AllowReadWrites) lets them.
//!
//! Most keys need no decision: what only one side has changed since they parted stands as that side has it, be it a put
//! or a removal. Where several sides have changed a key, and not to the same value, the cache's [`MergePolicy`] decides.
//!
//! Whose change is whose follows from what each side has seen ([`crate::past`]): what another side has not seen is a change
//! to it, and what another side has seen and does not have any more, it has replaced.

use std::sync::Arc;

use bytes::Bytes;

use crate::guarded::{Panicked, guarded};
use crate::operation::Stored;
use crate::{Lifetime, Segment, Version};

/// Partings that a cache remembers; of more it forgets the oldest, and does not tell any more which members are of which side.
pub(crate) const PARTINGS_MAX: usize = 16;

/// Who wins where several sides of a partition have changed a key. The *preferred* side is the one with the most members
/// that were members when the sides parted; of several such, the one that has the oldest of all.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum MergePolicy {
    /// What the preferred side has, also if it has removed the key.
    PreferredAlways,
    /// What the preferred side has; if it has removed the key, what another one has.
    #[default]
    PreferredNonNull,
    /// The key is removed.
    RemoveAll,
    /// What the function says that is registered under this name on every member.
    Custom(Arc<str>),
}

/// A custom merge policy: the key, what the preferred side has, and what others have that have changed it, too; `None`
/// where it was removed. Returns what the key is to have. It is called once per key, on the segment's primary, and must
/// not use the cache. If it panics, the key has what the preferred side has.
pub type MergeFn =
    dyn Fn(&[u8], Option<&Stored>, &[Option<&Stored>]) -> Option<(Bytes, Lifetime)> + Send + Sync;

/// What a side has of a key.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Standing {
    Entry(Stored),
    /// It was removed, as far as the side remembers.
    Removed(Version),
    /// Nothing is known of it.
    Nothing,
}

impl Standing {
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

    /// Whether it is what a function has chosen.
    fn is_made_of(&self, made: Option<&(Bytes, Lifetime)>) -> bool {
        let own = self.entry().map(|stored| (&stored.value, left_of(stored)));
        own == made.map(|(value, lifetime)| (value, *lifetime))
    }

    /// Whether nobody who reads could tell the two from each other.
    fn is_same(&self, other: &Self) -> bool {
        self.entry().map(|stored| &stored.value) == other.entry().map(|stored| &stored.value)
    }
}

/// What becomes of a key.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Verdict {
    /// The first side's standing stays.
    Stays,
    /// What another side has, as it is: nobody else has changed it.
    Copy(usize),
    Put(Bytes, Lifetime),
    /// Nobody has it any more, and that is news also where nothing is.
    Remove,
}

/// Decides about a key. `standings` are those of the sides, the preferred first; `has_seen(a, b)` tells whether side `a` has
/// seen what side `b` has.
pub(crate) fn decide(
    key: &[u8],
    standings: &[&Standing],
    has_seen: impl Fn(usize, usize) -> bool,
    policy: &MergePolicy,
    custom: Option<&MergeFn>,
) -> Verdict {
    let is_changed =
        |side: usize, other: usize| !matches!(standings[side], Standing::Nothing) && !has_seen(other, side);
    // Two sides that have seen what the other has, and have it no more, have merged other sides meanwhile, and not chosen the same:
    // that is for the policy, too. Where nobody chooses among values, what is newer is right.
    let chooses = *policy != MergePolicy::RemoveAll;
    let is_entry = |side: usize| standings[side].entry().is_some();
    // What another side has seen and then changed is over.
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
            // Of those who have come to the same, who has the newest is not behind the others.
            Some(other) if *other > 0 && standings[side].version() > standings[*other].version() => {
                *other = side;
            }
            Some(_) => {}
            None => left.push(side),
        }
    }
    // With a version of its own it would count as a change when others come back later, who may have seen and replaced it.
    let takes = |side: usize| match (standings[side], standings[0]) {
        // The same value, put once more elsewhere, is not what others have replaced.
        (Standing::Entry(one), own) if one.version > own.version() => Verdict::Copy(side),
        (one, own) if one.is_same(own) => Verdict::Stays,
        (one, own) if one.version() > own.version() => Verdict::Copy(side),
        (Standing::Entry(stored), _) => Verdict::Put(stored.value.clone(), left_of(stored)),
        _ => Verdict::Remove,
    };
    let Some((&first, others)) = left.split_first() else { return Verdict::Stays };
    if others.is_empty() {
        return takes(first);
    }
    let entries = || left.iter().filter(|&&side| standings[side].entry().is_some());
    match policy {
        MergePolicy::PreferredAlways => takes(first),
        MergePolicy::PreferredNonNull => takes(entries().next().copied().unwrap_or(first)),
        MergePolicy::RemoveAll => Verdict::Remove,
        MergePolicy::Custom(_) => {
            let others: Vec<Option<&Stored>> = others.iter().map(|&side| standings[side].entry()).collect();
            let Some(custom) = custom else { return takes(first) };
            match guarded(|| custom(key, standings[first].entry(), &others)) {
                Ok(made) => match left.iter().find(|&&side| standings[side].is_made_of(made.as_ref())) {
                    Some(&side) => takes(side),
                    None => made.map_or(Verdict::Remove, |(value, lifetime)| Verdict::Put(value, lifetime)),
                },
                Err(Panicked) => takes(first),
            }
        }
    }
}

/// How long an entry has still to live.
fn left_of(stored: &Stored) -> Lifetime {
    let lifespan = stored.lifetime.lifespan.map(|lifespan| lifespan.saturating_sub(stored.age));
    Lifetime { lifespan, ..stored.lifetime }
}

/// A side that is being merged: the topology with which it came, and its number among those that came with it.
pub(crate) type SideId = (u32, u32);

/// A side whose entries are to be merged: who has them, and what it has in common with others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Side {
    /// The id of the topology with which its members came.
    pub since: u32,
    /// Which of the sides that came with it.
    pub nth: u32,
    /// Its owners that were read, as far as they are here; where there is none, those that were written.
    pub owners: crate::ConsistentHash,
    /// Where it has parted from others.
    pub partings: Arc<[Parting]>,
}

impl Side {
    pub(crate) fn id(&self) -> SideId {
        (self.since, self.nth)
    }

    /// Who has a segment's entries.
    pub(crate) fn givers(&self, segment: Segment) -> impl Iterator<Item = &consort_group::Address> {
        self.owners.owners(segment)
    }
}

/// A topology that goes on without members that may go on without it; also the first topology of a cache.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Parting {
    /// The topology's id.
    pub id: u32,
    /// Who has made it: on another side there may be one with the same id.
    pub by: consort_group::Address,
}

/// Where the first history has left what it has in common with the second: `None` if it never has.
pub(crate) fn parted_from(own: &[Parting], other: &[Parting]) -> Option<u32> {
    own.iter().find(|parting| !other.contains(parting)).map(|parting| parting.id)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn stored(value: &'static str, topology: u32, count: u64) -> Standing {
        Standing::Entry(Stored {
            value: Bytes::from_static(value.as_bytes()),
            version: Version::new(topology, count),
            lifetime: Lifetime::FOREVER,
            age: Duration::ZERO,
            idle: Duration::ZERO,
        })
    }

    fn put(value: &'static str) -> Verdict {
        Verdict::Put(Bytes::from_static(value.as_bytes()), Lifetime::FOREVER)
    }

    /// Two sides that parted when the preferred one had seen all up to 5.7 and the other all up to 5.4.
    fn decided(preferred: &Standing, other: &Standing, policy: &MergePolicy) -> Verdict {
        let sides = [preferred, other];
        let has_seen = |side: usize, other: usize| sides[other].version() <= Version::new(5, [7, 4][side]);
        decide(b"k", &sides, has_seen, policy, None)
    }

    const ALL: [MergePolicy; 3] =
        [MergePolicy::PreferredAlways, MergePolicy::PreferredNonNull, MergePolicy::RemoveAll];

    #[test]
    fn what_one_side_has_changed_stands_whatever_the_policy() {
        let (old, new) = (stored("old", 5, 3), stored("new", 6, 1));
        let removed = Standing::Removed(Version::new(6, 1));
        for policy in &ALL {
            assert_eq!(decided(&old, &new, policy), Verdict::Copy(1), "the other side has written");
            assert_eq!(decided(&new, &old, policy), Verdict::Stays, "the preferred side has written");
            assert_eq!(decided(&old, &removed, policy), Verdict::Copy(1), "the other side has removed");
            assert_eq!(decided(&removed, &old, policy), Verdict::Stays, "the preferred side has removed");
            assert_eq!(decided(&Standing::Nothing, &new, policy), Verdict::Copy(1), "a new key");
            assert_eq!(decided(&Standing::Nothing, &removed, policy), Verdict::Stays, "it was never here");
            assert_eq!(decided(&new, &Standing::Nothing, policy), Verdict::Stays, "a new key here");
        }
    }

    #[test]
    fn what_was_under_way_when_they_parted_is_the_change_of_the_side_that_has_it() {
        let (before, under_way, new) =
            (stored("before", 5, 3), stored("under way", 5, 6), stored("new", 6, 1));
        for policy in &ALL {
            assert_eq!(decided(&under_way, &before, policy), Verdict::Stays);
        }
        assert_eq!(decided(&under_way, &new, &MergePolicy::PreferredAlways), Verdict::Stays);
        assert_eq!(decided(&under_way, &new, &MergePolicy::RemoveAll), Verdict::Remove);
    }

    #[test]
    fn the_policy_decides_where_both_have_changed() {
        let (a, b) = (stored("a", 6, 2), stored("b", 6, 1));
        assert_eq!(decided(&a, &b, &MergePolicy::PreferredAlways), Verdict::Stays);
        assert_eq!(decided(&a, &b, &MergePolicy::PreferredNonNull), Verdict::Stays);
        assert_eq!(decided(&a, &b, &MergePolicy::RemoveAll), Verdict::Remove);
        let removed = Standing::Removed(Version::new(6, 3));
        assert_eq!(decided(&removed, &b, &MergePolicy::PreferredAlways), Verdict::Stays);
        assert_eq!(decided(&removed, &b, &MergePolicy::PreferredNonNull), put("b"));
        assert_eq!(
            decided(&removed, &b, &MergePolicy::RemoveAll),
            Verdict::Remove,
            "which no side knows yet"
        );
        assert_eq!(decided(&a, &removed, &MergePolicy::RemoveAll), Verdict::Remove);
    }

    #[test]
    fn what_policies_have_chosen_differently_is_for_the_policy() {
        let (older, newer) = (stored("older", 5, 3), stored("newer", 6, 1));
        let removed = Standing::Removed(Version::new(7, 1));
        let decided = |sides: [&Standing; 2], policy| decide(b"k", &sides, |_, _| true, policy, None);
        for policy in &ALL {
            let is_newest = *policy == MergePolicy::RemoveAll;
            let wanted = if is_newest { Verdict::Copy(1) } else { Verdict::Stays };
            assert_eq!(decided([&older, &newer], policy), wanted, "{policy:?}");
            assert_eq!(decided([&newer, &older], policy), Verdict::Stays, "{policy:?}");
            assert_eq!(decided([&newer, &removed], policy), Verdict::Copy(1), "{policy:?}");
        }
    }

    #[test]
    fn equal_values_are_no_conflict() {
        let (a, b) = (stored("same", 6, 2), stored("same", 6, 1));
        assert_eq!(decided(&a, &b, &MergePolicy::RemoveAll), Verdict::Stays);
    }

    /// Of three sides the second has replaced what the first had, and has come to the value that the third has, too.
    #[test]
    fn of_sides_that_have_come_to_the_same_the_newest_is_taken_over() {
        let (old, a, b) = (stored("old", 5, 3), stored("same", 6, 1), stored("same", 40, 1));
        let has_seen = |_: usize, other: usize| other == 0;
        let verdict = decide(b"k", &[&old, &a, &b], has_seen, &MergePolicy::RemoveAll, None);
        assert_eq!(verdict, Verdict::Copy(2));
    }

    /// A third side has removed what the first has, and the second has chosen it again, as a change.
    #[test]
    fn a_value_that_was_put_once_more_is_taken_over_as_newer() {
        let (old, removed, again) =
            (stored("same", 5, 3), Standing::Removed(Version::new(6, 1)), stored("same", 40, 1));
        let has_seen = |_: usize, other: usize| other == 0;
        let greatest = |_: &[u8], _: Option<&Stored>, others: &[Option<&Stored>]| {
            others.iter().flatten().next().map(|stored| (stored.value.clone(), stored.lifetime))
        };
        let policy = MergePolicy::Custom("greatest".into());
        let verdict = decide(b"k", &[&old, &removed, &again], has_seen, &policy, Some(&greatest));
        assert_eq!(verdict, Verdict::Copy(2));
        let policy = MergePolicy::PreferredNonNull;
        assert_eq!(decide(b"k", &[&old, &removed, &again], has_seen, &policy, None), Verdict::Copy(2));
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
    fn what_the_policy_chooses_of_one_side_is_no_change_that_nobody_has_made() {
        let (a, b, c) = (stored("a", 6, 2), stored("b", 7, 1), stored("c", 5, 9));
        let greatest = |_: &[u8], preferred: Option<&Stored>, others: &[Option<&Stored>]| {
            let all = others.iter().copied().chain([preferred]).flatten();
            all.map(|stored| (stored.value.clone(), stored.lifetime)).max_by_key(|(value, _)| value.clone())
        };
        let policy = MergePolicy::Custom("greatest".into());
        let decided = |sides: [&Standing; 2]| decide(b"k", &sides, |_, _| false, &policy, Some(&greatest));
        assert_eq!(decided([&b, &a]), Verdict::Stays);
        assert_eq!(decided([&a, &b]), Verdict::Copy(1));
        assert_eq!(decided([&a, &c]), put("c"), "an older version cannot be taken over");
        let removed = Standing::Removed(Version::new(6, 1));
        let verdict = decide(b"k", &[&removed, &b], |_, _| false, &MergePolicy::PreferredNonNull, None);
        assert_eq!(verdict, Verdict::Copy(1));
    }

    #[test]
    fn what_a_custom_policy_panics_at_is_left_to_the_preferred_side() {
        let (a, b) = (stored("a", 6, 2), stored("b", 6, 1));
        let panics = |_: &[u8], _: Option<&Stored>, _: &[Option<&Stored>]| panic!("as the test wants it");
        let policy = MergePolicy::Custom("panics".into());
        let verdict = decide(b"k", &[&a, &b], |_, _| false, &policy, Some(&panics));
        assert_eq!(verdict, Verdict::Stays);
    }
}
