//! Silent owners that are still members: reads go to other owners.

use std::time::Duration;

use consort_grid::{Action, OperationError, Outcome, ReadFrom};

use crate::clients::TIMEOUT;
use crate::cluster::{Cluster, address};
use crate::listeners::{key, settled, write};
use crate::listening::put;

const KEYS: u64 = 40;

/// Returns a cluster of four with keys that have two owners, of which the last member is silent.
fn hung(seed: u64) -> Cluster {
    let mut cluster = settled(seed, 4, 2);
    for n in 0..KEYS {
        write(&mut cluster, 0, n, put("one", None));
    }
    for other in 0..3 {
        cluster.mute.extend([(3, other), (other, 3)]);
    }
    cluster
}

fn read(cluster: &mut Cluster, n: u64, from: ReadFrom) -> usize {
    cluster.submit(0, key(n), Action::Read(from), TIMEOUT)
}

fn is_found(cluster: &Cluster, at: usize) -> bool {
    matches!(&cluster.history[at].result, Some(Ok(Outcome::Read(Some(_)))))
}

#[test]
fn reads_at_an_owner_from_which_nothing_comes_move_to_another_owner() {
    for seed in 0..10 {
        let mut cluster = hung(seed);
        let reads: Vec<usize> = (0..KEYS).map(|n| read(&mut cluster, n, ReadFrom::Nearest)).collect();
        cluster.run(Duration::from_millis(50));
        let waiting = reads.iter().filter(|at| !is_found(&cluster, **at)).count();
        assert!(waiting > 0, "seed {seed}: none was asked for at the silent member");
        cluster.run(Duration::from_millis(850));
        assert!(reads.iter().all(|at| is_found(&cluster, *at)), "seed {seed}");
        // Later reads go to other owners at once, until a frame of the silent one arrives.
        let reads: Vec<usize> = (0..KEYS).map(|n| read(&mut cluster, n, ReadFrom::Nearest)).collect();
        cluster.run(Duration::from_millis(50));
        assert!(reads.iter().all(|at| is_found(&cluster, *at)), "seed {seed}");
    }
}

#[test]
fn reads_go_elsewhere_at_once_when_the_channel_says_that_an_owner_is_silent() {
    let mut cluster = hung(1);
    let under_way: Vec<usize> = (0..KEYS).map(|n| read(&mut cluster, n, ReadFrom::Nearest)).collect();
    cluster.with(0, |node, now| node.handle_silence(now, &[address(3)]));
    let later: Vec<usize> = (0..KEYS).map(|n| read(&mut cluster, n, ReadFrom::Nearest)).collect();
    cluster.run(Duration::from_millis(50));
    assert!(under_way.iter().chain(&later).all(|at| is_found(&cluster, *at)));
}

/// Reads at the primary are served by no other member.
#[test]
fn reads_at_a_silent_primary_wait_for_it() {
    let mut cluster = hung(2);
    let reads: Vec<usize> = (0..KEYS).map(|n| read(&mut cluster, n, ReadFrom::Primary)).collect();
    cluster.run(Duration::from_secs(5));
    let results = || reads.iter().map(|at| &cluster.history[*at].result);
    assert!(results().any(Option::is_none), "some have that primary");
    assert!(!results().any(|result| matches!(result, Some(Err(OperationError::TimedOut(_))))));
    cluster.mute.clear();
    cluster.run(Duration::from_secs(5));
    assert!(reads.iter().all(|at| is_found(&cluster, *at)));
}

/// The reader repeats its request to the only owner, as often as usual.
#[test]
fn a_read_with_one_owner_is_not_moved() {
    let mut cluster = settled(3, 3, 1);
    for n in 0..KEYS {
        write(&mut cluster, 0, n, put("one", None));
    }
    cluster.mute.extend([(2, 0), (0, 2)]);
    let reads: Vec<usize> = (0..KEYS).map(|n| read(&mut cluster, n, ReadFrom::Nearest)).collect();
    cluster.run(Duration::from_millis(900));
    let repeated = cluster.with(0, |node, _| node.stats().counters().repeated).unwrap();
    assert_eq!(repeated, 0);
    cluster.mute.clear();
    cluster.run(Duration::from_secs(5));
    assert!(reads.iter().all(|at| is_found(&cluster, *at)));
}
