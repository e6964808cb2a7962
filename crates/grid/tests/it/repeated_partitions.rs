//! Members that split again while partitions are merged: the writes of each partition are there in the end, whichever
//! members know of the merge.

use std::time::Duration;

use bytes::Bytes;
use consort_grid::{
    Action, Change, Condition, Lifetime, ListenOptions, MergePolicy, Outcome, ReadFrom, Segment, Topology,
    Write,
};
use consort_group::{View, ViewId};

use crate::cluster::{Cluster, address, entries};
use crate::listening::Reader;
use crate::merging::{TIMEOUT, config, filled, read, six, write};

/// Sends a view to these members, of which the other members get nothing.
fn view_of(cluster: &mut Cluster, members: &[usize]) {
    let id = ViewId { creator: address(members[0]), id: 1_000 };
    let view = View::new(id, members.iter().map(|&n| address(n)).collect::<Vec<_>>());
    for &n in members {
        cluster.with(n, |node, now| node.handle_view(now, &view));
    }
}

fn topology(cluster: &Cluster, member: usize) -> Option<&Topology> {
    cluster.members[member].as_ref()?.node.topology(cluster.cache())
}

fn is_merging(cluster: &Cluster, member: usize) -> bool {
    topology(cluster, member).is_some_and(|topology| !topology.merging.is_empty())
}

/// Runs until the condition holds, for 5 s at most.
fn run_until(cluster: &mut Cluster, is_so: impl Fn(&Cluster) -> bool) {
    let until = cluster.now + Duration::from_secs(5);
    while !is_so(cluster) {
        assert!(cluster.step(until), "{}", cluster.state());
    }
}

/// Runs until these members have a topology that merges partitions.
fn run_until_merging(cluster: &mut Cluster, members: &[usize]) {
    run_until(cluster, |cluster| members.iter().all(|&n| is_merging(cluster, n)));
}

/// Reunites all partitions, and checks the value of every key.
fn heal_and_check_all<'a>(
    cluster: &mut Cluster,
    seed: u64,
    keys: impl IntoIterator<Item = &'a String>,
    wanted: Option<&str>,
) {
    cluster.heal();
    cluster.run(Duration::from_secs(10));
    assert!(cluster.is_settled(), "seed {seed}: {}", cluster.state());
    cluster.check_agreement();
    for key in keys {
        assert_eq!(read(cluster, 1, key).as_deref(), wanted, "{key} of seed {seed}");
    }
}

/// A coordinator adds a partition that never learns of it, and that another coordinator merges with a third partition
/// meanwhile.
#[test]
fn member_that_missed_its_own_merge_is_merged_with_its_later_writes() {
    for seed in 0..12 {
        let mut cluster = Cluster::settled(seed, config(MergePolicy::PreferredAlways), 6);
        // The members that go on have a higher topology id than the coordinator that has added them, or a lower one:
        // it depends on the number of earlier partitions.
        for _ in 0..seed / 3 {
            cluster.cut(vec![0, 0, 0, 1, 1, 1]);
            cluster.run(Duration::from_secs(1));
            cluster.heal();
            cluster.run(Duration::from_secs(2));
        }
        let keys: Vec<String> = (0..20).map(|n| format!("key {n}")).collect();
        keys.iter().for_each(|key| write(&mut cluster, 0, key, Some("before")));
        cluster.cut(vec![0, 0, 2, 1, 1, 2]);
        cluster.run(Duration::from_secs(2));
        // The coordinator gets their status after a while, and by then its links to them are cut.
        cluster.slow = (1..6).map(|n| ((n, 0), Duration::from_millis(300))).collect();
        cluster.heal();
        cluster.run(Duration::from_millis(100));
        cluster.mute = [2, 3, 4].map(|n| (0, n)).into();
        run_until_merging(&mut cluster, &[0, 1, 5]);
        cluster.sides = vec![0, 0, 1, 1, 1, 0];
        let mut gone_on = [2, 3, 4];
        gone_on.rotate_left(seed as usize % 3);
        view_of(&mut cluster, &gone_on);
        cluster.run(Duration::from_secs(2));
        keys.iter().for_each(|key| write(&mut cluster, 3, key, Some("after")));
        (cluster.slow, cluster.mute) = Default::default();
        heal_and_check_all(&mut cluster, seed, &keys, Some("after"));
    }
}

/// Owners of the merging partition are lost during the merge: the remaining members merge the other partition's
/// entries.
#[test]
fn merge_into_segments_that_lose_their_owners_completes() {
    for seed in 0..8 {
        let (mut cluster, keys) = six(seed, 1);
        cluster.cut(vec![0, 0, 0, 1, 1, 1]);
        cluster.run(Duration::from_secs(2));
        keys.iter().for_each(|key| write(&mut cluster, 3, key, Some("theirs")));
        cluster.heal();
        run_until_merging(&mut cluster, &[0]);
        // They learn of the merge, and their chunks are lost.
        cluster.mute = [3, 4, 5].into_iter().flat_map(|from| [0, 1, 2].map(|to| (from, to))).collect();
        run_until_merging(&mut cluster, &[1, 2, 3, 4, 5]);
        cluster.run(Duration::from_millis(10));
        cluster.mute.clear();
        cluster.sides = vec![1, 1, 0, 0, 0, 0];
        cluster.deliver_views(false);
        cluster.run(Duration::from_secs(5));
        for key in &keys {
            assert_eq!(read(&mut cluster, 4, key).as_deref(), Some("theirs"), "{key} of seed {seed}");
        }
        heal_and_check_all(&mut cluster, seed, &keys, Some("theirs"));
    }
}

/// One partition removes keys that another one lacks and a third one still has. While the first two are merged, a
/// member adds a listener.
#[test]
fn removal_by_a_merged_partition_stands_if_a_listener_registers_meanwhile() {
    for seed in 0..24 {
        let (mut cluster, keys) = filled(seed, 2);
        cluster.cut(vec![0, 0, 0, 1, 1, 2]);
        cluster.run(Duration::from_secs(2));
        let is_there = |key: &&String| read(&mut cluster, 3, key).is_some();
        let there: Vec<&String> = keys.iter().filter(is_there).collect();
        there.iter().for_each(|key| write(&mut cluster, 3, key, None));
        cluster.sides = vec![0, 0, 0, 0, 0, 2];
        cluster.deliver_views(true);
        run_until_merging(&mut cluster, &[0]);
        Reader::begin(&mut cluster, 1, ListenOptions::default());
        cluster.run(Duration::from_secs(3));
        heal_and_check_all(&mut cluster, seed, there, None);
    }
}

/// Of three partitions the frames of one arrive at once and those of another late: the first one's entries expire
/// meanwhile.
#[test]
fn entries_age_while_a_merge_waits_for_another_partition() {
    let mut cluster = Cluster::settled(1, config(MergePolicy::PreferredNonNull), 6);
    cluster.cut(vec![0, 0, 0, 1, 1, 2]);
    cluster.run(Duration::from_secs(2));
    let keys: Vec<Bytes> = (0..20).map(|n| Bytes::from(format!("key {n}"))).collect();
    for key in &keys {
        let lifetime = Lifetime { lifespan: Some(Duration::from_secs(4)), max_idle: None };
        let change = Change::Put { value: Bytes::from_static(b"for a while"), lifetime };
        let write = Write { condition: Condition::Always, change, wants_previous: false };
        cluster.submit(3, key.clone(), Action::Write(write), TIMEOUT);
    }
    cluster.heal();
    run_until_merging(&mut cluster, &[0]);
    // The chunks of the third partition are late.
    cluster.slow = [0, 1, 2].map(|to| ((5, to), Duration::from_secs(5))).into();
    cluster.run(Duration::from_millis(4_500));
    cluster.slow.clear();
    for _ in 0..40 {
        cluster.run(Duration::from_millis(100));
        for key in &keys {
            let at = cluster.submit(0, key.clone(), Action::Read(ReadFrom::Nearest), TIMEOUT);
            cluster.run(Duration::from_millis(5));
            let result = &cluster.history[at].result;
            assert!(matches!(result, None | Some(Ok(Outcome::Read(None)))), "{:?}", cluster.history[at]);
        }
    }
    assert!(cluster.is_settled(), "{}", cluster.state());
}

/// Of three members that go on without the others one is lost, too, while the other two receive entries that only it
/// has. One of the two has received more than the other.
#[test]
fn segment_received_by_one_new_owner_reaches_all_if_its_provider_is_lost() {
    for seed in 0..8 {
        let (mut cluster, keys) = filled(seed, 3);
        cluster.slow.insert((3, 4), Duration::from_millis(300));
        cluster.cut(vec![0, 0, 0, 1, 1, 1]);
        run_until(&mut cluster, |cluster| {
            let topology = topology(cluster, 5);
            topology.is_some_and(|topology| topology.members.len() == 3 && topology.pending.is_some())
        });
        cluster.run(Duration::from_millis(20));
        cluster.slow.clear();
        cluster.cut(vec![0, 0, 0, 1, 2, 2]);
        cluster.run(Duration::from_secs(5));
        for segment in (0..16).map(Segment) {
            let [one, other] = [4, 5].map(|n| {
                let member = cluster.members[n].as_ref().expect("it is there");
                entries(&member.container, segment, cluster.now)
            });
            assert_eq!(one, other, "segment {segment} of seed {seed}");
        }
        heal_and_check_all(&mut cluster, seed, &keys, Some("before"));
    }
}

/// A member was merged with another one, from which it is to receive the segments of both, and splits from it before
/// it has received them. Its history has writes whose entries it lacks. A third member, with which it is merged,
/// still has the entries that those writes have replaced.
#[test]
fn a_side_whose_segments_have_not_come_whole_makes_no_older_value_stand() {
    for seed in 0..8 {
        let mut cluster = Cluster::settled(seed, config(MergePolicy::PreferredNonNull), 3);
        let keys: Vec<String> = (0..20).map(|n| format!("key {n}")).collect();
        keys.iter().for_each(|key| write(&mut cluster, 0, key, Some("before")));
        cluster.cut(vec![0, 1, 2]);
        cluster.run(Duration::from_secs(2));
        keys.iter().for_each(|key| write(&mut cluster, 2, key, Some("after")));
        cluster.sides = vec![0, 1, 1];
        cluster.deliver_views(true);
        run_until(&mut cluster, |cluster| {
            let topology = topology(cluster, 2);
            topology.is_some_and(|topology| topology.members.len() == 2 && topology.pending.is_some())
        });
        cluster.mute = [(1, 2)].into();
        cluster.run(Duration::from_millis(20));
        cluster.mute.clear();
        cluster.sides = vec![0, 1, 0];
        cluster.deliver_views(true);
        cluster.run(Duration::from_secs(5));
        heal_and_check_all(&mut cluster, seed, &keys, Some("after"));
    }
}
