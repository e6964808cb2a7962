//! The keys that an iteration returns to a caller that clears a cache: also keys whose removal is in progress, from
//! an owner that has not received the removal.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use consort_grid::{Next, Projection, Publication};

use crate::clients::TIMEOUT;
use crate::cluster::Cluster;
use crate::flags;
use crate::iteration::{begin, key, next, populated, remove};

/// Returns the keys that an iteration returns without waiting for other members.
fn given_at_once(cluster: &mut Cluster, n: usize, projection: Projection) -> Vec<Bytes> {
    let id = begin(cluster, n, Publication { projection, ..Publication::default() });
    let mut keys = Vec::new();
    while let Next::Items(items) = next(cluster, n, id) {
        keys.extend(items.into_iter().map(|item| item.key));
    }
    keys
}

/// Delays all frames of one of three members.
fn keep_back(cluster: &mut Cluster, member: usize) {
    for other in (0..3).filter(|other| *other != member) {
        cluster.slow.insert((member, other), Duration::from_secs(5));
    }
}

#[test]
fn a_key_can_be_removed_while_an_owner_has_not_heard_of_its_removal() {
    for seed in 0..20 {
        let mut cluster = populated(seed, 3, 300);
        let gone = key(seed);
        let primary = flags::primary(&cluster, &gone);
        keep_back(&mut cluster, primary);
        let removal = cluster.submit(primary, gone.clone(), remove(), TIMEOUT);
        assert!(!given_at_once(&mut cluster, primary, Projection::Keys).contains(&gone));
        assert!(given_at_once(&mut cluster, primary, Projection::Removable).contains(&gone));
        cluster.slow.clear();
        cluster.run(Duration::from_secs(10));
        assert!(matches!(cluster.history[removal].result, Some(Ok(_))));
        assert!(!given_at_once(&mut cluster, primary, Projection::Removable).contains(&gone));
    }
}

#[test]
fn removals_in_progress_are_returned_once_with_a_small_batch() {
    let mut cluster = populated(3, 3, 300);
    let primary = flags::primary(&cluster, &key(0));
    keep_back(&mut cluster, primary);
    let own: Vec<u64> = (0..300).filter(|n| flags::primary(&cluster, &key(*n)) == primary).collect();
    for n in &own {
        cluster.submit(primary, key(*n), remove(), TIMEOUT);
    }
    let cache = cluster.cache();
    let publication =
        Publication { projection: Projection::Removable, batch: 4, lanes: 1, ..Publication::default() };
    let id = cluster.with(primary, |node, _| node.iterate(cache, publication)).unwrap().unwrap();
    let mut came = Vec::new();
    while let Next::Items(items) = next(&mut cluster, primary, id) {
        came.extend(items.into_iter().map(|item| item.key));
    }
    let expected: BTreeSet<Bytes> = own.iter().map(|n| key(*n)).collect();
    let given: BTreeSet<Bytes> = came.iter().filter(|key| expected.contains(*key)).cloned().collect();
    assert_eq!(given, expected);
    assert_eq!(came.iter().filter(|key| expected.contains(*key)).count(), expected.len());
}

#[test]
fn removals_that_begin_while_a_walk_is_in_their_segment_come_to_it() {
    let mut cluster = populated(3, 3, 300);
    let primary = flags::primary(&cluster, &key(0));
    keep_back(&mut cluster, primary);
    let cache = cluster.cache();
    let publication =
        Publication { projection: Projection::Removable, batch: 1, lanes: 1, ..Publication::default() };
    let id = cluster.with(primary, |node, _| node.iterate(cache, publication)).unwrap().unwrap();
    let own: BTreeSet<u64> = (0..300).filter(|n| flags::primary(&cluster, &key(*n)) == primary).collect();
    let mut came = BTreeSet::new();
    while !own.iter().any(|n| came.contains(&key(*n))) {
        let Next::Items(items) = next(&mut cluster, primary, id) else { panic!("it has some") };
        came.extend(items.into_iter().map(|item| item.key));
    }
    // All of them, including those of the iteration's current segment.
    for n in &own {
        cluster.submit(primary, key(*n), remove(), TIMEOUT);
    }
    while let Next::Items(items) = next(&mut cluster, primary, id) {
        came.extend(items.into_iter().map(|item| item.key));
    }
    let missing: Vec<&u64> = own.iter().filter(|n| !came.contains(&key(**n))).collect();
    assert!(missing.is_empty(), "{missing:?} of {}", own.len());
}
