//! The progress of a rebalance, as reported by the member that waits for segments.

use std::time::Duration;

use bytes::Bytes;
use consort_grid::{
    Action, CacheConfig, CacheMode, Change, Condition, Lifetime, PartitionHandling, Progress, Write,
};
use consort_group::{View, ViewId};

use crate::cluster::{Cluster, address};

const VALUE: usize = 1_000;
const KEYS: u32 = 400;

fn put_all(cluster: &mut Cluster) {
    for number in 0..KEYS {
        let change = Change::Put { value: Bytes::from(vec![7; VALUE]), lifetime: Lifetime::FOREVER };
        let write = Write { condition: Condition::Always, change, wants_previous: false };
        let key = Bytes::copy_from_slice(&number.to_be_bytes());
        cluster.submit(0, key, Action::Write(write), Duration::from_secs(10));
    }
    cluster.run(Duration::from_secs(1));
}

fn progress(cluster: &Cluster, n: usize) -> Progress {
    let node = &cluster.members[n].as_ref().expect("alive").node;
    node.stats().progress(cluster.cache())
}

/// Issue 3: segments and bytes left. With a small budget chunks are small, so the estimate is checked often.
#[test]
fn remaining_rebalance_is_reported_in_segments_and_bytes() {
    let mode = CacheMode::Distributed { owners: 1 };
    let mut cluster = Cluster::new(1, CacheConfig { mode, segments: 32, ..CacheConfig::new("c") });
    cluster.start();
    cluster.run(Duration::from_secs(1));
    put_all(&mut cluster);
    assert_eq!(progress(&cluster, 0), Progress::default());
    cluster.start();
    let budget = 8 * VALUE as u32;
    cluster.with(1, |node, _| node.set_transfer_budget(budget));
    let until = cluster.now + Duration::from_secs(5);
    let mut seen: Vec<Progress> = Vec::new();
    while cluster.step(until) {
        let now = progress(&cluster, 1);
        if seen.last() != Some(&now) {
            seen.push(now);
        }
    }
    assert_eq!(seen.last(), Some(&Progress::default()), "all is here, and the next rebalance has not begun");
    let most = seen.iter().map(|now| now.bytes_pulled).max().expect("some");
    assert!(most > 100 * VALUE as u64, "half of the keys: {most}");
    let mut before = 0;
    for now in seen.iter().filter(|now| now.bytes_pulled > 0) {
        let all = now.bytes_pulled + now.bytes_left;
        assert!((most / 2..most * 2).contains(&all), "{now:?} of {most}");
        assert!(now.segments_left > 0 || now.bytes_left == 0, "{now:?}");
        // A chunk may have one entry more.
        let come = now.bytes_pulled - before;
        assert!(come <= u64::from(budget) + VALUE as u64 + 4, "{come} bytes at once");
        before = now.bytes_pulled;
    }
}

/// Seed 8034 of `sim --grid --members 2`: the rebalance was taken for complete, and the entries that were not
/// transferred were lost.
#[test]
fn segments_of_members_that_are_away_are_waited_for() {
    let partitions = PartitionHandling::DenyReadWrites;
    let mut cluster = Cluster::new(2, CacheConfig { partitions, segments: 32, ..CacheConfig::new("c") });
    cluster.start();
    cluster.run(Duration::from_secs(1));
    put_all(&mut cluster);
    cluster.start();
    cluster.with(1, |node, _| node.set_transfer_budget(VALUE as u32));
    while progress(&cluster, 1).bytes_pulled == 0 {
        assert!(cluster.step(cluster.now + Duration::from_secs(5)), "it begins to pull");
    }
    // The other member is cut off, and does not know it.
    cluster.sides = vec![0, 1];
    let alone = View::new(ViewId { creator: address(1), id: 100 }, vec![address(1)]);
    cluster.with(1, |node, now| node.handle_view(now, &alone));
    cluster.run(Duration::from_secs(10));
    assert!(progress(&cluster, 1).segments_left > 0);
    cluster.heal();
    cluster.run(Duration::from_secs(10));
    assert!(cluster.is_settled(), "{}", cluster.state());
    cluster.check_agreement();
    let held: Vec<u64> = cluster.members.iter().flatten().map(|member| member.container.len()).collect();
    assert_eq!(held, [u64::from(KEYS); 2]);
}
