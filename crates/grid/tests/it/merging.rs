//! Merges of partitions that have all gone on: the writes of each, and the results of the merge policies.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use consort_grid::{
    Action, CacheConfig, CacheMode, Change, Condition, Lifetime, MergePolicy, Node, OpenError, Outcome,
    PartitionHandling, ReadFrom, Stored, Write,
};
use consort_group::{Time, View, ViewId};

use crate::cluster::{Cluster, address, container_of};

pub(crate) const TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) fn config(merge: MergePolicy) -> CacheConfig {
    CacheConfig {
        segments: 16,
        // Each partition has all entries at the split.
        mode: CacheMode::Replicated,
        partitions: PartitionHandling::AllowReadWrites,
        merge,
        ..CacheConfig::new("parted")
    }
}

pub(crate) fn write(cluster: &mut Cluster, member: usize, key: &str, value: Option<&str>) {
    let change = value.map_or(Change::Remove, |value| Change::Put {
        value: Bytes::copy_from_slice(value.as_bytes()),
        lifetime: Lifetime::FOREVER,
    });
    let write = Write { condition: Condition::Always, change, wants_previous: false };
    let at = cluster.submit(member, Bytes::copy_from_slice(key.as_bytes()), Action::Write(write), TIMEOUT);
    cluster.run(Duration::from_millis(30));
    assert!(matches!(cluster.history[at].result, Some(Ok(_))), "{:?}", cluster.history[at]);
}

pub(crate) fn read(cluster: &mut Cluster, member: usize, key: &str) -> Option<String> {
    let key = Bytes::copy_from_slice(key.as_bytes());
    let at = cluster.submit(member, key, Action::Read(ReadFrom::Primary), TIMEOUT);
    cluster.run(Duration::from_millis(30));
    match &cluster.history[at].result {
        Some(Ok(Outcome::Read(found))) => {
            found.as_ref().map(|stored| String::from_utf8_lossy(&stored.value).into_owned())
        }
        other => panic!("{other:?}"),
    }
}

/// Returns six members with this many owners of each key, and forty keys that are not written yet.
pub(crate) fn six(seed: u64, owners: u16) -> (Cluster, Vec<String>) {
    let mode = CacheMode::Distributed { owners };
    let config = CacheConfig { mode, ..config(MergePolicy::PreferredNonNull) };
    (Cluster::settled(seed, config, 6), (0..40).map(|n| format!("key {n}")).collect())
}

/// Like `six`, with the keys written.
pub(crate) fn filled(seed: u64, owners: u16) -> (Cluster, Vec<String>) {
    let (mut cluster, keys) = six(seed, owners);
    keys.iter().for_each(|key| write(&mut cluster, 0, key, Some("before")));
    (cluster, keys)
}

/// Runs four members with ten keys of each kind: they are partitioned, each partition changes its keys, and they are
/// merged.
fn parted_and_merged(merge: MergePolicy, sides: [u8; 4]) -> Cluster {
    let mut cluster = Cluster::new(11, config(merge));
    cluster.merges.push(("both", Arc::new(both)));
    for _ in 0..4 {
        cluster.start();
        cluster.run(Duration::from_millis(500));
    }
    let kinds = ["both", "ours", "theirs", "ours removed", "theirs removed", "removed here, put there"];
    for key in kinds.iter().flat_map(|kind| (0..10).map(move |n| format!("{kind} {n}"))) {
        write(&mut cluster, 0, &key, Some("before"));
    }
    cluster.cut(sides.to_vec());
    cluster.run(Duration::from_secs(2));
    for n in 0..10 {
        write(&mut cluster, 0, &format!("both {n}"), Some("ours"));
        write(&mut cluster, 3, &format!("both {n}"), Some("theirs"));
        write(&mut cluster, 0, &format!("ours {n}"), Some("ours"));
        write(&mut cluster, 3, &format!("theirs {n}"), Some("theirs"));
        write(&mut cluster, 0, &format!("new here {n}"), Some("ours"));
        write(&mut cluster, 3, &format!("new there {n}"), Some("theirs"));
        write(&mut cluster, 0, &format!("ours removed {n}"), None);
        write(&mut cluster, 3, &format!("theirs removed {n}"), None);
        write(&mut cluster, 0, &format!("removed here, put there {n}"), None);
        write(&mut cluster, 3, &format!("removed here, put there {n}"), Some("theirs"));
    }
    cluster.heal();
    cluster.run(Duration::from_secs(5));
    assert!(cluster.is_settled(), "{}\n{}", cluster.story.join("\n"), cluster.state());
    cluster.check_agreement();
    // Keys that only one partition has changed.
    for n in 0..10 {
        for member in [0, 3] {
            let mut is = |key: &str, value: Option<&str>| {
                let key = format!("{key} {n}");
                assert_eq!(read(&mut cluster, member, &key).as_deref(), value, "{key}");
            };
            is("ours", Some("ours"));
            is("theirs", Some("theirs"));
            is("new here", Some("ours"));
            is("new there", Some("theirs"));
            is("ours removed", None);
            is("theirs removed", None);
        }
    }
    cluster
}

/// Returns the values after the merge of keys that both partitions have changed: put by both, and removed here and put there.
fn conflicts(cluster: &mut Cluster) -> (Option<String>, Option<String>) {
    let first = read(cluster, 1, "both 0");
    let second = read(cluster, 1, "removed here, put there 0");
    for n in 1..10 {
        assert_eq!(read(cluster, 3, &format!("both {n}")), first);
        assert_eq!(read(cluster, 3, &format!("removed here, put there {n}")), second);
    }
    (first, second)
}

fn both(_: &[u8], preferred: Option<&Stored>, others: &[Option<&Stored>]) -> Option<(Bytes, Lifetime)> {
    let all = std::iter::once(preferred).chain(others.iter().copied());
    let texts = all.map(|stored| stored.map_or("-".into(), |one| String::from_utf8_lossy(&one.value)));
    Some((Bytes::from(texts.collect::<Vec<_>>().join("+")), Lifetime::FOREVER))
}

const OURS: [u8; 4] = [0, 0, 0, 1];
const THEIRS: [u8; 4] = [0, 1, 1, 1];

#[test]
fn preferred_always_keeps_the_state_of_the_larger_partition() {
    let mut cluster = parted_and_merged(MergePolicy::PreferredAlways, OURS);
    assert_eq!(conflicts(&mut cluster), (Some("ours".into()), None));
    let mut cluster = parted_and_merged(MergePolicy::PreferredAlways, THEIRS);
    assert_eq!(conflicts(&mut cluster), (Some("theirs".into()), Some("theirs".into())));
}

#[test]
fn of_equal_sides_that_with_the_oldest_member_is_preferred() {
    let mut cluster = parted_and_merged(MergePolicy::PreferredAlways, [0, 0, 1, 1]);
    assert_eq!(conflicts(&mut cluster), (Some("ours".into()), None));
}

#[test]
fn preferred_non_null_takes_the_others_where_the_preferred_side_has_removed() {
    let mut cluster = parted_and_merged(MergePolicy::PreferredNonNull, OURS);
    assert_eq!(conflicts(&mut cluster), (Some("ours".into()), Some("theirs".into())));
}

#[test]
fn remove_all_removes_keys_that_both_partitions_changed() {
    let mut cluster = parted_and_merged(MergePolicy::RemoveAll, OURS);
    assert_eq!(conflicts(&mut cluster), (None, None));
}

#[test]
fn a_custom_policy_is_asked() {
    let mut cluster = parted_and_merged(MergePolicy::Custom("both".into()), OURS);
    assert_eq!(conflicts(&mut cluster), (Some("ours+theirs".into()), Some("-+theirs".into())));
}

#[test]
fn a_side_that_had_lost_all_owners_of_a_segment_has_removed_nothing() {
    let mode = CacheMode::Distributed { owners: 1 };
    let mut cluster = Cluster::new(5, CacheConfig { mode, ..config(MergePolicy::PreferredAlways) });
    for _ in 0..4 {
        cluster.start();
        cluster.run(Duration::from_millis(500));
    }
    let keys: Vec<String> = (0..50).map(|n| format!("k{n}")).collect();
    keys.iter().for_each(|key| write(&mut cluster, 0, key, Some("before")));
    cluster.cut(OURS.to_vec());
    cluster.run(Duration::from_secs(2));
    let lost = keys.iter().filter(|key| read(&mut cluster, 3, key).is_none()).count();
    assert!(lost > 25, "only {lost}");
    cluster.heal();
    cluster.run(Duration::from_secs(5));
    for key in &keys {
        assert_eq!(read(&mut cluster, 1, key).as_deref(), Some("before"));
    }
}

#[test]
fn a_removal_that_a_parted_member_has_not_seen_stands() {
    let mut cluster = Cluster::new(5, config(MergePolicy::PreferredAlways));
    for _ in 0..4 {
        cluster.start();
        cluster.run(Duration::from_millis(500));
    }
    let keys: Vec<Bytes> = (0..40).map(|n| format!("k{n}").into()).collect();
    for key in &keys {
        write(&mut cluster, 0, std::str::from_utf8(key).unwrap(), Some("before"));
    }
    cluster.cut(OURS.to_vec());
    // No member has detected the cut yet.
    let removal = Write { condition: Condition::Always, change: Change::Remove, wants_previous: false };
    let removals: Vec<usize> = keys
        .iter()
        .map(|key| cluster.submit(0, key.clone(), Action::Write(removal.clone()), TIMEOUT))
        .collect();
    cluster.run(Duration::from_secs(2));
    assert!(removals.iter().all(|&at| matches!(cluster.history[at].result, Some(Ok(_)))));
    assert_eq!(read(&mut cluster, 3, "k0").as_deref(), Some("before"));
    cluster.heal();
    cluster.run(Duration::from_secs(5));
    assert!(cluster.is_settled(), "{}", cluster.state());
    cluster.check_agreement();
    let back = keys.iter().filter(|key| read(&mut cluster, 1, std::str::from_utf8(key).unwrap()).is_some());
    assert_eq!(back.count(), 0, "removals that were forgotten");
}

#[test]
fn three_sides_are_merged_at_once() {
    let mut cluster = Cluster::new(3, config(MergePolicy::PreferredAlways));
    for _ in 0..4 {
        cluster.start();
        cluster.run(Duration::from_millis(500));
    }
    cluster.cut(vec![0, 1, 1, 2]);
    cluster.run(Duration::from_secs(2));
    for (member, value) in [(0, "first"), (1, "second"), (3, "third")] {
        write(&mut cluster, member, "all", Some(value));
        write(&mut cluster, member, value, Some(value));
    }
    cluster.heal();
    cluster.run(Duration::from_secs(5));
    assert!(cluster.is_settled(), "{}", cluster.state());
    cluster.check_agreement();
    for key in ["first", "second", "third"] {
        assert_eq!(read(&mut cluster, 0, key).as_deref(), Some(key));
    }
    assert_eq!(read(&mut cluster, 0, "all").as_deref(), Some("second"), "two are more than one");
}

#[test]
fn a_custom_policy_must_be_registered_before_the_cache_is_opened() {
    let config = config(MergePolicy::Custom("both".into()));
    let container = container_of(&config);
    let mut node = Node::new(address(0));
    let opened = node.open(Time::ZERO, config.clone(), address(0).into(), container.clone());
    assert!(matches!(opened, Err(OpenError::Invalid { setting, .. }) if *setting == *"merge"));
    node.register_merge("both", Arc::new(both));
    assert_eq!(node.open(Time::ZERO, config, address(0).into(), container), Ok(()));
}

#[test]
fn member_with_another_merge_policy_cannot_join() {
    let mut cluster = Cluster::new(1, config(MergePolicy::RemoveAll));
    cluster.start();
    cluster.run(Duration::from_millis(500));
    let other = cluster.start_with(config(MergePolicy::PreferredAlways));
    cluster.run(Duration::from_secs(2));
    assert!(cluster.members[other].as_ref().is_some_and(|member| member.refused));
}

/// A partition may have lost all owners of a segment and not assigned new ones when the other members return, which
/// have changed nothing meanwhile. Their entries of the segment are merged like others.
#[test]
fn entries_of_a_lost_segment_come_back_with_the_partition_that_has_them() {
    for seed in 0..16 {
        let mode = CacheMode::Distributed { owners: 1 };
        let mut cluster =
            Cluster::settled(seed, CacheConfig { mode, ..config(MergePolicy::PreferredNonNull) }, 3);
        for n in 0..40 {
            write(&mut cluster, n % 3, &format!("key {n}"), Some("before"));
        }
        cluster.cut(vec![0, 0, 1]);
        let apart = cluster.rng.duration(Duration::from_millis(5), Duration::from_millis(20));
        cluster.run(apart);
        cluster.heal();
        cluster.run(Duration::from_secs(10));
        assert!(cluster.is_settled(), "seed {seed}: {}", cluster.state());
        for n in 0..40 {
            let found = read(&mut cluster, n % 3, &format!("key {n}"));
            assert_eq!(found.as_deref(), Some("before"), "key {n} of seed {seed}");
        }
    }
}

/// A coordinator may have lost members that have not lost it: they are in its next view, which is no merge. The cache
/// goes on with their data, whichever other member is lost meanwhile.
#[test]
fn member_missing_from_one_view_returns_without_a_merge() {
    let mode = CacheMode::Distributed { owners: 2 };
    let partitions = PartitionHandling::AllowReads;
    let config = CacheConfig { mode, partitions, ..config(MergePolicy::PreferredAlways) };
    let mut cluster = Cluster::settled(1, config, 3);
    let view = |id, members: &[usize]| {
        View::new(ViewId { creator: address(0), id }, members.iter().map(|&n| address(n)).collect::<Vec<_>>())
    };
    cluster.with(0, |node, now| node.handle_view(now, &view(100, &[0])));
    cluster.run(Duration::from_secs(1));
    cluster.crash(1);
    for n in [0, 2] {
        cluster.with(n, |node, now| node.handle_view(now, &view(101, &[0, 2])));
    }
    cluster.run(Duration::from_secs(5));
    for (n, key) in (0..20).map(|n| (n, format!("key {n}"))) {
        write(&mut cluster, n % 2 * 2, &key, Some("after"));
    }
    let topology = cluster.members[0].as_ref().unwrap().node.topology(cluster.cache()).unwrap();
    assert_eq!((topology.members.len(), topology.away().len()), (2, 0));
}

/// A member that missed the view without it is in the next view as before, and has noticed nothing.
#[test]
fn member_unaware_of_its_removal_is_added_again_without_a_merge() {
    for partitions in [PartitionHandling::AllowReads, PartitionHandling::AllowReadWrites] {
        let mode = CacheMode::Distributed { owners: 2 };
        let config = CacheConfig { mode, partitions, ..config(MergePolicy::PreferredAlways) };
        let mut cluster = Cluster::settled(1, config, 4);
        let view = |id, members: &[usize]| {
            let members = members.iter().map(|&n| address(n)).collect::<Vec<_>>();
            View::new(ViewId { creator: address(0), id }, members)
        };
        for n in 0..3 {
            cluster.with(n, |node, now| node.handle_view(now, &view(100, &[0, 1, 2])));
        }
        cluster.run(Duration::from_secs(1));
        write(&mut cluster, 0, "key", Some("without it"));
        for n in 0..4 {
            cluster.with(n, |node, now| node.handle_view(now, &view(101, &[0, 1, 2, 3])));
        }
        cluster.run(Duration::from_secs(2));
        assert!(cluster.is_settled(), "{}", cluster.state());
        assert_eq!(read(&mut cluster, 3, "key").as_deref(), Some("without it"));
        for (n, key) in (0..20).map(|n| (n, format!("key {n}"))) {
            write(&mut cluster, if n % 2 == 0 { 3 } else { 1 }, &key, Some("after"));
        }
        cluster.check_agreement();
    }
}

/// One partition lacks segments until it is merged with a member that has them. Later changes of these segments are
/// changes of that partition alone, and so are earlier changes of that member.
#[test]
fn entries_of_an_earlier_merge_are_no_change_when_a_third_partition_merges() {
    for (seed, is_before) in (0..8).flat_map(|seed| [(seed, false), (seed, true)]) {
        let (mut cluster, keys) = filled(seed, 2);
        cluster.cut(vec![0, 0, 0, 1, 1, 2]);
        cluster.run(Duration::from_secs(2));
        if is_before {
            let there: Vec<&String> =
                keys.iter().filter(|key| read(&mut cluster, 5, key).is_some()).collect();
            there.iter().for_each(|key| write(&mut cluster, 5, key, Some("theirs")));
        }
        cluster.sides = vec![0, 0, 0, 1, 1, 1];
        cluster.deliver_views(true);
        cluster.run(Duration::from_secs(3));
        let wanted = if is_before { "theirs" } else { "before" };
        let is_there = |key: &&String| read(&mut cluster, 3, key).as_deref() == Some(wanted);
        let there: Vec<&String> = keys.iter().filter(is_there).collect();
        assert!(there.len() > 10, "{there:?}");
        if !is_before {
            there.iter().for_each(|key| write(&mut cluster, 4, key, Some("theirs")));
        }
        cluster.heal();
        cluster.run(Duration::from_secs(5));
        assert!(cluster.is_settled(), "seed {seed}: {}", cluster.state());
        cluster.check_agreement();
        for key in there {
            let found = read(&mut cluster, 0, key);
            assert_eq!(found.as_deref(), Some("theirs"), "{key} of seed {seed}, before: {is_before}");
        }
    }
}

/// Splits a partition once more.
fn part_again(cluster: &mut Cluster, sides: [u8; 6]) {
    cluster.sides = sides.to_vec();
    cluster.deliver_views(false);
    cluster.run(Duration::from_secs(2));
}

/// Merges two partitions, while a third stays apart.
fn merge_some(cluster: &mut Cluster, sides: [u8; 6]) {
    cluster.sides = sides.to_vec();
    cluster.deliver_views(true);
    cluster.run(Duration::from_secs(3));
}

/// Six members, of which three split from the others and write. Then one of these three splits from the other two,
/// and those two are merged with the three members of the first partition.
fn parted_twice(seed: u64, before: impl Fn(&mut Cluster), between: impl Fn(&mut Cluster)) -> Cluster {
    let mut cluster = Cluster::settled(seed, config(MergePolicy::RemoveAll), 6);
    write(&mut cluster, 0, "at first", Some("old"));
    cluster.cut(vec![0, 0, 0, 1, 1, 1]);
    cluster.run(Duration::from_secs(2));
    before(&mut cluster);
    part_again(&mut cluster, [0, 0, 0, 1, 1, 2]);
    between(&mut cluster);
    merge_some(&mut cluster, [0, 0, 0, 0, 0, 2]);
    cluster
}

fn heal_and_check(cluster: &mut Cluster, key: &str, wanted: Option<&str>) {
    cluster.heal();
    cluster.run(Duration::from_secs(5));
    assert!(cluster.is_settled(), "{}", cluster.state());
    cluster.check_agreement();
    for member in [0, 5] {
        assert_eq!(read(cluster, member, key).as_deref(), wanted, "{key}");
    }
}

/// A part of a partition replaces an entry that the other part still has, and is merged with a third partition.
pub(crate) fn replace_before_a_merge(seed: u64, key: &str, value: Option<&str>) {
    let old = |cluster: &mut Cluster| write(cluster, 3, key, Some("old"));
    let mut cluster = parted_twice(seed, old, |cluster| write(cluster, 4, key, value));
    assert_eq!(read(&mut cluster, 0, key).as_deref(), value);
    heal_and_check(&mut cluster, key, value);
}

#[test]
fn entry_replaced_by_a_merged_partition_does_not_return_with_a_partition_that_split_off_earlier() {
    for (seed, value) in (0..4).flat_map(|seed| [(seed, Some("new")), (seed, None)]) {
        for key in ["at first", "there"] {
            replace_before_a_merge(seed, key, value);
        }
    }
}

/// A part of a partition replaces an entry that the other part still has when that is merged with a third partition.
pub(crate) fn replace_copied_entry(seed: u64, key: &str, old: Option<&str>) {
    let twice = |cluster: &mut Cluster| {
        write(cluster, 3, key, Some("before"));
        write(cluster, 3, key, old);
    };
    let mut cluster = parted_twice(seed, twice, |cluster| write(cluster, 5, key, Some("new")));
    assert_eq!(read(&mut cluster, 0, key).as_deref(), old);
    heal_and_check(&mut cluster, key, Some("new"));
}

#[test]
fn entry_adopted_in_a_merge_loses_against_its_replacement() {
    for (seed, old) in (0..4).flat_map(|seed| [(seed, Some("old")), (seed, None)]) {
        for key in ["at first", "there"] {
            replace_copied_entry(seed, key, old);
        }
    }
}

/// Like the test above, with the change after the merge.
#[test]
fn entry_adopted_and_then_changed_counts_as_one_change() {
    for seed in 0..4 {
        let mut cluster = parted_twice(seed, |cluster| write(cluster, 3, "there", Some("old")), |_| {});
        write(&mut cluster, 1, "there", Some("new"));
        heal_and_check(&mut cluster, "there", Some("new"));
    }
}

/// The policy decides keys that both partitions have changed since their split, however they have split.
#[test]
fn changes_of_two_partitions_to_an_entry_of_a_third_are_a_conflict() {
    for seed in 0..4 {
        let mut cluster = parted_twice(
            seed,
            |cluster| write(cluster, 3, "there", Some("old")),
            |cluster| {
                write(cluster, 4, "there", Some("one"));
                write(cluster, 5, "there", Some("another"));
            },
        );
        heal_and_check(&mut cluster, "there", None);
    }
}

/// Four members split from two. One of the four splits once more, and the other three are merged with the two. `both`
/// runs before the second split, in both partitions, and `last` by the member that returns last.
fn parted_and_left(
    merge: MergePolicy,
    both: impl Fn(&mut Cluster),
    last: impl Fn(&mut Cluster),
) -> Option<String> {
    let mut cluster = Cluster::new(3, config(merge));
    cluster.merges.push(("greatest", Arc::new(greatest)));
    for _ in 0..6 {
        cluster.start();
        cluster.run(Duration::from_millis(500));
    }
    write(&mut cluster, 0, "key", Some("at first"));
    cluster.cut(vec![0, 0, 0, 0, 1, 1]);
    cluster.run(Duration::from_secs(2));
    both(&mut cluster);
    part_again(&mut cluster, [0, 0, 0, 2, 1, 1]);
    last(&mut cluster);
    merge_some(&mut cluster, [0, 0, 0, 2, 0, 0]);
    cluster.heal();
    cluster.run(Duration::from_secs(5));
    assert!(cluster.is_settled(), "{}", cluster.state());
    cluster.check_agreement();
    read(&mut cluster, 0, "key")
}

fn greatest(_: &[u8], preferred: Option<&Stored>, others: &[Option<&Stored>]) -> Option<(Bytes, Lifetime)> {
    let all = others.iter().copied().chain([preferred]).flatten();
    all.map(|stored| (stored.value.clone(), stored.lifetime)).max_by(|(one, _), (other, _)| one.cmp(other))
}

#[test]
fn entry_chosen_by_a_custom_policy_loses_against_its_replacement() {
    let both = |cluster: &mut Cluster| {
        write(cluster, 0, "key", Some("z"));
        write(cluster, 4, "key", Some("a"));
    };
    let policy = MergePolicy::Custom("greatest".into());
    let left = parted_and_left(policy, both, |cluster| write(cluster, 3, "key", Some("m")));
    assert_eq!(left.as_deref(), Some("m"));
}

/// The member that returns has put the key again after one of the two partitions has removed it, and has not seen the
/// other partition's put.
#[test]
fn that_a_policy_has_removed_a_key_is_a_change_also_where_it_was_removed() {
    let both = |cluster: &mut Cluster| {
        write(cluster, 0, "key", None);
        write(cluster, 4, "key", Some("theirs"));
    };
    let last = |cluster: &mut Cluster| write(cluster, 3, "key", Some("mine"));
    assert_eq!(parted_and_left(MergePolicy::RemoveAll, both, last), None);
}

/// Like the test above, where both partitions have removed the key: a partition that has seen one removal has not
/// seen the other.
#[test]
fn of_two_sides_that_have_removed_a_key_the_removal_of_either_counts() {
    for sides in [[0, 0, 0, 0, 1, 1], [1, 1, 0, 0, 0, 0]] {
        let mut cluster = Cluster::settled(3, config(MergePolicy::RemoveAll), 6);
        write(&mut cluster, 0, "key", Some("at first"));
        cluster.cut(sides.to_vec());
        cluster.run(Duration::from_secs(2));
        write(&mut cluster, 0, "key", None);
        write(&mut cluster, 5, "key", None);
        // One of the two members of the smaller partition.
        let last = sides.iter().rposition(|side| *side == 1).unwrap();
        cluster.sides[last] = 2;
        cluster.deliver_views(false);
        cluster.run(Duration::from_secs(2));
        write(&mut cluster, last, "key", Some("new"));
        cluster.sides = (0..6).map(|n| if n == last { 2 } else { 0 }).collect();
        cluster.deliver_views(true);
        cluster.run(Duration::from_secs(3));
        heal_and_check(&mut cluster, "key", None);
    }
}
