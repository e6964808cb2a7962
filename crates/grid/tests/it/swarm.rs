//! Clients read and write while members join, leave, crash and are cut off; then the tests check the history and all
//! entries.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::clients::{Clients, TIMEOUT};
use crate::cluster::{Cluster, Done};
use crate::faults::Faults;
use crate::seeds::every_seed;
use bytes::Bytes;
use consort_grid::{
    Action, CacheConfig, CacheMode, Change, Condition, Lifetime, OperationError, Outcome, PartitionHandling,
    ReadFrom, Version, Write,
};
use consort_group::Time;

fn put(value: Bytes, condition: Condition) -> Action {
    let change = Change::Put { value, lifetime: Lifetime::FOREVER };
    Action::Write(Write { condition, change, wants_previous: false })
}

fn next_action(cluster: &mut Cluster, nth: usize, seen: Option<Version>) -> Action {
    let value = Bytes::from(format!("v{nth}"));
    match cluster.rng.below(10) {
        0..4 => Action::Read(if cluster.rng.chance(0.3) { ReadFrom::Primary } else { ReadFrom::Nearest }),
        4..7 => put(value, Condition::Always),
        7 => put(value, Condition::Absent),
        8 => put(value, Condition::Version(seen.unwrap_or(Version::NONE))),
        _ => Action::Write(Write {
            condition: Condition::Always,
            change: Change::Remove,
            wants_previous: true,
        }),
    }
}

fn run(seed: u64, is_told: bool) -> Cluster {
    let mut config = CacheConfig::new("sim");
    let mut cluster = Cluster::new(seed, config.clone());
    let owners = 1 + cluster.rng.below(3) as u16;
    let faults = if owners == 1 { 0 } else { cluster.rng.below(8) };
    config.segments = 1 + cluster.rng.below(16) as u16;
    config.mode =
        if cluster.rng.chance(0.2) { CacheMode::Replicated } else { CacheMode::Distributed { owners } };
    cluster.config = config;
    if cluster.rng.chance(0.5) {
        cluster.config.partitions = PartitionHandling::DenyReadWrites;
    }
    let count = 1 + cluster.rng.below(5);
    let mut clients = Clients::start(&mut cluster, count, 3);
    let keys = 1 + cluster.rng.below(12);
    let end = cluster.now + Duration::from_secs(4);
    let mut faults = Faults::new(&cluster, faults, true);
    work(&mut cluster, &mut clients, keys, end, |cluster| faults.strike(cluster));
    faults.end(&mut cluster);
    cluster.run(Duration::from_secs(30));
    if is_told {
        println!("{}", cluster.story.join("\n"));
    }
    cluster
}

/// Clients read and write keys until this time; `strike` may change the cluster, and returns a member that has joined.
pub(crate) fn work(
    cluster: &mut Cluster,
    clients: &mut Clients,
    keys: u64,
    end: Time,
    mut strike: impl FnMut(&mut Cluster) -> Option<usize>,
) {
    let mut seen: BTreeMap<Bytes, Version> = BTreeMap::new();
    while cluster.now < end {
        clients.begin(cluster, |cluster| {
            let key = Bytes::from(format!("k{}", cluster.rng.below(keys)));
            let nth = cluster.history.len();
            let action = next_action(cluster, nth, seen.get(&key).copied());
            Some((key, action))
        });
        for at in clients.pass(cluster) {
            if let Some(Ok(Outcome::Read(Some(stored)))) = &cluster.history[at].result {
                seen.insert(cluster.history[at].key.clone(), stored.version);
            }
        }
        if let Some(member) = strike(cluster) {
            clients.add(member, 2);
        }
    }
}

pub(crate) fn version_of(done: &Done) -> Option<Version> {
    match (&done.result, &done.action) {
        (Some(Ok(Outcome::Written(written))), Action::Write(write)) if written.is_done => {
            let is_change = written.was_present || write.change != Change::Remove;
            is_change.then_some(written.version)
        }
        _ => None,
    }
}

fn is_removal(done: &Done) -> bool {
    matches!(&done.action, Action::Write(write) if write.change == Change::Remove)
}

/// Whether a write has failed without a change.
fn is_undone(done: &Done) -> bool {
    let may_be_done = |error: &OperationError| {
        matches!(
            error,
            OperationError::TimedOut(_) | OperationError::Uncertain | OperationError::StoreWriteFailed { .. }
        )
    };
    matches!(&done.result, Some(Err(error)) if !may_be_done(error))
}

/// Checks that after a write is acknowledged, reads return its value or a newer one, and only written values.
pub(crate) fn check_history(cluster: &Cluster) {
    let mut by_key: BTreeMap<&Bytes, Vec<&Done>> = BTreeMap::new();
    for done in &cluster.history {
        by_key.entry(&done.key).or_default().push(done);
    }
    for (key, all) in by_key {
        let acknowledged: Vec<(&Done, Version)> =
            all.iter().filter_map(|done| Some((*done, version_of(done)?))).collect();
        let mut versions: BTreeMap<Version, &Done> = BTreeMap::new();
        for (done, version) in &acknowledged {
            if let Some(other) = versions.insert(*version, done) {
                panic!("{key:?}: two writes have version {version}: {done:?} and {other:?}");
            }
        }
        for read in &all {
            let (Some(Ok(Outcome::Read(found))), Some(ended)) = (&read.result, read.ended) else { continue };
            if read.is_apart {
                continue;
            }
            let before =
                acknowledged.iter().filter(|(write, _)| write.ended.is_some_and(|at| at < read.began));
            let last = before.max_by_key(|(_, version)| *version);
            if let Some(stored) = found {
                let writer = all.iter().find(|done| {
                    matches!(&done.action, Action::Write(Write { change: Change::Put { value, .. }, .. })
                        if *value == stored.value)
                });
                let writer = writer.unwrap_or_else(|| panic!("{key:?}: no writer of {stored:?}"));
                assert!(writer.began <= ended, "{key:?}: {stored:?} was read before it was written");
                assert!(!is_undone(writer), "{key:?}: {stored:?} was read of {writer:?}");
            }
            let Some((last, version)) = last else { continue };
            match found {
                Some(stored) => {
                    assert!(stored.version >= *version, "{key:?}: {read:?} is older than {last:?}");
                }
                None => {
                    let may_follow = |done: &&&Done| {
                        is_removal(done)
                            && done.began <= ended
                            // A failed write may still be applied.
                            && (matches!(done.result, Some(Err(_))) || done.ended.is_none_or(|at| at >= last.began))
                            && version_of(done).is_none_or(|own| own >= *version)
                    };
                    let removal = all.iter().find(may_follow);
                    assert!(removal.is_some(), "{key:?}: {read:?} misses {last:?}");
                }
            }
        }
    }
}

fn check(seed: u64, is_told: bool) {
    let cluster = run(seed, is_told);
    let late = cluster.history.iter().find(|done| {
        cluster.members[done.member].as_ref().is_some_and(|member| !member.is_left)
            && done.ended.is_none_or(|at| at.since(done.began) > TIMEOUT + Duration::from_secs(1))
    });
    assert!(late.is_none(), "{late:?} hangs");
    assert!(cluster.is_settled(), "no stable topology:\n{}", cluster.state());
    check_history(&cluster);
    cluster.check_agreement();
}

#[test]
fn acknowledged_writes_are_read_whatever_happens() {
    every_seed(40, check);
}

#[test]
fn most_operations_succeed() {
    let cluster = run(3, false);
    let good = cluster.history.iter().filter(|done| matches!(done.result, Some(Ok(_)))).count();
    assert!(good > 1_000, "{good} of {}", cluster.history.len());
    let errors: Vec<&OperationError> =
        cluster.history.iter().filter_map(|done| done.result.as_ref()?.as_ref().err()).collect();
    assert!(errors.len() < good / 2, "{} of {good}", errors.len());
}
