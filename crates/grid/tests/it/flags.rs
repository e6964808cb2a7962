//! Flags of operations.

use bytes::Bytes;
use consort_grid::{
    Action, CacheConfig, CacheMode, Change, Condition, Flags, Lifetime, Limit, MemoryBound, OperationError,
    Outcome, ReadFrom, WhenFull, Write,
};
use std::time::Duration;

use crate::cluster::{Cluster, address};
use crate::persistence::{TIMEOUT, config, fill, key, memory_stores, put, start, value};

const READ: Action = Action::Read(ReadFrom::Nearest);

fn distributed(owners: u16) -> CacheConfig {
    CacheConfig { segments: 16, mode: CacheMode::Distributed { owners }, ..CacheConfig::new("flags") }
}

/// Returns the result of an operation, and the number of frames that it cost.
fn done(
    cluster: &mut Cluster,
    n: usize,
    key: Bytes,
    action: Action,
    flags: Flags,
) -> (Result<Outcome, OperationError>, u64) {
    let before = cluster.frames;
    let at = cluster.submit_with(n, key, action, flags, TIMEOUT);
    cluster.run(Duration::from_millis(60));
    (cluster.history[at].result.clone().expect("it has ended"), cluster.frames - before)
}

fn found(outcome: Result<Outcome, OperationError>) -> Option<Bytes> {
    match outcome {
        Ok(Outcome::Read(found)) => found.map(|stored| stored.value),
        other => panic!("{other:?}"),
    }
}

/// Returns the index of the key's primary.
pub(crate) fn primary(cluster: &Cluster, key: &[u8]) -> usize {
    let cache = cluster.cache();
    let topology = cluster.members.iter().flatten().find_map(|member| member.node.topology(cache));
    let current = &topology.expect("a topology").current;
    let primary = current.primary(current.segment_of(key)).cloned();
    (0..9).find(|&n| Some(address(n)) == primary).expect("a primary")
}

#[test]
fn local_read_sends_no_request_and_finds_entries_of_its_member() {
    let mut cluster = Cluster::settled(1, distributed(1), 3);
    fill(&mut cluster, 3, 30);
    for at in 0..30 {
        let owner = primary(&cluster, &key(at));
        for n in 0..3 {
            for action in [READ, Action::Read(ReadFrom::Primary)] {
                let (outcome, frames) = done(&mut cluster, n, key(at), action, Flags::LOCAL);
                assert_eq!((found(outcome), frames), ((n == owner).then(|| value(at)), 0));
            }
        }
    }
}

#[test]
fn a_local_write_is_for_caches_in_which_members_have_entries_of_their_own() {
    let mut cluster = Cluster::settled(1, distributed(2), 2);
    let (refused, frames) = done(&mut cluster, 0, key(1), put(1), Flags::LOCAL);
    assert!(matches!(refused, Err(OperationError::Unsupported { .. })), "{refused:?}");
    assert_eq!(frames, 0);
    let config = CacheConfig { mode: CacheMode::Invalidation, ..CacheConfig::new("near") };
    let mut cluster = Cluster::settled(1, config, 2);
    done(&mut cluster, 0, key(1), put(1), Flags::NONE).0.expect("done");
    let (outcome, frames) = done(&mut cluster, 1, key(1), put(2), Flags::LOCAL);
    assert!(matches!(outcome, Ok(Outcome::Written(written)) if written.is_done));
    assert_eq!(frames, 0);
    for (n, had) in [(0, value(1)), (1, value(2))] {
        assert_eq!(
            found(done(&mut cluster, n, key(1), READ, Flags::NONE).0),
            Some(had),
            "each keeps its own"
        );
    }
    done(&mut cluster, 0, key(1), put(3), Flags::NONE).0.expect("done");
    assert_eq!(found(done(&mut cluster, 1, key(1), READ, Flags::NONE).0), None);
}

#[test]
fn an_asynchronous_write_is_acknowledged_by_its_primary_and_reaches_all_owners() {
    let mut cluster = Cluster::settled(1, distributed(3), 3);
    for at in 0..30 {
        let (primary, caller) = (primary(&cluster, &key(at)), at % 3);
        let submitted = cluster.submit_with(caller, key(at), put(at), Flags::ASYNC, TIMEOUT);
        let is_over = |cluster: &Cluster| cluster.history[submitted].ended.is_some();
        assert_eq!(is_over(&cluster), caller == primary, "without a frame where that is possible");
        cluster.run(Duration::from_millis(30));
        assert!(matches!(&cluster.history[submitted].result, Some(Ok(Outcome::Written(one))) if one.is_done));
    }
    cluster.check_agreement();
    assert_eq!(cluster.members.iter().flatten().map(|one| one.container.len()).sum::<u64>(), 90);
    let absent = Write {
        condition: Condition::Absent,
        change: Change::Put { value: value(0), lifetime: Lifetime::FOREVER },
        wants_previous: false,
    };
    let (outcome, _) = done(&mut cluster, 0, key(1), Action::Write(absent), Flags::ASYNC);
    assert!(
        matches!(outcome, Ok(Outcome::Written(written)) if !written.is_done),
        "the outcome is the primary's"
    );
}

#[test]
fn an_asynchronous_write_is_sent_again_for_as_long_as_its_caller_lives() {
    for seed in 0..40 {
        let mut cluster = Cluster::settled(seed, distributed(2), 4);
        let at = (0..).find(|&at| primary(&cluster, &key(at)) == 3).expect("a key");
        let submitted = cluster.submit_with(0, key(at), put(at), Flags::ASYNC, TIMEOUT);
        while cluster.history[submitted].ended.is_none() {
            let step = cluster.now + Duration::from_micros(100);
            cluster.step(step);
        }
        cluster.crash(3);
        cluster.deliver_views(false);
        cluster.run(Duration::from_secs(3));
        assert_eq!(found(done(&mut cluster, 1, key(at), READ, Flags::NONE).0), Some(value(at)));
        cluster.check_agreement();
    }
}

#[test]
fn entry_that_is_not_loaded_exists_without_a_value() {
    let mut cluster = Cluster::new(1, config());
    let few = MemoryBound { limit: Limit::Entries(20), when_full: WhenFull::Remove };
    for store in &memory_stores(1) {
        start(&mut cluster, store, Some(few), false);
    }
    cluster.run(Duration::from_secs(2));
    fill(&mut cluster, 1, 60);
    let loads = |cluster: &Cluster| {
        let member = cluster.members[0].as_ref().expect("alive");
        member.beside.as_ref().expect("a store").loads()
    };
    let before = loads(&cluster);
    let read: Vec<usize> = (0..60)
        .filter(|&at| found(done(&mut cluster, 0, key(at), READ, Flags::SKIP_LOAD).0).is_some())
        .collect();
    assert_eq!((read.len(), loads(&cluster)), (20, before));
    let missed = (0..60).find(|at| !read.contains(at)).expect("one that only the store has");
    let conditional = |condition, wants_previous| {
        let change = Change::Put { value: value(99), lifetime: Lifetime::FOREVER };
        Action::Write(Write { condition, change, wants_previous })
    };
    let held = |cluster: &mut Cluster, condition, wants_previous| {
        let action = conditional(condition, wants_previous);
        match done(cluster, 0, key(missed), action, Flags::SKIP_LOAD).0 {
            Ok(Outcome::Written(written)) => (written.is_done, written.was_present, written.previous),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(held(&mut cluster, Condition::Absent, true), (false, true, None));
    assert_eq!(held(&mut cluster, Condition::Value(value(missed)), true), (false, true, None));
    assert_eq!(held(&mut cluster, Condition::Present, true), (true, true, None));
    assert_eq!(loads(&cluster), before);
    assert_eq!(found(done(&mut cluster, 0, key(missed), READ, Flags::NONE).0), Some(value(99)));
}
