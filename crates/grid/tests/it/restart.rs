//! Restarts of whole clusters with the data of their stores.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use consort_grid::{
    Action, CacheConfig, CacheMode, Change, Condition, Lifetime, MergePolicy, OperationError, Outcome,
    PartitionHandling, Phase, ReadFrom, Write,
};
use consort_sim::SimStore;
use consort_store::{Crash, Durability, FileStore, FileStoreConfig, SimDisk, Store};

use crate::cluster::{Cluster, address};
use crate::persistence::{
    SEGMENTS, TIMEOUT, config, fill, filled, get, is_restored, key, memory_stores, put, remove, result,
    start, start_all, stored, value,
};
use crate::seeds::every_seed;

fn open(disk: &SimDisk, durability: Durability) -> Arc<dyn Store> {
    let config = FileStoreConfig {
        segments: SEGMENTS,
        durability,
        file_bytes_max: 4096,
        ..FileStoreConfig::default()
    };
    match FileStore::open_on(Arc::new(disk.clone()), config) {
        Ok(store) => Arc::new(store),
        Err(error) => panic!("does not open: {error}"),
    }
}

fn crash_all(cluster: &mut Cluster) {
    for n in cluster.live_members() {
        cluster.crash(n);
    }
}

#[test]
fn cold_start_restores_all_entries_once_all_members_have_returned() {
    let (mut cluster, stores) = filled(1, 200);
    assert!(result(&mut cluster, 0, key(7), remove()).is_ok());
    crash_all(&mut cluster);
    let first = start_all(&mut cluster, &stores[..2]);
    cluster.run(Duration::from_secs(30));
    assert!(first.iter().all(|&n| !is_restored(&cluster, n)), "one is missing");
    let at = cluster.submit(first[0], key(3), Action::Read(ReadFrom::Nearest), Duration::from_secs(60));
    let last = start(&mut cluster, &stores[2], None, false);
    cluster.run(Duration::from_secs(3));
    assert!(cluster.is_settled(), "{}", cluster.state());
    let Some(Ok(Outcome::Read(Some(read)))) = &cluster.history[at].result else { panic!("it has waited") };
    assert_eq!(read.value, value(3));
    for n in 0..200 {
        assert_eq!(get(&mut cluster, last, key(n)), (n != 7).then(|| value(n)));
    }
    cluster.check_agreement();
    // A third restart, after writes in the second.
    assert!(result(&mut cluster, last, key(7), put(7)).is_ok());
    assert!(result(&mut cluster, last, key(8), remove()).is_ok());
    crash_all(&mut cluster);
    let again = start_all(&mut cluster, &stores);
    cluster.run(Duration::from_secs(3));
    for n in 0..200 {
        assert_eq!(get(&mut cluster, again[n % 3], key(n)), (n != 8).then(|| value(n)));
    }
    assert_eq!(stores.iter().map(stored).sum::<u64>(), 398);
}

#[test]
fn remaining_data_is_used_without_missing_members_on_request() {
    let (mut cluster, stores) = filled(2, 200);
    crash_all(&mut cluster);
    let back = start_all(&mut cluster, &stores[..2]);
    cluster.run(Duration::from_secs(2));
    assert!(!is_restored(&cluster, back[0]));
    let cache = cluster.cache();
    cluster.with(back[1], |node, now| node.make_available(now, cache));
    cluster.run(Duration::from_secs(3));
    assert!(cluster.is_settled(), "{}", cluster.state());
    // Two owners each, so that the loss of one member loses no entries.
    for n in 0..200 {
        assert_eq!(get(&mut cluster, back[n % 2], key(n)), Some(value(n)));
    }
    // A member that joins later finds a running cache, and has no say.
    assert!(result(&mut cluster, back[0], key(5), remove()).is_ok());
    let late = start(&mut cluster, &stores[2], None, false);
    cluster.run(Duration::from_secs(3));
    assert!(cluster.is_settled(), "{}", cluster.state());
    assert_eq!(get(&mut cluster, late, key(5)), None);
    assert_eq!(stores.iter().map(stored).sum::<u64>(), 398);
}

#[test]
fn a_member_that_had_gone_before_brings_nothing_back() {
    let (mut cluster, stores) = filled(3, 100);
    cluster.crash(0);
    cluster.deliver_views(false);
    cluster.run(Duration::from_secs(3));
    for n in 0..50 {
        assert!(result(&mut cluster, 1, key(n), remove()).is_ok());
    }
    crash_all(&mut cluster);
    // The member that had stopped first is back first, and does not go on by itself.
    let stale = start(&mut cluster, &stores[0], None, false);
    cluster.run(Duration::from_secs(3));
    assert!(!is_restored(&cluster, stale));
    start_all(&mut cluster, &stores[1..]);
    cluster.run(Duration::from_secs(5));
    assert!(cluster.is_settled(), "{}", cluster.state());
    for n in 0..100 {
        assert_eq!(get(&mut cluster, stale, key(n)), (n >= 50).then(|| value(n)));
    }
    assert_eq!(stores.iter().map(stored).sum::<u64>(), 100);
}

/// Of two partitions that have stopped without a merge, the one that is back first goes on. A member that returns
/// with the other one's data discards it, however high its topology id is.
#[test]
fn member_returning_from_another_partition_drops_that_partitions_entries() {
    let mut cluster =
        Cluster::new(4, CacheConfig { partitions: PartitionHandling::AllowReadWrites, ..config() });
    let stores = memory_stores(3);
    start_all(&mut cluster, &stores);
    cluster.run(Duration::from_secs(2));
    fill(&mut cluster, 3, 20);
    cluster.cut(vec![0, 0, 1]);
    cluster.run(Duration::from_secs(2));
    for n in 0..20 {
        assert!(result(&mut cluster, 2, key(n), put(n + 100)).is_ok());
    }
    crash_all(&mut cluster);
    let first = start_all(&mut cluster, &stores[..2]);
    cluster.run(Duration::from_secs(2));
    assert!(first.iter().all(|&n| is_restored(&cluster, n)), "{}", cluster.state());
    start(&mut cluster, &stores[2], None, false);
    cluster.run(Duration::from_secs(3));
    assert!(cluster.is_settled(), "{}", cluster.state());
    cluster.check_agreement();
    for n in 0..20 {
        assert_eq!(get(&mut cluster, first[0], key(n)), Some(value(n)));
    }
    assert_eq!(stores.iter().map(stored).sum::<u64>(), 40);
}

/// Returns whether the first member of a cluster goes on alone after a restart. Its store was slow while all its
/// segments moved to a second member, and a write was applied there.
fn goes_on_alone(mut cluster: Cluster) -> bool {
    cluster.config.mode = CacheMode::Distributed { owners: 1 };
    let stores = memory_stores(2);
    let first = start(&mut cluster, &stores[0], None, false);
    cluster.run(Duration::from_secs(1));
    let slow = SimStore::new(stores[0].clone()).with_delay(Duration::from_secs(1));
    cluster.members[first].as_mut().expect("a member").beside = Some(slow);
    let second = start(&mut cluster, &stores[1], None, false);
    let seconds = |cluster: &Cluster| {
        let topology = cluster.members[second].as_ref()?.node.topology(cluster.cache())?;
        let is_its = |n: &usize| {
            topology.current.primary(topology.current.segment_of(&key(*n))) == Some(&address(second))
        };
        (0..100).find(is_its).filter(|_| topology.phase == Phase::Stable)
    };
    let moved = (0..10_000).find_map(|_| {
        cluster.run(Duration::from_millis(1));
        seconds(&cluster)
    });
    let moved = moved.unwrap_or_else(|| panic!("nothing moves: {}", cluster.state()));
    let at = cluster.submit(second, key(moved), put(moved), TIMEOUT);
    while cluster.history[at].result.is_none() {
        let next = cluster.now + Duration::from_millis(1);
        cluster.step(next);
    }
    assert!(matches!(cluster.history[at].result, Some(Ok(_))));
    crash_all(&mut cluster);
    let back = start(&mut cluster, &stores[0], None, false);
    cluster.run(Duration::from_secs(3));
    is_restored(&cluster, back)
}

#[test]
fn first_returning_member_does_not_start_from_older_data() {
    for seed in 0..20 {
        assert!(!goes_on_alone(Cluster::new(seed, config())), "seed {seed}");
    }
}

#[cfg(feature = "injected-bugs")]
#[test]
fn injected_bug_confirmation_before_the_store_makes_a_member_continue_alone() {
    let found = (0..20).find(|&seed| {
        let mut cluster = Cluster::new(seed, config());
        cluster.injected_bug = Some(consort_grid::InjectedBug::NoteNotAwaited);
        goes_on_alone(cluster)
    });
    assert!(found.is_some());
    println!(
        "| NoteNotAwaited | {} | who comes back first goes on alone |",
        found.map_or(0, |seed| seed + 1)
    );
}

#[test]
fn data_of_another_beginning_is_refused_and_not_touched() {
    let mut cluster = Cluster::new(4, config());
    let stores = memory_stores(2);
    start(&mut cluster, &stores[0], None, false);
    cluster.run(Duration::from_secs(1));
    fill(&mut cluster, 1, 50);
    crash_all(&mut cluster);
    start(&mut cluster, &stores[1], None, false);
    cluster.run(Duration::from_secs(1));
    let other = start(&mut cluster, &stores[0], None, false);
    cluster.run(Duration::from_secs(2));
    assert!(cluster.members[other].as_ref().is_some_and(|member| member.refused));
    assert_eq!(stored(&stores[0]), 50);
}

#[test]
fn a_cluster_that_leaves_in_order_is_kept_by_its_last_members() {
    let (mut cluster, stores) = filled(5, 100);
    cluster.leave(2);
    cluster.run(Duration::from_secs(3));
    assert_eq!(stored(&stores[2]), 0, "it has handed over everything");
    crash_all_left(&mut cluster, &[2]);
    cluster.leave(0);
    cluster.leave(1);
    cluster.run(Duration::from_secs(3));
    crash_all(&mut cluster);
    let back = start_all(&mut cluster, &stores);
    cluster.run(Duration::from_secs(5));
    assert!(cluster.is_settled(), "{}", cluster.state());
    for n in 0..100 {
        assert_eq!(get(&mut cluster, back[n % 3], key(n)), Some(value(n)));
    }
}

fn crash_all_left(cluster: &mut Cluster, left: &[usize]) {
    for &n in left {
        cluster.crash(n);
    }
    cluster.deliver_views(false);
    cluster.run(Duration::from_secs(1));
}

#[test]
fn a_local_cache_is_there_again() {
    let local = CacheConfig { mode: CacheMode::Local, ..config() };
    let mut cluster = Cluster::new(6, local);
    let stores = memory_stores(1);
    for life in 0..3 {
        let n = start(&mut cluster, &stores[0], None, false);
        for number in 0..20 {
            let expected = (life > 0).then(|| Bytes::from(format!("{number} of {}", life - 1)));
            assert_eq!(get(&mut cluster, n, key(number)), expected);
            let change =
                Change::Put { value: format!("{number} of {life}").into(), lifetime: Lifetime::FOREVER };
            let write = Write { condition: Condition::Always, change, wants_previous: false };
            assert!(result(&mut cluster, n, key(number), Action::Write(write)).is_ok());
        }
        crash_all(&mut cluster);
    }
}

/// Returns the entries of a key at two owners after a restart of their killed cluster. Before the kill, the first
/// owner had applied a write with this lifespan, and the second had not received it.
fn after_an_end_while_they_begin(lifespan: Duration) -> Vec<Option<Bytes>> {
    let (mut cluster, stores) = (Cluster::new(8, config()), memory_stores(2));
    start_all(&mut cluster, &stores);
    cluster.run(Duration::from_secs(2));
    fill(&mut cluster, 2, 20);
    let member = cluster.members[0].as_ref().expect("a member");
    let topology = member.node.topology(cluster.cache()).expect("a topology");
    let is_first =
        |n: &usize| topology.current.primary(topology.current.segment_of(&key(*n))) == Some(&address(0));
    let known = (0..20).find(is_first).expect("a key of the first member's");
    cluster.slow.insert((0, 1), Duration::from_secs(1));
    let change =
        Change::Put { value: value(1000), lifetime: Lifetime { lifespan: Some(lifespan), max_idle: None } };
    let write = Write { condition: Condition::Always, change, wants_previous: false };
    let at = cluster.submit(0, key(known), Action::Write(write), TIMEOUT);
    cluster.run(Duration::from_millis(5));
    assert!(cluster.history[at].result.is_none(), "{:?}", cluster.history[at]);
    crash_all(&mut cluster);
    let back = start_all(&mut cluster, &stores);
    cluster.run(Duration::from_secs(2));
    assert!(cluster.is_settled(), "{}", cluster.state());
    let held = back.iter().map(|&n| get(&mut cluster, n, key(known))).collect();
    cluster.check_agreement();
    // The key stays absent, or stays present.
    crash_all(&mut cluster);
    let again = start_all(&mut cluster, &stores);
    cluster.run(Duration::from_secs(2));
    assert_eq!(again.iter().map(|&n| get(&mut cluster, n, key(known))).collect::<Vec<_>>(), held);
    held
}

/// The previous entry, which the other owner has, is removed as well, or both owners have the new entry.
#[test]
fn entry_that_expires_during_a_full_restart_expires_at_all_owners() {
    for millis in 1..200 {
        let held = after_an_end_while_they_begin(Duration::from_millis(millis));
        assert_eq!(held[0], held[1], "a lifespan of {millis} ms");
    }
    let held = after_an_end_while_they_begin(Duration::from_secs(60));
    assert_eq!(held, [Some(value(1000)), Some(value(1000))]);
}

/// Partitions of a restarted cluster know that all of them had the data from before the restart, even if some of it
/// expires during the restart.
#[test]
fn replacement_of_a_restored_entry_is_a_change_of_its_partition_only() {
    let settings = CacheConfig {
        partitions: PartitionHandling::AllowReadWrites,
        merge: MergePolicy::RemoveAll,
        ..config()
    };
    let mut cluster = Cluster::new(5, settings);
    let stores = memory_stores(3);
    start_all(&mut cluster, &stores);
    cluster.run(Duration::from_secs(2));
    fill(&mut cluster, 3, 20);
    for n in 100..140 {
        let lifetime = Lifetime { lifespan: Some(Duration::from_secs(10)), max_idle: None };
        let change = Change::Put { value: value(n), lifetime };
        let write = Write { condition: Condition::Always, change, wants_previous: false };
        assert!(result(&mut cluster, 0, key(n), Action::Write(write)).is_ok());
    }
    crash_all(&mut cluster);
    let first = start(&mut cluster, &stores[0], None, false);
    let back = start(&mut cluster, &stores[2], None, false);
    cluster.run(Duration::from_secs(20));
    start(&mut cluster, &stores[1], None, false);
    cluster.run(Duration::from_secs(3));
    assert!(cluster.is_settled(), "{}", cluster.state());
    // While they waited for the last member, the entries with a lifespan of 10 s have expired.
    cluster.cut(vec![0, 0, 0, 0, 1, 0]);
    cluster.run(Duration::from_secs(2));
    let there: Vec<usize> = (0..20).filter(|&n| get(&mut cluster, back, key(n)).is_some()).collect();
    assert!(there.len() > 5, "{there:?}");
    for &n in &there {
        assert!(result(&mut cluster, back, key(n), put(n + 200)).is_ok());
    }
    cluster.heal();
    cluster.run(Duration::from_secs(5));
    assert!(cluster.is_settled(), "{}", cluster.state());
    for n in there {
        assert_eq!(get(&mut cluster, first, key(n)), Some(value(n + 200)), "key {n}");
    }
}

/// The allowed values of a key.
#[derive(Default)]
struct Allowed {
    /// The last acknowledged value.
    sure: Option<Bytes>,
    /// The values of later requests, in order, which may have been applied.
    perhaps: Vec<Option<Bytes>>,
}

/// Kills a cluster under load at random times, again and again, while members join and leave.
fn lives(seed: u64, durability: Durability, crash: Crash) {
    let mut cluster = Cluster::new(seed, config());
    let count = 1 + cluster.rng.below(4) as usize;
    let disks: Vec<SimDisk> = (0..count).map(|n| SimDisk::new(seed * 8 + n as u64)).collect();
    let mut keys: BTreeMap<usize, Allowed> = BTreeMap::new();
    for life in 0..3 {
        let stores: Vec<Arc<dyn Store>> = disks.iter().map(|disk| open(disk, durability)).collect();
        let mut members = Vec::new();
        for store in &stores {
            members.push(start(&mut cluster, store, None, false));
            let pause = cluster.rng.duration(Duration::ZERO, Duration::from_millis(400));
            cluster.run(pause);
        }
        if life > 0 {
            cluster.run(Duration::from_secs(6));
            assert!(cluster.is_settled(), "life {life}: {}", cluster.state());
            cluster.check_agreement();
            for (number, allowed) in &mut keys {
                let reader = members[number % members.len()];
                let found = get(&mut cluster, reader, key(*number));
                let is_allowed = found == allowed.sure || allowed.perhaps.contains(&found);
                assert!(is_allowed, "life {life}: {:?} is {found:?}, not {:?}", key(*number), allowed.sure);
                *allowed = Allowed { sure: found, perhaps: Vec::new() };
            }
        }
        // Clients with one key at a time each, until all members stop.
        let mut running: BTreeMap<usize, (usize, usize)> = BTreeMap::new();
        let end = cluster.now + cluster.rng.duration(Duration::from_millis(10), Duration::from_millis(900));
        while cluster.now < end {
            for number in 0..24 {
                if running.contains_key(&number) {
                    continue;
                }
                let member = members[cluster.rng.below(members.len() as u64) as usize];
                let text = Bytes::from(format!("{life}-{}-{number}", cluster.history.len()));
                let is_removal = cluster.rng.chance(0.2);
                let change = if is_removal {
                    Change::Remove
                } else {
                    Change::Put { value: text.clone(), lifetime: Lifetime::FOREVER }
                };
                let write = Write { condition: Condition::Always, change, wants_previous: false };
                let at = cluster.submit(member, key(number), Action::Write(write), TIMEOUT);
                keys.entry(number).or_default().perhaps.push((!is_removal).then_some(text));
                running.insert(number, (at, keys[&number].perhaps.len() - 1));
            }
            let step = cluster.now + Duration::from_millis(1);
            while cluster.step(step) {}
            running.retain(|number, (at, nth)| {
                let Some(result) = &cluster.history[*at].result else { return true };
                if let (Ok(_), Some(allowed)) = (result, keys.get_mut(number)) {
                    allowed.sure = allowed.perhaps[*nth].clone();
                    allowed.perhaps.clear();
                }
                assert!(!matches!(result, Err(OperationError::StoreWriteFailed { .. })), "{result:?}");
                false
            });
        }
        crash_all(&mut cluster);
        drop(stores);
        disks.iter().for_each(|disk| disk.restart(crash));
    }
}

fn all_seeds(durability: Durability, crash: Crash) {
    every_seed(10, |seed, _| lives(seed, durability, crash));
}

#[test]
fn kill_of_all_members_at_any_moment_loses_no_acknowledged_write() {
    all_seeds(Durability::Process, Crash::Kill);
}

#[test]
fn a_power_failure_of_all_members_loses_no_acknowledged_write_that_was_synced() {
    all_seeds(Durability::Disk, Crash::PowerLoss);
}

/// Kills all members again during their restart, at random times; or some of them, which return.
fn interrupted(seed: u64) {
    let mut cluster = Cluster::new(seed, config());
    let count = 2 + cluster.rng.below(3) as usize;
    let disks: Vec<SimDisk> = (0..count).map(|n| SimDisk::new(seed * 8 + n as u64)).collect();
    let stores: Vec<Arc<dyn Store>> = disks.iter().map(|disk| open(disk, Durability::Process)).collect();
    let members = start_all(&mut cluster, &stores);
    cluster.run(Duration::from_secs(2));
    fill(&mut cluster, members.len(), 60);
    for n in 0..20 {
        assert!(result(&mut cluster, n % members.len(), key(n), remove()).is_ok());
    }
    crash_all(&mut cluster);
    drop(stores);
    let mut running: Vec<Option<usize>> = vec![None; count];
    for _ in 0..1 + cluster.rng.below(3) {
        for (place, disk) in running.iter_mut().zip(&disks) {
            if place.is_none() {
                disk.restart(Crash::Kill);
                *place = Some(start(&mut cluster, &open(disk, Durability::Process), None, false));
                let pause = cluster.rng.duration(Duration::ZERO, Duration::from_millis(30));
                cluster.run(pause);
            }
        }
        let moment = cluster.rng.duration(Duration::ZERO, Duration::from_millis(60));
        cluster.run(moment);
        let all = cluster.rng.chance(0.5);
        // Once the cache is open, more than half of the members have to stay, as always.
        let has_begun = running.iter().flatten().any(|&n| is_restored(&cluster, n));
        for place in &mut running {
            if all || !has_begun && cluster.rng.chance(0.4) {
                place.take().into_iter().for_each(|n| cluster.crash(n));
            }
        }
        cluster.deliver_views(false);
        let pause = cluster.rng.duration(Duration::from_millis(30), Duration::from_millis(100));
        cluster.run(pause);
        // The cache may have opened before the crash was detected, and then only first owners have all entries.
        let has_begun = running.iter().flatten().any(|&n| is_restored(&cluster, n));
        if has_begun && running.contains(&None) {
            crash_all(&mut cluster);
            running.fill(None);
        }
    }
    for (place, disk) in running.iter_mut().zip(&disks) {
        if place.is_none() {
            disk.restart(Crash::Kill);
            *place = Some(start(&mut cluster, &open(disk, Durability::Process), None, false));
        }
    }
    cluster.run(Duration::from_secs(8));
    assert!(cluster.is_settled(), "{}", cluster.state());
    cluster.check_agreement();
    for n in 0..60 {
        let reader = running[n % count].expect("all are back");
        assert_eq!(get(&mut cluster, reader, key(n)), (n >= 20).then(|| value(n)), "{:?}", key(n));
    }
}

#[test]
fn member_killed_during_a_full_restart_returns_and_no_entry_is_lost() {
    every_seed(20, |seed, _| interrupted(seed));
}

/// Its store has the address of neither restart.
#[test]
fn member_killed_in_two_restarts_before_it_is_persisted_returns_as_itself() {
    interrupted(65);
}
