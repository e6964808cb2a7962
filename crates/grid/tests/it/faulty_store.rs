//! Stores that refuse requests now and then, and are slow: refused writes are in memory, and owners agree.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use consort_grid::{
    Action, CacheConfig, CacheMode, CapacityFactor, Change, Condition, Lifetime, Limit, MemoryBound,
    MergePolicy, OperationError, Outcome, PartitionHandling, ReadFrom, Segment, WhenFull, Write,
};
use consort_sim::{Clocks, SimStore, StorageSettings, StoreFaults, restore_container};
use consort_store::{MemoryStore, Part, Store};

use crate::clients::{Clients, TIMEOUT};
use crate::cluster::{Cluster, entries};
use crate::faults::Faults;
use crate::seeds::every_seed;
use crate::swarm::check_history;

/// Starts a member with a faulty store.
fn start(cluster: &mut Cluster, keeping: &StorageSettings, trouble: StoreFaults) -> (usize, Arc<dyn Store>) {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(cluster.config.segments));
    let (container, backing) =
        restore_container(&store, Clocks::same(cluster.now), keeping).expect("an empty store");
    let beside = SimStore::new(store.clone()).with_faults(trouble);
    let config = cluster.config.clone();
    (cluster.start_on(config, CapacityFactor::default(), container, Some((beside, backing))), store)
}

fn action(cluster: &mut Cluster, nth: usize) -> Action {
    let wants_previous = cluster.rng.chance(0.3);
    let put = |condition| {
        let change = Change::Put { value: Bytes::from(format!("v{nth}")), lifetime: Lifetime::FOREVER };
        Action::Write(Write { condition, change, wants_previous })
    };
    match cluster.rng.below(10) {
        0..3 => Action::Read(ReadFrom::Nearest),
        3 => Action::Read(ReadFrom::Primary),
        4..8 => put(Condition::Always),
        8 => put(Condition::Absent),
        _ => Action::Write(Write { condition: Condition::Always, change: Change::Remove, wants_previous }),
    }
}

struct Run {
    cluster: Cluster,
    stores: Vec<(usize, Arc<dyn Store>)>,
    passivation: bool,
    refused: u64,
}

fn run(seed: u64, is_told: bool) -> Run {
    let mut config = CacheConfig { segments: 4, ..CacheConfig::new("ailing") };
    let mut cluster = Cluster::new(seed, config.clone());
    config.mode = CacheMode::Distributed { owners: cluster.rng.between(2, 4) as u16 };
    cluster.config = config;
    cluster.delay_max = Duration::from_millis(cluster.rng.between(1, 40));
    let room = cluster.rng.chance(0.5).then(|| cluster.rng.between(2, 8));
    let bound = room.map(|room| MemoryBound { limit: Limit::Entries(room), when_full: WhenFull::Remove });
    let passivation = bound.is_some() && cluster.rng.chance(0.4);
    let keeping = StorageSettings { bound, passivation, ..StorageSettings::default() };
    let trouble = StoreFaults {
        begins: 0.02,
        spell_max: Duration::from_millis(cluster.rng.between(1, 400)),
        refused: cluster.rng.between(10, 90) as f64 / 100.0,
        slowness: cluster.rng.between(1, 10) as u32,
    };
    let (mut clients, mut stores) = (Clients::default(), Vec::new());
    for _ in 0..cluster.rng.between(3, 6) {
        let (member, store) = start(&mut cluster, &keeping, trouble);
        clients.add(member, 3);
        stores.push((member, store));
        cluster.run(Duration::from_millis(300));
    }
    let keys = cluster.rng.between(3, 20);
    let end = cluster.now + Duration::from_secs(4);
    let count = cluster.rng.below(4);
    // Members that join have stores, too, so none do.
    let mut faults = Faults::new(&cluster, count, false).without_joiners();
    while cluster.now < end {
        clients.begin(&mut cluster, |cluster| {
            let key = Bytes::from(format!("k{}", cluster.rng.below(keys)));
            let nth = cluster.history.len();
            cluster.rng.chance(0.2).then(|| (key, action(cluster, nth)))
        });
        clients.pass(&mut cluster);
        faults.strike(&mut cluster);
    }
    faults.end(&mut cluster);
    let mut refused = 0;
    for beside in cluster.members.iter_mut().flatten().filter_map(|member| member.beside.as_mut()) {
        refused += beside.refused();
        beside.heal();
    }
    cluster.run(Duration::from_secs(30));
    // Writes that stores have accepted are in them.
    for key in (0..keys).map(|n| Bytes::from(format!("k{n}"))) {
        for member in cluster.live_members() {
            let at = cluster.submit(member, key.clone(), Action::Read(ReadFrom::Nearest), TIMEOUT);
            cluster.run(Duration::from_millis(200));
            let done = &cluster.history[at];
            let is_left = cluster.members[member].as_ref().is_some_and(|member| member.is_left);
            assert!(is_left || matches!(done.result, Some(Ok(_))), "{done:?}");
        }
    }
    if is_told {
        println!("{}", cluster.story.join("\n"));
        cluster.history.iter().for_each(|done| println!("{done:?}"));
    }
    Run { cluster, stores, passivation, refused }
}

/// Checks that the store has the versions in memory, or with passivation no entry whose value is in memory.
fn check_stores(run: &Run) {
    let cache = run.cluster.cache();
    for (n, store) in &run.stores {
        let Some(member) = run.cluster.members[*n].as_ref().filter(|member| !member.is_left) else {
            continue;
        };
        let Some(topology) = member.node.topology(cache) else { continue };
        for segment in (0..run.cluster.config.segments).map(Segment) {
            let is_owner = topology.current.owners(segment).any(|owner| owner == member.node.local());
            let mut memory = match is_owner {
                true => entries(&member.container, segment, run.cluster.now),
                false => Default::default(),
            };
            memory.retain(|_, (value, _)| !run.passivation || value.is_none());
            let memory: Vec<(Bytes, u64)> =
                memory.into_iter().map(|(key, (_, version))| (key, version)).collect();
            let stored = store.entries(segment.0, Part::Whole).unwrap().map(Result::unwrap);
            let mut stored: Vec<(Bytes, u64)> = stored.map(|entry| (entry.key, entry.version)).collect();
            stored.sort();
            assert_eq!(memory, stored, "segment {segment} of M{n}");
        }
    }
}

/// Returns the number of errors that stores have caused, and the number of refused requests.
pub(crate) fn check(seed: u64, is_told: bool) -> (usize, u64) {
    let run = run(seed, is_told);
    let cluster = &run.cluster;
    assert!(cluster.is_settled(), "no stable topology:\n{}", cluster.state());
    let load = |member: &crate::cluster::Member| member.node.stats().load(cluster.cache());
    let calls: usize = cluster.members.iter().flatten().map(|member| load(member).calls).sum();
    assert_eq!(calls, 0, "nothing waits:\n{}", cluster.state());
    check_history(cluster);
    cluster.check_agreement();
    check_stores(&run);
    let is_stores = |error: &OperationError| {
        matches!(error, OperationError::StoreWriteFailed { .. } | OperationError::StoreReadFailed { .. })
    };
    let results = cluster.history.iter().filter_map(|done| done.result.as_ref());
    (results.filter_map(|result| result.as_ref().err()).filter(|error| is_stores(error)).count(), run.refused)
}

#[test]
fn owners_agree_whatever_stores_refuse() {
    let counts = every_seed(60, check);
    let (errors, refused) = counts.iter().fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1));
    println!("{errors} errors, {refused} refused");
    assert!(errors > 0 && refused > 0, "{errors} errors, {refused} refused");
}

/// Two members in different partitions write all keys, or only one of them, and their stores refuse many requests.
/// Returns the writes of each key, and the number of refused requests.
fn merged_beside_refusals(
    seed: u64,
    merge: MergePolicy,
    keeping: &StorageSettings,
    writers: &[usize],
) -> (Cluster, Vec<Vec<usize>>, u64) {
    let config = CacheConfig {
        segments: 4,
        mode: CacheMode::Replicated,
        partitions: PartitionHandling::AllowReadWrites,
        merge,
        ..CacheConfig::new("ailing")
    };
    let mut cluster = Cluster::new(seed, config);
    let spell_max = Duration::from_secs(2);
    let trouble = StoreFaults { begins: 0.1, spell_max, refused: 0.8, slowness: 1 };
    for _ in 0..2 {
        start(&mut cluster, keeping, trouble);
        cluster.run(Duration::from_secs(3));
    }
    cluster.cut(vec![0, 1]);
    cluster.run(Duration::from_secs(2));
    let mut put = |key: usize, member: usize| {
        let value = Bytes::from(format!("of {member}"));
        let change = Change::Put { value, lifetime: Lifetime::FOREVER };
        let put = Write { condition: Condition::Always, change, wants_previous: false };
        cluster.submit(member, Bytes::from(format!("k{key}")), Action::Write(put), TIMEOUT)
    };
    let written: Vec<Vec<usize>> =
        (0..40).map(|key| writers.iter().map(|member| put(key, *member)).collect()).collect();
    cluster.run(Duration::from_secs(1));
    cluster.heal();
    cluster.run(Duration::from_secs(5));
    let mut refused = 0;
    for beside in cluster.members.iter_mut().flatten().filter_map(|member| member.beside.as_mut()) {
        refused += beside.refused();
        beside.heal();
    }
    cluster.run(Duration::from_secs(30));
    assert!(cluster.is_settled(), "{}", cluster.state());
    (cluster, written, refused)
}

/// Checks the reads of all keys whose writes were all acknowledged. Returns the number of these keys.
fn acknowledged_read_as(cluster: &mut Cluster, written: &[Vec<usize>], wanted: Option<&str>) -> usize {
    let is_acknowledged = |at: &usize| matches!(cluster.history[*at].result, Some(Ok(_)));
    let keys: Vec<usize> = (0..written.len()).filter(|&n| written[n].iter().all(is_acknowledged)).collect();
    for n in &keys {
        let read = Action::Read(ReadFrom::Primary);
        let at = cluster.submit(0, Bytes::from(format!("k{n}")), read, TIMEOUT);
        cluster.run(Duration::from_millis(30));
        let Some(Ok(Outcome::Read(found))) = &cluster.history[at].result else {
            panic!("{:?}", cluster.history[at]);
        };
        assert_eq!(found.as_ref().map(|stored| &*stored.value), wanted.map(str::as_bytes), "k{n}");
    }
    keys.len()
}

fn every_merge_beside_refusals(
    merge: &MergePolicy,
    keeping: &StorageSettings,
    writers: &[usize],
    wanted: Option<&str>,
) {
    let counts = every_seed(20, |seed, _| {
        let (mut cluster, written, refused) = merged_beside_refusals(seed, merge.clone(), keeping, writers);
        (acknowledged_read_as(&mut cluster, &written, wanted), refused)
    });
    let (keys, refused) = counts.iter().fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1));
    assert!(keys > 0 && refused > 0, "{keys} keys, {refused} refused");
}

#[test]
fn merge_result_survives_a_store_that_refuses_writes() {
    every_merge_beside_refusals(&MergePolicy::RemoveAll, &StorageSettings::default(), &[0, 1], None);
}

#[test]
fn entries_in_a_failing_store_are_merged_later() {
    let bound = MemoryBound { limit: Limit::Entries(4), when_full: WhenFull::Remove };
    let keeping = StorageSettings { bound: Some(bound), passivation: true, ..StorageSettings::default() };
    every_merge_beside_refusals(&MergePolicy::PreferredNonNull, &keeping, &[1], Some("of 1"));
}
