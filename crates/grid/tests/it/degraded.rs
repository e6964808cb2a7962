//! Degraded caches, of which too many members are unreachable.

use std::time::Duration;

use bytes::Bytes;
use consort_grid::{
    Action, CacheConfig, CacheMode, Change, Condition, Lifetime, OperationError, Outcome, PartitionHandling,
    ReadFrom, Write,
};

use crate::clients::TIMEOUT;
use crate::cluster::Cluster;

const KEYS: u8 = 32;

/// Much longer than a response takes, much shorter than the timeout of an operation.
const AT_ONCE: Duration = Duration::from_millis(30);

fn key(n: u8) -> Bytes {
    Bytes::from(vec![n])
}

/// Creates two members of which each is the primary of some keys, and has all of them.
fn cluster(partitions: PartitionHandling) -> Cluster {
    cluster_of(2, CacheMode::Replicated, partitions)
}

fn cluster_of(members: usize, mode: CacheMode, partitions: PartitionHandling) -> Cluster {
    let config = CacheConfig { segments: 16, mode, partitions, ..CacheConfig::new("c") };
    let mut cluster = Cluster::settled(1, config, members);
    for n in 0..KEYS {
        let change = Change::Put { value: key(n), lifetime: Lifetime::FOREVER };
        let write = Write { condition: Condition::Always, change, wants_previous: false };
        let at = cluster.submit(0, key(n), Action::Write(write), TIMEOUT);
        cluster.run(AT_ONCE);
        assert!(matches!(cluster.history[at].result, Some(Ok(_))), "{}", cluster.state());
    }
    cluster
}

/// Returns the number of keys that were read, and the number of keys refused as degraded.
fn count_outcomes(cluster: &Cluster, asked: &[usize]) -> (usize, usize) {
    let (mut read, mut refused) = (0, 0);
    for at in asked {
        match &cluster.history[*at].result {
            Some(Ok(Outcome::Read(Some(_)))) => read += 1,
            Some(Err(OperationError::Degraded { .. })) => refused += 1,
            other => panic!("{other:?}"),
        }
    }
    (read, refused)
}

fn read_all(cluster: &mut Cluster, from: ReadFrom) -> Vec<usize> {
    (0..KEYS).map(|n| cluster.submit(0, key(n), Action::Read(from), TIMEOUT)).collect()
}

#[test]
fn read_gets_a_response_from_a_remaining_owner_or_is_refused_at_once() {
    let all = usize::from(KEYS);
    for (partitions, from) in [
        (PartitionHandling::AllowReads, ReadFrom::Nearest),
        (PartitionHandling::AllowReads, ReadFrom::Primary),
        (PartitionHandling::DenyReadWrites, ReadFrom::Nearest),
        (PartitionHandling::DenyReadWrites, ReadFrom::Primary),
    ] {
        let mut cluster = cluster(partitions);
        cluster.crash(1);
        // No member has detected it yet.
        let early = read_all(&mut cluster, from);
        cluster.run(AT_ONCE);
        cluster.deliver_views(false);
        cluster.run(Duration::from_secs(1));
        let late = read_all(&mut cluster, from);
        cluster.run(AT_ONCE);
        let (early, late) = (count_outcomes(&cluster, &early), count_outcomes(&cluster, &late));
        match (partitions, from) {
            (PartitionHandling::AllowReads, ReadFrom::Nearest) => {
                assert_eq!((early, late), ((all, 0), (all, 0)));
            }
            (PartitionHandling::AllowReads, ReadFrom::Primary) => {
                assert_eq!(early, late);
                assert!(early.0 > 0 && early.1 > 0, "each is the primary of some: {early:?}");
            }
            _ => {
                // Local entries were read until the loss was detected.
                assert!(early.0 > 0 && early.0 + early.1 == all, "{early:?}");
                assert_eq!(late, (0, all));
            }
        }
    }
}

/// Whether the first member, which ends, leaves the cache at once.
fn leaves_degraded(cluster: &mut Cluster) -> bool {
    let cache = cluster.cache();
    let is_done = cluster.with(0, |node, now| node.leave_behind(now, cache)).expect("it lives");
    let is_left = cluster.members[0].as_ref().is_some_and(|member| member.is_left);
    assert_eq!(is_done, is_left, "{}", cluster.state());
    is_done
}

#[test]
fn last_member_does_not_wait_for_lost_members_whose_data_it_has() {
    for partitions in [PartitionHandling::AllowReads, PartitionHandling::DenyReadWrites] {
        let mut cluster = cluster(partitions);
        cluster.crash(1);
        cluster.leave(0);
        cluster.run(Duration::from_secs(1));
        assert!(
            !leaves_degraded(&mut cluster),
            "the loss is not known yet, and the living member receives its entries"
        );
        cluster.deliver_views(false);
        cluster.run(AT_ONCE);
        assert!(leaves_degraded(&mut cluster));
    }
}

#[test]
fn nothing_is_left_behind_that_only_this_member_has_or_that_others_here_may_be_given() {
    let deny = PartitionHandling::DenyReadWrites;
    let lost_of = |members, mode, lost: &[usize]| {
        let mut cluster = cluster_of(members, mode, deny);
        lost.iter().for_each(|&n| cluster.crash(n));
        cluster.leave(0);
        cluster.deliver_views(false);
        cluster.run(Duration::from_secs(1));
        cluster
    };
    let one = CacheMode::Distributed { owners: 1 };
    assert!(!leaves_degraded(&mut lost_of(2, one, &[1])), "some keys are here alone");
    assert!(!leaves_degraded(&mut lost_of(4, CacheMode::Replicated, &[1, 2])), "another member is here");
    assert!(leaves_degraded(&mut lost_of(4, CacheMode::Replicated, &[1, 2, 3])));
    let mut stays = cluster(deny);
    stays.crash(1);
    stays.deliver_views(false);
    stays.run(Duration::from_secs(1));
    assert!(!leaves_degraded(&mut stays), "it does not want to leave");
}

/// The leaver's vote is missing then, as after a crash; no written data is missing.
#[test]
fn disconnected_member_continues_with_the_remaining_data() {
    let mut cluster = cluster(PartitionHandling::DenyReadWrites);
    cluster.cut(vec![0, 1]);
    cluster.leave(0);
    cluster.run(Duration::from_secs(1));
    assert!(leaves_degraded(&mut cluster));
    cluster.crash(0);
    cluster.heal();
    cluster.run(Duration::from_secs(1));
    let cache = cluster.cache();
    cluster.with(1, |node, now| node.make_available(now, cache));
    cluster.run(Duration::from_secs(1));
    let asked: Vec<usize> =
        (0..KEYS).map(|n| cluster.submit(1, key(n), Action::Read(ReadFrom::Primary), TIMEOUT)).collect();
    cluster.run(AT_ONCE);
    assert_eq!(count_outcomes(&cluster, &asked), (usize::from(KEYS), 0), "{}", cluster.state());
}
