//! What is left of a cache of which too many members are away.

use std::time::Duration;

use bytes::Bytes;
use consort_grid::{
    Action, CacheConfig, CacheMode, Change, Condition, Lifetime, OperationError, Outcome, PartitionHandling,
    ReadFrom, Write,
};

use crate::clients::TIMEOUT;
use crate::cluster::Cluster;

const KEYS: u8 = 32;

/// Much longer than an answer takes, much shorter than an operation may.
const AT_ONCE: Duration = Duration::from_millis(30);

fn key(n: u8) -> Bytes {
    Bytes::from(vec![n])
}

/// Two members of which each is the primary of some keys, and has all of them.
fn cluster(partitions: PartitionHandling) -> Cluster {
    let config =
        CacheConfig { segments: 16, mode: CacheMode::Replicated, partitions, ..CacheConfig::new("c") };
    let mut cluster = Cluster::settled(1, config, 2);
    for n in 0..KEYS {
        let change = Change::Put { value: key(n), lifetime: Lifetime::FOREVER };
        let write = Write { condition: Condition::Always, change, wants_previous: false };
        let at = cluster.submit(0, key(n), Action::Write(write), TIMEOUT);
        cluster.run(AT_ONCE);
        assert!(matches!(cluster.history[at].result, Some(Ok(_))), "{}", cluster.state());
    }
    cluster
}

/// How many keys were read as they are, and for how many it was said that it is not possible.
fn told(cluster: &Cluster, asked: &[usize]) -> (usize, usize) {
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

fn ask(cluster: &mut Cluster, from: ReadFrom) -> Vec<usize> {
    (0..KEYS).map(|n| cluster.submit(0, key(n), Action::Read(from), TIMEOUT)).collect()
}

#[test]
fn a_read_is_answered_by_who_is_left_or_refused_at_once() {
    let all = usize::from(KEYS);
    for (partitions, from) in [
        (PartitionHandling::AllowReads, ReadFrom::Nearest),
        (PartitionHandling::AllowReads, ReadFrom::Primary),
        (PartitionHandling::DenyReadWrites, ReadFrom::Nearest),
        (PartitionHandling::DenyReadWrites, ReadFrom::Primary),
    ] {
        let mut cluster = cluster(partitions);
        cluster.crash(1);
        // Nobody knows it yet.
        let early = ask(&mut cluster, from);
        cluster.run(AT_ONCE);
        cluster.announce(false);
        cluster.run(Duration::from_secs(1));
        let late = ask(&mut cluster, from);
        cluster.run(AT_ONCE);
        let (early, late) = (told(&cluster, &early), told(&cluster, &late));
        match (partitions, from) {
            (PartitionHandling::AllowReads, ReadFrom::Nearest) => {
                assert_eq!((early, late), ((all, 0), (all, 0)));
            }
            (PartitionHandling::AllowReads, ReadFrom::Primary) => {
                assert_eq!(early, late);
                assert!(early.0 > 0 && early.1 > 0, "each is the primary of some: {early:?}");
            }
            _ => {
                // What was here to be read was, until it was known.
                assert!(early.0 > 0 && early.0 + early.1 == all, "{early:?}");
                assert_eq!(late, (0, all));
            }
        }
    }
}
