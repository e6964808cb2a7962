//! Entries with a lifetime.

use std::time::Duration;

use bytes::Bytes;
use consort_grid::{
    Action, CacheConfig, CacheMode, Change, Condition, Lifetime, Outcome, PartitionHandling, ReadFrom, Write,
};

use crate::cluster::Cluster;
use crate::seeds::every_seed;

const TIMEOUT: Duration = Duration::from_secs(10);

const IDLE: Duration = Duration::from_secs(5);

fn put(lifetime: Lifetime, condition: Condition) -> Action {
    let change = Change::Put { value: Bytes::from_static(b"for a while"), lifetime };
    Action::Write(Write { condition, change, wants_previous: false })
}

fn put_for(seconds: u64) -> Action {
    let lifetime = Lifetime { lifespan: Some(Duration::from_secs(seconds)), max_idle: None };
    put(lifetime, Condition::Always)
}

fn put_idle(condition: Condition) -> Action {
    put(Lifetime { lifespan: None, max_idle: Some(IDLE) }, condition)
}

/// Whether a member finds a key.
fn found(cluster: &mut Cluster, n: usize, key: &[u8]) -> bool {
    let at = cluster.submit(n, Bytes::copy_from_slice(key), Action::Read(ReadFrom::Nearest), TIMEOUT);
    cluster.run(Duration::from_millis(100));
    match &cluster.history[at].result {
        Some(Ok(Outcome::Read(found))) => found.is_some(),
        other => panic!("{other:?}"),
    }
}

fn replicated(members: usize) -> Cluster {
    let config = CacheConfig { mode: CacheMode::Replicated, ..CacheConfig::new("idle") };
    Cluster::settled(7, config, members)
}

/// Returns the number of copies of all entries.
fn held(cluster: &Cluster) -> u64 {
    cluster.members.iter().flatten().map(|one| one.container.len()).sum()
}

/// Asserts that no member has a pending timeout.
fn assert_no_timeout_pending(cluster: &Cluster) {
    let wakes = cluster.members.iter().flatten().filter(|one| one.node.poll_timeout().is_some()).count();
    assert_eq!(wakes, 0);
}

#[test]
fn expired_entry_is_not_read_and_uses_no_memory_on_any_owner() {
    let mut cluster = Cluster::new(1, CacheConfig::new("mortal"));
    (0..3).for_each(|_| {
        cluster.start();
    });
    cluster.run(Duration::from_secs(2));
    for n in 0..100 {
        cluster.submit(n % 3, Bytes::from(format!("k{n}")), put_for(5), TIMEOUT);
    }
    cluster.run(Duration::from_secs(3));
    assert_eq!(held(&cluster), 200, "two owners each");
    let joined = cluster.start();
    cluster.run(Duration::from_secs(1));
    assert!(
        !cluster.members[joined].as_ref().unwrap().container.is_empty(),
        "the rest of a life travels, too"
    );
    cluster.run(Duration::from_secs(2));
    for n in 0..4 {
        assert!(!found(&mut cluster, n, b"k7"));
    }
    cluster.run(Duration::from_secs(3));
    assert_eq!(held(&cluster), 0);
    cluster.run(Duration::from_secs(3));
    assert_no_timeout_pending(&cluster);
}

#[test]
fn short_lifespan_expires_before_a_long_one() {
    let mut cluster = Cluster::new(1, CacheConfig::new("mortal"));
    cluster.start();
    cluster.run(Duration::from_secs(2));
    for (key, seconds) in [("long", 3_600), ("short", 1)] {
        cluster.submit(0, Bytes::from(key), put_for(seconds), TIMEOUT);
        cluster.run(Duration::from_millis(100));
    }
    cluster.run(Duration::from_secs(3));
    assert_eq!(held(&cluster), 1);
}

/// An owner that gets a write after the entry's lifespan does not keep the previous entry.
#[test]
fn backup_of_an_expired_entry_replaces_the_previous_value() {
    for seconds in [2, 4] {
        let mut cluster = replicated(3);
        cluster.submit(0, Bytes::from_static(b"k"), put(Lifetime::default(), Condition::Always), TIMEOUT);
        cluster.run(Duration::from_secs(1));
        cluster.sides[2] = 1;
        let at = cluster.submit(0, Bytes::from_static(b"k"), put_for(1), TIMEOUT);
        // In the later case its primary has removed the entry.
        cluster.run(Duration::from_secs(seconds));
        assert_eq!(cluster.history[at].result, None);
        cluster.sides[2] = 0;
        cluster.run(Duration::from_secs(4));
        assert!(matches!(cluster.history[at].result, Some(Ok(_))), "{:?}", cluster.history[at]);
        for n in 0..3 {
            assert!(!found(&mut cluster, n, b"k"), "member {n}, after {seconds} s");
        }
        assert_eq!(held(&cluster), 0);
    }
}

#[test]
fn an_entry_lives_as_long_as_one_owner_uses_it_and_then_expires_everywhere() {
    for reader in 0..3 {
        let mut cluster = replicated(3);
        cluster.submit(0, Bytes::from_static(b"k"), put_idle(Condition::Always), TIMEOUT);
        for _ in 0..20 {
            cluster.run(Duration::from_secs(3));
            assert!(found(&mut cluster, reader, b"k"));
            assert_eq!(held(&cluster), 3, "a member that has not used it keeps it");
        }
        cluster.run(Duration::from_secs(3));
        for n in 0..3 {
            assert!(found(&mut cluster, n, b"k"), "member {n} learns that {reader} has used it");
        }
        cluster.run(IDLE);
        for n in 0..3 {
            assert!(!found(&mut cluster, n, b"k"), "it was not used since");
        }
        assert_eq!(held(&cluster), 0);
        cluster.check_agreement();
    }
}

#[test]
fn unused_entry_is_removed_without_a_read() {
    let mut cluster = replicated(3);
    for key in ["a", "b", "c"] {
        cluster.submit(0, Bytes::from_static(key.as_bytes()), put_idle(Condition::Always), TIMEOUT);
    }
    cluster.run(IDLE - Duration::from_secs(1));
    assert_eq!(held(&cluster), 9);
    cluster.run(Duration::from_secs(4));
    assert_eq!(held(&cluster), 0);
    cluster.run(Duration::from_secs(3));
    assert_no_timeout_pending(&cluster);
}

#[test]
fn condition_sees_the_last_use_at_another_owner() {
    for reader in 0..3 {
        let mut cluster = replicated(3);
        cluster.submit(0, Bytes::from_static(b"k"), put_idle(Condition::Always), TIMEOUT);
        for _ in 0..4 {
            cluster.run(Duration::from_secs(3));
            assert!(found(&mut cluster, reader, b"k"));
        }
        cluster.run(Duration::from_secs(3));
        let is_done = |cluster: &mut Cluster| {
            let put = put_idle(Condition::Absent);
            let at = cluster.submit((reader + 1) % 3, Bytes::from_static(b"k"), put, TIMEOUT);
            cluster.run(Duration::from_millis(100));
            match &cluster.history[at].result {
                Some(Ok(Outcome::Written(written))) => written.is_done,
                other => panic!("{other:?}"),
            }
        };
        assert!(!is_done(&mut cluster), "member {reader} has used it");
        cluster.run(2 * IDLE);
        assert!(is_done(&mut cluster), "no member has it");
    }
}

#[test]
fn entry_unused_here_is_kept_unread_while_owners_are_unreachable() {
    let mut cluster = replicated(3);
    cluster.submit(0, Bytes::from_static(b"k"), put_idle(Condition::Always), TIMEOUT);
    cluster.run(Duration::from_secs(1));
    cluster.cut(vec![0, 0, 1]);
    for _ in 0..3 {
        cluster.run(Duration::from_secs(3));
        assert!(found(&mut cluster, 0, b"k"), "the others use it");
    }
    assert!(!found(&mut cluster, 2, b"k"));
    cluster.run(Duration::from_secs(3));
    assert_eq!(cluster.members[2].as_ref().unwrap().container.len(), 1);
    cluster.heal();
    cluster.run(Duration::from_secs(1));
    for n in 0..3 {
        assert!(found(&mut cluster, n, b"k"), "member {n}");
    }
}

#[test]
fn the_last_owner_knows_by_itself() {
    let mut cluster = replicated(2);
    cluster.submit(0, Bytes::from_static(b"k"), put_idle(Condition::Always), TIMEOUT);
    cluster.run(Duration::from_secs(1));
    cluster.leave(0);
    cluster.run(Duration::from_secs(2));
    assert!(found(&mut cluster, 1, b"k"));
    cluster.run(IDLE);
    assert!(!found(&mut cluster, 1, b"k"));
    assert_eq!(held(&cluster), 0);
}

#[test]
fn readers_at_all_members_find_only_entries_used_in_time() {
    every_seed(20, |seed, _| {
        let mut cluster = Cluster::settled(seed, CacheConfig::new("idle"), 4);
        let keys: [&'static [u8]; 6] = [b"a", b"b", b"c", b"d", b"e", b"f"];
        // Time of the last use of each; `None` if it is absent.
        let mut used = [None; 6];
        for _ in 0..300 {
            let pause = cluster.rng.duration(Duration::ZERO, IDLE / 2);
            cluster.run(pause);
            if cluster.rng.chance(0.03) && cluster.is_settled() {
                move_owners(&mut cluster);
            }
            let nth = cluster.rng.below(keys.len() as u64) as usize;
            let users = users(&cluster);
            let n = users[cluster.rng.below(users.len() as u64) as usize];
            let began = cluster.now;
            if cluster.rng.chance(0.2) {
                cluster.submit(n, Bytes::from_static(keys[nth]), put_idle(Condition::Always), TIMEOUT);
                cluster.run(Duration::from_millis(100));
                used[nth] = Some(began);
                continue;
            }
            let is_found = found(&mut cluster, n, keys[nth]);
            let slack = Duration::from_millis(100);
            match used[nth] {
                None => assert!(!is_found, "seed {seed}: it was not put"),
                Some(at) if began.since(at) < IDLE - slack => assert!(is_found, "seed {seed}: it was used"),
                Some(at) if began.since(at) > IDLE + slack => assert!(!is_found, "seed {seed}: it was not"),
                Some(_) => {}
            }
            used[nth] = is_found.then_some(began);
        }
    });
}

/// Returns the ready members that are not leaving.
fn users(cluster: &Cluster) -> Vec<usize> {
    let is_user = |n: &usize| {
        let member = cluster.members[*n].as_ref();
        member.is_some_and(|one| !one.is_leaving && one.node.topology(cluster.cache()).is_some())
    };
    cluster.live_members().into_iter().filter(is_user).collect()
}

/// Starts a member or makes one leave. Members that have left before end.
fn move_owners(cluster: &mut Cluster) {
    for n in cluster.live_members() {
        if cluster.members[n].as_ref().is_some_and(|one| one.is_left) {
            cluster.crash(n);
        }
    }
    let users = users(cluster);
    if users.len() < 4 || users.len() < 6 && cluster.rng.chance(0.5) {
        cluster.start();
    } else {
        let leaver = users[cluster.rng.below(users.len() as u64) as usize];
        cluster.leave(leaver);
    }
}

/// Returns a cluster and the keys of which member 2 is an owner. Only member 2 uses them, and it reads its own
/// entries without requests.
fn used_by_an_owner(members: usize) -> (Cluster, Vec<Bytes>) {
    let mut cluster = Cluster::settled(7, CacheConfig::new("idle"), members);
    let keys: Vec<Bytes> = (0..60).map(|n| Bytes::from(format!("k{n}"))).collect();
    for key in &keys {
        cluster.submit(0, key.clone(), put_idle(Condition::Always), TIMEOUT);
    }
    cluster.run(Duration::from_secs(4));
    let owned: Vec<Bytes> = keys.into_iter().filter(|key| is_held(&cluster, 2, key)).collect();
    assert!(all_found(&mut cluster, 2, &owned));
    (cluster, owned)
}

#[test]
fn former_owner_sends_the_last_use_of_an_entry() {
    for is_leaving in [false, true] {
        let (mut cluster, owned) = used_by_an_owner(3);
        if is_leaving {
            cluster.leave(2);
        } else {
            (0..3).for_each(|_| {
                cluster.start();
            });
        }
        cluster.run(Duration::from_secs(2));
        assert!(owned.iter().any(|key| !is_held(&cluster, 2, key)), "something moves");
        assert!(all_found(&mut cluster, 0, &owned), "is_leaving: {is_leaving}");
        cluster.run(2 * IDLE);
        assert_eq!(held(&cluster), 0, "they were not used since");
    }
}

/// Each member that got the last use is lost in turn: another one has it, too.
#[test]
fn sent_last_use_survives_the_loss_of_one_owner() {
    for lost in [0, 1, 3] {
        let (mut cluster, owned) = used_by_an_owner(4);
        assert!(owned.len() > 10);
        cluster.leave(2);
        cluster.run(Duration::from_secs(1));
        cluster.crash(lost);
        cluster.deliver_views(false);
        cluster.run(Duration::from_secs(2));
        assert!(all_found(&mut cluster, (lost + 1) % 2, &owned), "member {lost} is lost");
    }
}

/// Whether a member finds all of these keys.
fn all_found(cluster: &mut Cluster, n: usize, keys: &[Bytes]) -> bool {
    let read = |key: &Bytes| cluster.submit(n, key.clone(), Action::Read(ReadFrom::Nearest), TIMEOUT);
    let reads: Vec<usize> = keys.iter().map(read).collect();
    cluster.run(Duration::from_millis(100));
    let is_found = |at: usize| matches!(cluster.history[at].result, Some(Ok(Outcome::Read(Some(_)))));
    reads.into_iter().all(is_found)
}

/// Whether a member has a key.
fn is_held(cluster: &Cluster, n: usize, key: &[u8]) -> bool {
    let segment = cluster.config.segment_of(key);
    cluster.members[n].as_ref().is_some_and(|one| one.container.peek(segment, key).is_some())
}

/// A put in one partition whose entry has expired there is not undone by the older entry of another partition.
#[test]
fn value_before_an_expired_one_does_not_return_in_a_merge() {
    let partitions = PartitionHandling::AllowReadWrites;
    let all = [(0, 1), (0, 4), (2, 1), (2, 4)];
    let brief = Some(Duration::from_secs(1));
    for ((writer, seconds), is_idle) in all.into_iter().flat_map(|one| [(one, false), (one, true)]) {
        let mode = CacheMode::Replicated;
        let config = CacheConfig { mode, partitions, ..CacheConfig::new("parted") };
        let mut cluster = Cluster::settled(7, config, 3);
        cluster.submit(0, Bytes::from_static(b"k"), put(Lifetime::default(), Condition::Always), TIMEOUT);
        cluster.run(Duration::from_secs(1));
        cluster.cut(vec![0, 0, 1]);
        cluster.run(Duration::from_secs(3));
        let lifetime = match is_idle {
            true => Lifetime { lifespan: None, max_idle: brief },
            false => Lifetime { lifespan: brief, max_idle: None },
        };
        let at = cluster.submit(writer, Bytes::from_static(b"k"), put(lifetime, Condition::Always), TIMEOUT);
        cluster.run(Duration::from_millis(1_050 * seconds));
        assert!(matches!(cluster.history[at].result, Some(Ok(_))), "{:?}", cluster.history[at]);
        cluster.heal();
        cluster.run(Duration::from_secs(4));
        for n in 0..3 {
            assert!(
                !found(&mut cluster, n, b"k"),
                "member {n}, written by {writer}, idle: {is_idle}, after {seconds} s"
            );
        }
        assert_eq!(held(&cluster), 0);
    }
}

/// Like the test above, where the entry was put and has expired before a member detected the partition.
#[test]
fn value_before_one_that_expired_unnoticed_does_not_return_in_a_merge() {
    for writer in [0, 1] {
        let (mode, partitions) = (CacheMode::Replicated, PartitionHandling::AllowReadWrites);
        let config = CacheConfig { mode, partitions, ..CacheConfig::new("parted") };
        let mut cluster = Cluster::settled(7, config, 3);
        let key = Bytes::from_static(b"k");
        cluster.submit(0, key.clone(), put(Lifetime::default(), Condition::Always), TIMEOUT);
        cluster.run(Duration::from_secs(1));
        cluster.sides = vec![0, 0, 1];
        let lifetime = Lifetime { lifespan: Some(Duration::from_millis(200)), max_idle: None };
        let at = cluster.submit(writer, key, put(lifetime, Condition::Always), TIMEOUT);
        cluster.run(Duration::from_secs(3));
        cluster.deliver_views(false);
        cluster.run(Duration::from_secs(3));
        assert!(matches!(cluster.history[at].result, Some(Ok(_))), "{:?}", cluster.history[at]);
        cluster.heal();
        cluster.run(Duration::from_secs(4));
        for n in 0..3 {
            assert!(!found(&mut cluster, n, b"k"), "member {n}, written by {writer}");
        }
        assert_eq!(held(&cluster), 0);
    }
}
