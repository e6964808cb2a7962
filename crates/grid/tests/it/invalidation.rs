//! Invalidation caches: every member has its own entries, and a write invalidates the key on the others.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use consort_grid::{
    Action, CacheConfig, CacheMode, Change, Condition, Container, ContainerSettings, Event, EventKind,
    Lifetime, ListenError, ListenOptions, Node, OpenError, OperationError, Outcome, PartitionHandling,
    ReadFrom, Scope, StoreSettings, Write,
};
use consort_group::Time;

use crate::clients::{Clients, TIMEOUT};
use crate::cluster::{Cluster, Done, address};
use crate::faults::Faults;
use crate::listening::Reader;
use crate::seeds::every_seed;

fn config(partitions: PartitionHandling) -> CacheConfig {
    let mode = CacheMode::Invalidation;
    CacheConfig { segments: 16, mode, partitions, ..CacheConfig::new("near") }
}

fn settled(members: usize) -> Cluster {
    Cluster::settled(1, config(PartitionHandling::AllowReads), members)
}

fn put(value: Bytes, condition: Condition) -> Action {
    let change = Change::Put { value, lifetime: Lifetime::FOREVER };
    Action::Write(Write { condition, change, wants_previous: false })
}

fn always(change: Change) -> Action {
    Action::Write(Write { condition: Condition::Always, change, wants_previous: false })
}

fn done(cluster: &mut Cluster, member: usize, key: &str, action: Action) -> Outcome {
    let at = cluster.submit(member, Bytes::copy_from_slice(key.as_bytes()), action, TIMEOUT);
    cluster.run(Duration::from_millis(30));
    match cluster.history[at].result.clone() {
        Some(Ok(outcome)) => outcome,
        other => panic!("{key}: {other:?}"),
    }
}

fn read(cluster: &mut Cluster, member: usize, key: &str) -> Option<String> {
    match done(cluster, member, key, Action::Read(ReadFrom::Nearest)) {
        Outcome::Read(found) => found.map(|stored| String::from_utf8_lossy(&stored.value).into_owned()),
        other => panic!("{other:?}"),
    }
}

fn write(cluster: &mut Cluster, member: usize, key: &str, value: &str) {
    let value = Bytes::copy_from_slice(value.as_bytes());
    let outcome = done(cluster, member, key, put(value, Condition::Always));
    assert!(matches!(outcome, Outcome::Written(written) if written.is_done));
}

#[test]
fn writer_keeps_its_entry_and_others_drop_theirs_before_the_acknowledgement() {
    let mut cluster = settled(3);
    write(&mut cluster, 0, "k", "of M0");
    assert_eq!(read(&mut cluster, 0, "k").as_deref(), Some("of M0"));
    assert_eq!((read(&mut cluster, 1, "k"), read(&mut cluster, 2, "k")), (None, None));
    let before = cluster.frames;
    write(&mut cluster, 1, "k", "of M1");
    assert_eq!(cluster.frames - before, 4, "there and back with each of the others");
    assert_eq!(read(&mut cluster, 1, "k").as_deref(), Some("of M1"));
    assert_eq!((read(&mut cluster, 0, "k"), read(&mut cluster, 2, "k")), (None, None));
    done(&mut cluster, 2, "k", always(Change::Remove));
    assert_eq!(read(&mut cluster, 1, "k"), None, "who removes what it does not have means the others");
}

#[test]
fn conditions_check_the_entry_of_the_local_member() {
    let mut cluster = settled(2);
    write(&mut cluster, 0, "k", "of M0");
    let absent = done(&mut cluster, 0, "k", put(Bytes::from_static(b"no"), Condition::Absent));
    assert!(matches!(absent, Outcome::Written(written) if !written.is_done));
    let absent = done(&mut cluster, 1, "k", put(Bytes::from_static(b"of M1"), Condition::Absent));
    assert!(matches!(absent, Outcome::Written(written) if written.is_done && !written.was_present));
    assert_eq!(read(&mut cluster, 0, "k"), None);
}

#[test]
fn clear_removes_entries_that_only_other_members_have() {
    let mut cluster = settled(3);
    for n in 0..30 {
        write(&mut cluster, n % 3, &format!("k{n}"), "v");
    }
    let held = |cluster: &Cluster| -> Vec<u64> {
        cluster.members.iter().flatten().map(|member| member.container.len()).collect()
    };
    assert_eq!(held(&cluster), [10, 10, 10]);
    done(&mut cluster, 1, "", always(Change::Clear));
    assert_eq!(held(&cluster), [0, 0, 0]);
    write(&mut cluster, 1, "k", "v");
    assert_eq!(read(&mut cluster, 1, "k").as_deref(), Some("v"));
    let mut shared = Cluster::settled(1, CacheConfig::new("shared"), 1);
    let at = shared.submit(0, Bytes::new(), always(Change::Clear), TIMEOUT);
    assert!(matches!(shared.history[at].result, Some(Err(OperationError::Unsupported { .. }))));
}

#[test]
fn members_come_and_go_and_nothing_moves() {
    let mut cluster = settled(2);
    write(&mut cluster, 0, "k", "of M0");
    let joined = cluster.start();
    cluster.run(Duration::from_secs(2));
    assert!(cluster.is_settled(), "{}", cluster.state());
    assert_eq!(read(&mut cluster, joined, "k"), None);
    assert_eq!(read(&mut cluster, 0, "k").as_deref(), Some("of M0"));
    write(&mut cluster, joined, "k", "of the new one");
    assert_eq!(read(&mut cluster, 0, "k"), None);
    cluster.leave(joined);
    cluster.run(Duration::from_secs(2));
    assert!(cluster.members[joined].as_ref().is_some_and(|member| member.is_left), "{}", cluster.state());
    let cache = cluster.cache();
    let topology = cluster.members[0].as_ref().and_then(|member| member.node.topology(cache));
    assert_eq!(topology.map(|topology| topology.rebalance), Some(0), "there was none");
    cluster.crash(1);
    cluster.deliver_views(false);
    cluster.run(Duration::from_secs(1));
    let at = cluster.submit(0, Bytes::from_static(b"k"), put(Bytes::new(), Condition::Always), TIMEOUT);
    let result = &cluster.history[at].result;
    assert!(matches!(result, Some(Err(OperationError::Degraded { .. }))), "half is no majority: {result:?}");
}

#[test]
fn after_a_merge_of_sides_that_have_both_written_nothing_old_is_left() {
    let mut cluster = Cluster::settled(3, config(PartitionHandling::AllowReadWrites), 4);
    for n in 0..4 {
        write(&mut cluster, n, &format!("k{n}"), "before");
    }
    cluster.cut(vec![0, 0, 0, 1]);
    cluster.run(Duration::from_secs(2));
    write(&mut cluster, 3, "k0", "of the few");
    write(&mut cluster, 0, "k3", "of the many");
    assert_eq!(read(&mut cluster, 0, "k0").as_deref(), Some("before"), "they do not know of each other");
    cluster.heal();
    cluster.run(Duration::from_secs(5));
    assert!(cluster.is_settled(), "{}", cluster.state());
    for (member, key) in (0..4).flat_map(|member| (0..4).map(move |key| (member, format!("k{key}")))) {
        assert_eq!(read(&mut cluster, member, &key), None);
    }
}

#[test]
fn majority_keeps_its_entries_because_a_minority_could_not_write() {
    let mut cluster = Cluster::settled(3, config(PartitionHandling::DenyReadWrites), 3);
    write(&mut cluster, 0, "kept", "v");
    write(&mut cluster, 2, "dropped", "v");
    cluster.cut(vec![0, 0, 1]);
    cluster.run(Duration::from_secs(2));
    write(&mut cluster, 0, "dropped", "newer");
    cluster.heal();
    cluster.run(Duration::from_secs(5));
    assert_eq!(read(&mut cluster, 0, "kept").as_deref(), Some("v"));
    assert_eq!(read(&mut cluster, 2, "dropped"), None);
}

#[test]
fn invalidation_listeners_get_local_events_and_cluster_scope_is_refused() {
    let mut cluster = settled(2);
    let cache = cluster.cache();
    let refused = cluster.with(0, |node, now| node.listen(now, cache, ListenOptions::default()));
    assert!(matches!(refused, Some(Err(ListenError::Operation(OperationError::Unsupported { .. })))));
    let mut reader =
        Reader::begin(&mut cluster, 0, ListenOptions { scope: Scope::Local, ..ListenOptions::default() });
    write(&mut cluster, 0, "k", "of M0");
    write(&mut cluster, 1, "k", "of M1");
    write(&mut cluster, 1, "other", "of M1");
    done(&mut cluster, 1, "", always(Change::Clear));
    reader.poll(&mut cluster);
    let kinds: Vec<EventKind> = reader.entries().map(|event| event.kind).collect();
    assert_eq!(kinds, [EventKind::Created, EventKind::Removed]);
    assert!(matches!(reader.events.last(), Some((_, Event::Gap))), "what was cleared is not told key by key");
}

#[test]
fn local_expiry_invalidates_no_other_member() {
    let mut cluster = settled(2);
    let mut reader =
        Reader::begin(&mut cluster, 0, ListenOptions { scope: Scope::Local, ..ListenOptions::default() });
    let lifetime = Lifetime { lifespan: Some(Duration::from_secs(2)), max_idle: None };
    done(&mut cluster, 0, "k", always(Change::Put { value: Bytes::from_static(b"v"), lifetime }));
    let before = cluster.frames;
    cluster.run(Duration::from_secs(5));
    reader.poll(&mut cluster);
    let kinds: Vec<EventKind> = reader.entries().map(|event| event.kind).collect();
    assert_eq!(kinds, [EventKind::Created, EventKind::Expired]);
    assert_eq!((read(&mut cluster, 0, "k"), cluster.frames), (None, before));
}

#[test]
fn it_has_no_store() {
    let config = config(PartitionHandling::AllowReads);
    let settings =
        ContainerSettings { segment_count: config.segments, bound: None, is_backed: true, is_shared: false };
    let container = std::sync::Arc::new(Container::new(&settings, 1));
    let backing = StoreSettings { passivation: false, remembered: None };
    let mut node = Node::new(address(0));
    let opened = node.open_backed(Time::ZERO, config, address(0).into(), container, Some(backing));
    assert!(matches!(opened, Err(OpenError::Invalid { setting, .. }) if *setting == *"a store"));
}

fn next_action(cluster: &mut Cluster, nth: usize) -> Action {
    let value = Bytes::from(format!("v{nth}"));
    match cluster.rng.below(20) {
        0..8 => Action::Read(if cluster.rng.chance(0.3) { ReadFrom::Primary } else { ReadFrom::Nearest }),
        8..14 => put(value, Condition::Always),
        14..16 => put(value, Condition::Absent),
        16..19 => always(Change::Remove),
        _ => always(Change::Clear),
    }
}

/// Returns the history, and the intervals in which partitions that all go on may not know of each other.
fn run(seed: u64, is_told: bool) -> (Cluster, Vec<(Time, Time)>) {
    let mut cluster = Cluster::new(seed, config(PartitionHandling::AllowReads));
    cluster.config.segments = 1 + cluster.rng.below(16) as u16;
    cluster.config.partitions = match cluster.rng.below(3) {
        0 => PartitionHandling::DenyReadWrites,
        1 => PartitionHandling::AllowReads,
        _ => PartitionHandling::AllowReadWrites,
    };
    let count = 1 + cluster.rng.below(5);
    let mut clients = Clients::start(&mut cluster, count, 3);
    let keys = 1 + cluster.rng.below(6);
    let end = cluster.now + Duration::from_secs(4);
    let faults = cluster.rng.below(8);
    let mut faults = Faults::new(&cluster, faults, true);
    let goes_on = cluster.config.partitions == PartitionHandling::AllowReadWrites;
    let mut parted: Vec<(Time, Time)> = Vec::new();
    let mut is_parted = false;
    while cluster.now < end {
        clients.begin(&mut cluster, |cluster| {
            let key = Bytes::from(format!("k{}", cluster.rng.below(keys)));
            let nth = cluster.history.len();
            let action = next_action(cluster, nth);
            Some((key, action))
        });
        clients.pass(&mut cluster);
        if let Some(member) = faults.strike(&mut cluster) {
            clients.add(member, 2);
        }
        let is_cut = cluster.sides.iter().any(|side| *side != 0);
        if goes_on && is_cut && !is_parted {
            parted.push((cluster.now, Time(u64::MAX)));
            is_parted = true;
        } else if is_parted && !is_cut && cluster.is_settled() {
            parted.last_mut().expect("it is parted").1 = cluster.now;
            is_parted = false;
        }
    }
    faults.end(&mut cluster);
    cluster.run(Duration::from_secs(30));
    if is_told {
        println!("{}", cluster.story.join("\n"));
    }
    (cluster, parted)
}

fn is_write(done: &Done) -> bool {
    matches!(done.result, Some(Ok(Outcome::Written(ref written))) if written.is_done)
}

/// Checks that after a write is acknowledged no member reads an older value.
fn check_history(cluster: &Cluster, parted: &[(Time, Time)]) {
    let mut by_value: BTreeMap<&Bytes, &Done> = BTreeMap::new();
    for done in &cluster.history {
        if let Action::Write(Write { change: Change::Put { value, .. }, .. }) = &done.action {
            by_value.insert(value, done);
        }
    }
    let is_clear = |done: &Done| matches!(&done.action, Action::Write(Write { change: Change::Clear, .. }));
    let writes: Vec<&Done> = cluster.history.iter().filter(|done| is_write(done)).collect();
    for read in &cluster.history {
        let (Some(Ok(Outcome::Read(Some(stored)))), Some(ended)) = (&read.result, read.ended) else {
            continue;
        };
        let writer = by_value.get(&stored.value).unwrap_or_else(|| panic!("no writer of {stored:?}"));
        assert!(writer.key == read.key && writer.began <= ended, "{read:?} gives what {writer:?} wrote");
        let is_excused = read.is_apart || parted.iter().any(|(from, to)| read.began <= *to && *from <= ended);
        let Some(written) = writer.ended.filter(|_| is_write(writer) && !is_excused) else { continue };
        let newer = writes.iter().find(|other| {
            (other.key == read.key || is_clear(other))
                && other.began > written
                && other.ended.is_some_and(|at| at < read.began)
        });
        assert!(newer.is_none(), "{read:?}\ngives {writer:?}\nafter {newer:?}");
    }
}

fn check(seed: u64, is_told: bool) {
    let (mut cluster, parted) = run(seed, is_told);
    let late = cluster.history.iter().find(|done| {
        cluster.members[done.member].as_ref().is_some_and(|member| !member.is_left)
            && done.ended.is_none_or(|at| at.since(done.began) > TIMEOUT + Duration::from_secs(1))
    });
    assert!(late.is_none(), "{late:?} hangs");
    assert!(cluster.is_settled(), "no stable topology:\n{}", cluster.state());
    check_history(&cluster, &parted);
    // At most one member has an entry of each key, and once a key is written it is the writer.
    let here: Vec<usize> = cluster
        .live_members()
        .into_iter()
        .filter(|&n| cluster.members[n].as_ref().is_some_and(|m| !m.is_left))
        .collect();
    for key in (0..6).map(|key| format!("k{key}")) {
        let holders = here.iter().filter(|&&n| read(&mut cluster, n, &key).is_some()).count();
        assert!(holders <= 1, "{key} is on {holders} members");
        let Some(&writer) = here.first() else { continue };
        write(&mut cluster, writer, &key, "last");
        for &n in &here {
            assert_eq!(read(&mut cluster, n, &key).is_some(), n == writer);
        }
    }
}

#[test]
fn acknowledged_write_hides_older_entries_from_all_readers_whatever_happens() {
    every_seed(40, check);
}

/// It has not received the topology without it when the other member's write is acknowledged.
#[test]
fn leaving_member_reads_no_entry_that_another_member_has_replaced() {
    let step = Duration::from_micros(100);
    let mut reads = 0;
    for delay in 0..60 {
        let mut cluster = Cluster::settled(delay, config(PartitionHandling::AllowReads), 2);
        write(&mut cluster, 1, "k", "old");
        cluster.leave(1);
        cluster.run(step * delay as u32);
        let new = put(Bytes::from_static(b"new"), Condition::Always);
        let at = cluster.submit(0, Bytes::from_static(b"k"), new, TIMEOUT);
        while cluster.history[at].result.is_none() {
            cluster.run(step);
        }
        // The member answers reads until it has left.
        let at = cluster.submit(1, Bytes::from_static(b"k"), Action::Read(ReadFrom::Nearest), TIMEOUT);
        cluster.run(Duration::from_millis(30));
        if let Some(Ok(Outcome::Read(found))) = &cluster.history[at].result {
            reads += 1;
            assert!(found.as_ref().is_none_or(|stored| &stored.value[..] != b"old"), "{delay}: {found:?}");
        }
    }
    assert!(reads > 0);
    check(1419, false);
}
