//! Members whose process has limited memory.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use consort_grid::{
    Action, CacheConfig, CacheMode, CapacityFactor, Change, Condition, Lifetime, Limit, MemoryBound,
    OperationError, Outcome, Phase, ReadFrom, WhenFull, Write,
};
use consort_memory::{MemoryLimit, ProcessMemory};

use crate::cluster::{Cluster, address, container_with};

const MIB: u64 = 1 << 20;
const TIMEOUT: Duration = Duration::from_secs(5);
/// A size class of the allocator: a value counts its whole block.
const VALUE_BYTES: usize = 96 * 1024;

/// Returns a process memory of 16 MiB: writes are refused above 12, and nothing is fetched above 14.
fn memory() -> ProcessMemory {
    ProcessMemory::new(vec![MemoryLimit { bytes: 16 * MIB, of: "--memory".into() }])
}

/// Members of a replicated cache, each with 16 MiB.
fn replicated(members: usize) -> Cluster {
    let mut cluster =
        Cluster::new(1, CacheConfig { mode: CacheMode::Replicated, segments: 16, ..CacheConfig::new("c") });
    (0..members).for_each(|n| drop(cluster.memory.insert(n, memory())));
    for _ in 0..members {
        cluster.start();
        cluster.run(Duration::from_millis(50));
    }
    cluster.run(Duration::from_secs(2));
    assert!(cluster.is_settled(), "{}", cluster.state());
    cluster
}

fn submit(cluster: &mut Cluster, n: usize, key: u32, action: Action) -> Result<Outcome, OperationError> {
    let at = cluster.submit(n, Bytes::copy_from_slice(&key.to_be_bytes()), action, TIMEOUT);
    cluster.run(Duration::from_millis(20));
    cluster.history[at].result.clone().expect("it has ended")
}

fn put(cluster: &mut Cluster, n: usize, key: u32, length: usize) -> Result<Outcome, OperationError> {
    let change = Change::Put { value: Bytes::from(vec![7; length]), lifetime: Lifetime::FOREVER };
    submit(
        cluster,
        n,
        key,
        Action::Write(Write { condition: Condition::Always, change, wants_previous: false }),
    )
}

fn remove(cluster: &mut Cluster, n: usize, key: u32) -> Result<Outcome, OperationError> {
    let write = Write { condition: Condition::Always, change: Change::Remove, wants_previous: false };
    submit(cluster, n, key, Action::Write(write))
}

fn length_read(cluster: &mut Cluster, n: usize, key: u32) -> Option<usize> {
    match submit(cluster, n, key, Action::Read(ReadFrom::Primary)) {
        Ok(Outcome::Read(found)) => found.map(|stored| stored.value.len()),
        other => panic!("{other:?}"),
    }
}

fn refusing(result: &Result<Outcome, OperationError>) -> usize {
    match result {
        Err(OperationError::NoMemory { member, shortage }) => {
            assert_eq!(&*shortage.of, "--memory");
            (0..8).find(|&n| address(n) == member.address).expect("a member")
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn write_without_memory_is_refused_until_entries_are_removed() {
    let mut cluster = replicated(1);
    let written = (0..200).take_while(|&key| put(&mut cluster, 0, key, VALUE_BYTES).is_ok()).count() as u32;
    assert!((120..=128).contains(&written), "{written} of 96 KiB in 12 MiB");
    let refused = put(&mut cluster, 0, written, VALUE_BYTES);
    assert_eq!(refusing(&refused), 0);
    let text = refused.unwrap_err().to_string();
    assert!(text.contains("of the 16777216 bytes that --memory allows"), "{text}");
    assert_eq!(length_read(&mut cluster, 0, 0), Some(VALUE_BYTES), "entries are read");
    assert!(put(&mut cluster, 0, 0, VALUE_BYTES).is_ok(), "and replaced");
    assert!(put(&mut cluster, 0, 0, VALUE_BYTES + 1_000).is_err());
    (0..written / 4).for_each(|key| assert!(remove(&mut cluster, 0, key).is_ok()));
    assert!(put(&mut cluster, 0, written, VALUE_BYTES).is_ok());
}

#[test]
fn shortage_of_a_backup_refuses_writes_at_the_primary_until_it_ends() {
    let mut cluster = replicated(2);
    assert!((0..20).all(|key| put(&mut cluster, 0, key, 1_000).is_ok()));
    let full = cluster.memory[&1].clone();
    // Other parts of that process use the memory.
    full.note_used(&[13 * MIB]);
    // Writes that primaries have ordered before they know of the shortage are accepted.
    let results: Vec<_> = (20..120).map(|key| put(&mut cluster, 0, key, 1_000)).collect();
    let at_first = results.iter().take_while(|result| result.is_ok()).count();
    assert!(at_first < 60, "{at_first}");
    results[at_first..].iter().for_each(|result| assert_eq!(refusing(result), 1));
    cluster.check_agreement();
    assert!((0..20).all(|key| remove(&mut cluster, 0, key).is_ok()));
    assert_eq!(length_read(&mut cluster, 0, 20), Some(1_000));
    full.note_used(&[8 * MIB]);
    cluster.run(Duration::from_secs(1));
    assert!((20..120).all(|key| put(&mut cluster, 0, key, 1_000).is_ok()));
    cluster.check_agreement();
}

#[test]
fn member_that_comes_hears_which_others_are_short_of_memory() {
    let mut cluster = replicated(1);
    cluster.memory[&0].note_used(&[13 * MIB]);
    assert_eq!(refusing(&put(&mut cluster, 0, 1, 1_000)), 0);
    let new = cluster.start();
    cluster.run(Duration::from_secs(2));
    assert!(cluster.is_settled(), "{}", cluster.state());
    let node = &cluster.members[new].as_ref().expect("alive").node;
    assert_eq!(
        node.stats().short_members().map(|(member, _)| member.clone()).collect::<Vec<_>>(),
        [address(0)]
    );
    assert!((1..40).all(|key| refusing(&put(&mut cluster, new, key, 1_000)) == 0));
}

#[test]
fn member_whose_memory_is_critical_gets_the_rest_of_its_segments_when_it_has_memory_again() {
    let mut cluster = replicated(1);
    assert!((0..110).all(|key| put(&mut cluster, 0, key, VALUE_BYTES).is_ok()));
    let small = ProcessMemory::new(vec![MemoryLimit { bytes: 8 * MIB, of: "--memory".into() }]);
    cluster.memory.insert(1, small.clone());
    cluster.start();
    cluster.run(Duration::from_secs(30));
    let phase = cluster.members[0].as_ref().and_then(|one| Some(one.node.topology(cluster.cache())?.phase));
    assert_eq!(phase, Some(Phase::ReadOldWriteAll), "{}", cluster.state());
    let taken = small.usage().entries;
    assert!((6 * MIB..8 * MIB).contains(&taken), "{taken}");
    assert_eq!(length_read(&mut cluster, 1, 109), Some(VALUE_BYTES), "all is read where it was");
    assert!(remove(&mut cluster, 1, 0).is_ok());
    assert_eq!(refusing(&put(&mut cluster, 0, 200, 1_000)), 1);
    // Half of the entries are removed.
    assert!((1..60).all(|key| remove(&mut cluster, 0, key).is_ok()));
    cluster.run(Duration::from_secs(10));
    assert!(cluster.is_settled(), "{}", cluster.state());
    cluster.check_agreement();
}

#[test]
fn cache_that_evicts_makes_room_where_the_process_has_none() {
    let mut cluster =
        Cluster::new(1, CacheConfig { mode: CacheMode::Replicated, segments: 16, ..CacheConfig::new("c") });
    let limited = memory();
    cluster.memory.insert(0, limited.clone());
    let bound = MemoryBound { limit: Limit::Bytes(100 * MIB), when_full: WhenFull::Remove };
    let container = Arc::new(container_with(&cluster.config, Some(bound)).within(limited.clone()));
    cluster.start_on(cluster.config.clone(), CapacityFactor::default(), container.clone(), None);
    cluster.run(Duration::from_secs(2));
    assert!((0..300).all(|key| put(&mut cluster, 0, key, VALUE_BYTES).is_ok()));
    let entries = limited.usage().entries;
    assert!((11 * MIB..=12 * MIB).contains(&entries), "{entries}");
    drop((cluster, container));
    assert_eq!(limited.usage().entries, 0, "a container that is dropped counts no more");
}
