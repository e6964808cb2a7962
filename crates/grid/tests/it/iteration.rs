//! Iterations while members join, leave and crash: every entry that is present throughout is returned exactly once.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::clients::TIMEOUT;
use crate::cluster::{Cluster, address};
use crate::faults::Faults;
use crate::seeds::every_seed;
use bytes::Bytes;
use consort_grid::{
    Action, CacheConfig, CacheMode, CapacityFactor, Change, Condition, Guarantee, IterationError,
    IterationId, LANES_MAX, Lifetime, Next, OperationError, PartitionHandling, Projection, Publication,
    Write,
};

fn put(value: &'static str) -> Action {
    let change = Change::Put { value: Bytes::from_static(value.as_bytes()), lifetime: Lifetime::FOREVER };
    Action::Write(Write { condition: Condition::Always, change, wants_previous: false })
}

pub(crate) fn remove() -> Action {
    Action::Write(Write { condition: Condition::Always, change: Change::Remove, wants_previous: false })
}

/// Returns a settled cluster with entries.
pub(crate) fn populated(seed: u64, members: usize, keys: u64) -> Cluster {
    populated_as(2, PartitionHandling::default(), seed, members, keys)
}

pub(crate) fn populated_as(
    owners: u16,
    partitions: PartitionHandling,
    seed: u64,
    members: usize,
    keys: u64,
) -> Cluster {
    let mode = CacheMode::Distributed { owners };
    let config = CacheConfig { segments: 16, mode, partitions, ..CacheConfig::new("iterated") };
    let mut cluster = Cluster::settled(seed, config, members);
    for n in 0..keys {
        let at = (n % members as u64) as usize;
        cluster.submit(at, key(n), put("steady"), TIMEOUT);
    }
    cluster.run(Duration::from_secs(1));
    assert!(cluster.history.iter().all(|done| matches!(done.result, Some(Ok(_)))));
    cluster
}

pub(crate) fn key(n: u64) -> Bytes {
    Bytes::from(format!("key-{n}"))
}

pub(crate) fn begin(cluster: &mut Cluster, n: usize, publication: Publication) -> IterationId {
    let cache = cluster.cache();
    cluster.with(n, |node, _| node.iterate(cache, publication)).expect("alive").expect("open")
}

pub(crate) fn next(cluster: &mut Cluster, n: usize, id: IterationId) -> Next {
    let cache = cluster.cache();
    cluster.with(n, |node, now| node.take(now, cache, id)).expect("alive").expect("no failure")
}

fn unconsumed(cluster: &mut Cluster, n: usize, id: IterationId) -> usize {
    let cache = cluster.cache();
    cluster.with(n, |node, _| node.unconsumed(cache, id)).expect("alive")
}

pub(crate) fn asked(cluster: &mut Cluster, n: usize, id: IterationId) -> usize {
    let cache = cluster.cache();
    cluster.with(n, |node, _| node.asked(cache, id)).expect("alive")
}

/// A reader whose queue gets other members' responses, while it consumes earlier ones.
#[derive(Default)]
struct Ahead {
    brought: VecDeque<Next>,
    consumed: usize,
    has_one: bool,
}

impl Ahead {
    /// Queues the responses that have arrived.
    fn bring(&mut self, cluster: &mut Cluster, n: usize, id: IterationId) {
        let cache = cluster.cache();
        while !matches!(self.brought.back(), Some(Next::End { .. })) {
            let consumed = std::mem::take(&mut self.consumed);
            let came = cluster.with(n, |node, now| node.take_ahead(now, cache, id, consumed));
            let (came, is_more) = came.expect("alive").expect("no failure");
            if came != Next::Nothing {
                self.brought.push_back(came);
            }
            if !is_more {
                return;
            }
        }
    }

    fn next(&mut self, cluster: &mut Cluster, n: usize, id: IterationId) -> Next {
        self.consumed += usize::from(std::mem::take(&mut self.has_one));
        self.bring(cluster, n, id);
        let next = self.brought.pop_front().unwrap_or_else(|| next(cluster, n, id));
        self.has_one = matches!(next, Next::Items(_));
        next
    }
}

/// Returns all keys with the number of times that they were returned, and the count at the end.
pub(crate) fn drain(cluster: &mut Cluster, n: usize, id: IterationId) -> (BTreeMap<Bytes, usize>, u64) {
    let mut found = BTreeMap::new();
    for _ in 0..100_000 {
        match next(cluster, n, id) {
            Next::Items(items) => items.into_iter().for_each(|item| *found.entry(item.key).or_default() += 1),
            Next::Nothing => cluster.run(Duration::from_millis(1)),
            Next::End { count } => return (found, count),
        }
    }
    panic!("no end:\n{}", cluster.state());
}

#[test]
fn a_batch_larger_than_anybody_counts_is_a_large_batch() {
    let mut cluster = populated(1, 3, 300);
    for batch in [0, u32::MAX as usize + 1, usize::MAX] {
        let id = begin(&mut cluster, 0, Publication { batch, ..Publication::default() });
        let (found, count) = drain(&mut cluster, 0, id);
        assert_eq!((found.len(), count), (300, 300), "{batch}");
    }
}

fn run(seed: u64, guarantee: Guarantee) {
    let keys = 300;
    let mut cluster = populated(seed, 2 + (seed % 4) as usize, keys);
    let batch = 1 + cluster.rng.below(60) as usize;
    let lanes = 1 + cluster.rng.below(4) as usize;
    let whole = seed.is_multiple_of(2);
    let publication = Publication { batch, lanes, guarantee, whole, ..Publication::default() };
    let reader = 0;
    let id = begin(&mut cluster, reader, publication);
    let mut ahead = seed.is_multiple_of(3).then(Ahead::default);
    let mut found: BTreeMap<Bytes, usize> = BTreeMap::new();
    let mut touched: BTreeSet<Bytes> = BTreeSet::new();
    let mut faults = 2;
    let mut writes = 0;
    let end = loop {
        assert!(unconsumed(&mut cluster, reader, id) <= batch, "more than the batch");
        assert!(asked(&mut cluster, reader, id) <= LANES_MAX, "more at once than four requests");
        let came = match &mut ahead {
            Some(ahead) => ahead.next(&mut cluster, reader, id),
            None => next(&mut cluster, reader, id),
        };
        match came {
            Next::Items(items) => {
                assert!(items.len() <= batch);
                items.into_iter().for_each(|item| *found.entry(item.key).or_default() += 1);
                let pause = cluster.rng.duration(Duration::ZERO, Duration::from_millis(10));
                cluster.run(pause);
            }
            Next::Nothing => cluster.run(Duration::from_millis(1)),
            Next::End { .. } => break cluster.now,
        }
        // Other members write: entries that are present throughout must be returned all the same.
        if writes < 200 {
            writes += 1;
            let n = 1_000 + cluster.rng.below(50);
            let alive = cluster.live_members();
            let at = alive[cluster.rng.below(alive.len() as u64) as usize];
            let action = if cluster.rng.chance(0.5) { put("fleeting") } else { remove() };
            cluster.submit(at, key(n), action, TIMEOUT);
            touched.insert(key(n));
            let steady = key(cluster.rng.below(keys));
            cluster.submit(at, steady, put("overwritten"), TIMEOUT);
        }
        if faults > 0 && cluster.rng.chance(0.1) {
            faults -= 1;
            let others: Vec<usize> = cluster.live_members().into_iter().filter(|&n| n != reader).collect();
            match cluster.rng.below(3) {
                0 if cluster.is_settled() && cluster.staying_count() > 2 && others.len() > 1 => {
                    let victim = others[cluster.rng.below(others.len() as u64) as usize];
                    cluster.crash(victim);
                    cluster.deliver_views(false);
                }
                1 if !others.is_empty() => {
                    let leaver = others[cluster.rng.below(others.len() as u64) as usize];
                    cluster.leave(leaver);
                }
                _ => {
                    cluster.start();
                }
            }
        }
    };
    let _ = end;
    for n in 0..keys {
        let times = found.get(&key(n)).copied().unwrap_or(0);
        match guarantee {
            Guarantee::ExactlyOnce => assert_eq!(times, 1, "key {n}"),
            Guarantee::AtMostOnce => assert!(times <= 1, "key {n} came {times} times"),
            Guarantee::AtLeastOnce => assert!(times >= 1, "key {n} is missing"),
        }
    }
    if guarantee == Guarantee::ExactlyOnce {
        assert!(found.values().all(|times| *times == 1), "no key comes twice");
    }
    assert!(found.keys().all(|key| touched.contains(key) || key.starts_with(b"key-")));
}

fn run_seeds(guarantee: Guarantee, count: u64) {
    every_seed(count, |seed, _| run(seed, guarantee));
}

/// S004-16. `SEEDS=10000` is the claim's number.
#[test]
fn s004_16_every_entry_is_returned_exactly_once_while_members_join_leave_or_crash() {
    run_seeds(Guarantee::ExactlyOnce, 60);
}

/// S004-17.
#[test]
fn s004_17_at_most_once_is_never_twice() {
    run_seeds(Guarantee::AtMostOnce, 20);
}

#[test]
fn at_least_once_misses_nothing() {
    run_seeds(Guarantee::AtLeastOnce, 20);
}

/// S004-1, S004-2, S004-11.
#[test]
fn s004_1_any_member_iterates_over_everything_with_up_to_four_lanes() {
    let mut cluster = populated(1, 6, 500);
    assert_eq!((Publication::default().lanes, Publication::default().batch), (4, 512));
    for n in 0..6 {
        let id = begin(&mut cluster, n, Publication::default());
        let (found, count) = drain(&mut cluster, n, id);
        assert_eq!((found.len(), count), (500, 500));
    }
}

/// S004-3.
#[test]
fn s004_3_nothing_is_asked_before_something_is_wanted() {
    let mut cluster = populated(2, 3, 50);
    let before = cluster.frames;
    begin(&mut cluster, 0, Publication::default());
    cluster.run(Duration::from_secs(5));
    assert_eq!(cluster.frames, before);
}

/// S004-4, S004-8, S004-9.
#[test]
fn s004_4_lanes_share_the_batch_however_many_members_there_are() {
    for members in [2, 5, 9] {
        let mut cluster = populated(3, members, 600);
        let batch = 101;
        let id = begin(&mut cluster, 0, Publication { batch, ..Publication::default() });
        let mut most = 0;
        loop {
            let taken = next(&mut cluster, 0, id);
            most = most.max(unconsumed(&mut cluster, 0, id));
            match taken {
                Next::Items(items) => assert!(items.len() <= batch),
                Next::Nothing => cluster.run(Duration::from_millis(1)),
                Next::End { .. } => break,
            }
        }
        assert!(most <= batch && most > batch / 2, "{most} with {members} members");
    }
}

/// Returns the number of outstanding requests when the reader first has to wait, or is at the end.
fn asked_at_once(members: usize, publication: Publication) -> usize {
    let mut cluster = populated(8, members, 600);
    let id = begin(&mut cluster, 0, publication);
    while matches!(next(&mut cluster, 0, id), Next::Items(_)) {}
    asked(&mut cluster, 0, id)
}

/// S004-8.
#[test]
fn s004_10_responses_are_fetched_while_the_reader_is_busy_within_the_batch_size() {
    let (keys, batch) = (200, 40);
    let mut cluster = populated(8, 4, keys);
    let id = begin(&mut cluster, 0, Publication { batch, ..Publication::default() });
    let mut ahead = Ahead::default();
    ahead.bring(&mut cluster, 0, id);
    assert_eq!((ahead.brought.len(), asked(&mut cluster, 0, id)), (0, 0), "the reader has shown no need");
    ahead.next(&mut cluster, 0, id);
    assert_eq!(asked(&mut cluster, 0, id), 3, "it has what is here, and the others are asked");
    cluster.run(Duration::from_millis(50));
    ahead.bring(&mut cluster, 0, id);
    assert_eq!(ahead.brought.len(), 3, "one answer of each of them");
    assert_eq!(asked(&mut cluster, 0, id), 0, "a reader with an unread batch requests no other");
    ahead.next(&mut cluster, 0, id);
    assert_eq!(
        asked(&mut cluster, 0, id),
        0,
        "it is done with what was here, and has the first of the others"
    );
    ahead.next(&mut cluster, 0, id);
    assert_eq!(asked(&mut cluster, 0, id), 1, "it is done with that one");
    let mut count = 0;
    let id = begin(&mut cluster, 0, Publication { batch, ..Publication::default() });
    let mut ahead = Ahead::default();
    loop {
        match ahead.next(&mut cluster, 0, id) {
            Next::Items(items) => count += items.len(),
            Next::Nothing => cluster.run(Duration::from_millis(1)),
            Next::End { count: all } => break assert_eq!((all, count as u64), (keys, keys)),
        }
        assert!(unconsumed(&mut cluster, 0, id) <= batch);
    }
}

#[test]
fn s004_8_up_to_four_requests_are_on_their_way_at_once() {
    let publication = || Publication { batch: 64, ..Publication::default() };
    assert_eq!(asked_at_once(2, publication()), 0, "everything is here");
    assert_eq!(asked_at_once(4, publication()), 3, "of each other one");
    assert_eq!(asked_at_once(9, publication()), 4, "once its own is done");
    assert_eq!(asked_at_once(9, Publication { lanes: 1, ..publication() }), 2, "of one after the other");
}

#[test]
fn owner_answering_a_sequential_reader_expects_its_next_request() {
    let expecting = |cluster: &Cluster| [0, 1, 2].map(|n| cluster.members[n].as_ref().unwrap().expecting);
    let mut cluster = populated(8, 3, 600);
    for (lanes, does_expect) in [(4, false), (2, false), (1, true)] {
        let id = begin(&mut cluster, 0, Publication { batch: 8, lanes, ..Publication::default() });
        assert_eq!(drain(&mut cluster, 0, id).1, 600);
        let [own, b, c] = expecting(&cluster);
        // A third of the keys is owned only by other members.
        let others = b + c;
        assert!(own == 0 && if does_expect { others > 10 } else { others == 0 }, "{lanes}: {own} {b} {c}");
    }
}

#[test]
fn entries_are_counted_where_they_are() {
    let mut cluster = populated(4, 3, 400);
    let id = begin(&mut cluster, 1, Publication { projection: Projection::Count, ..Publication::default() });
    let (found, count) = drain(&mut cluster, 1, id);
    assert_eq!((found.len(), count), (0, 400));
}

/// Registers the reduction that [`total`] reads: the number of keys, and the sum of their numbers.
fn register_sum(cluster: &mut Cluster) {
    let cache = cluster.cache();
    for n in 0..cluster.members.len() {
        let sum = |made: &mut Vec<u8>, key: &[u8], _: &consort_grid::Entry, _: &[u8]| {
            let number: u64 = std::str::from_utf8(&key[4..]).unwrap().parse().unwrap();
            let (count, sum) = parts_of(made);
            *made = [count + 1, sum + number].map(u64::to_be_bytes).concat();
        };
        cluster.with(n, |node, _| node.register_reduction(cache, "sum", Arc::new(sum)));
    }
}

fn parts_of(made: &[u8]) -> (u64, u64) {
    let number =
        |at: usize| made.get(at..at + 8).map_or(0, |bytes| u64::from_be_bytes(bytes.try_into().unwrap()));
    (number(0), number(8))
}

fn summing(guarantee: Guarantee) -> Publication {
    let transform = Some(consort_grid::Transform { name: "sum".into(), arguments: Bytes::new() });
    Publication { projection: Projection::Reduced, transform, guarantee, ..Publication::default() }
}

/// Returns the result of a reduction, and its number of parts. `meanwhile` runs when the reader waits.
fn total(
    cluster: &mut Cluster,
    n: usize,
    id: IterationId,
    mut meanwhile: impl FnMut(&mut Cluster),
) -> ((u64, u64), usize) {
    let (mut total, mut parts) = ((0, 0), 0);
    loop {
        match next(cluster, n, id) {
            Next::Items(items) => {
                for item in items {
                    assert!(item.key.is_empty());
                    let (count, sum) = parts_of(&item.value);
                    total = (total.0 + count, total.1 + sum);
                    parts += 1;
                }
            }
            Next::Nothing => {
                cluster.run(Duration::from_millis(1));
                meanwhile(cluster);
            }
            Next::End { .. } => return (total, parts),
        }
    }
}

#[test]
fn entries_are_reduced_at_their_owners_once_each_while_members_leave_or_crash() {
    every_seed(30, |seed, _| {
        let mut cluster = populated(seed, 3 + (seed % 3) as usize, 300);
        register_sum(&mut cluster);
        let id = begin(&mut cluster, 0, summing(Guarantee::ExactlyOnce));
        let mut faults = 1;
        let (total, parts) = total(&mut cluster, 0, id, |cluster| {
            if faults > 0 && cluster.is_settled() {
                faults -= 1;
                if seed.is_multiple_of(2) {
                    cluster.crash(1);
                    cluster.deliver_views(false);
                } else {
                    cluster.leave(1);
                }
            }
        });
        assert_eq!(total, (300, (0..300).sum()));
        assert_eq!(parts, 16, "one of each segment");
    });
}

#[test]
fn a_segment_with_many_entries_is_reduced_in_parts_and_begun_anew_where_its_owner_is_lost() {
    let mode = CacheMode::Distributed { owners: 2 };
    let config = CacheConfig { segments: 1, mode, ..CacheConfig::new("iterated") };
    let keys: u64 = 20_000;
    for is_lost in [false, true] {
        let mut cluster = Cluster::settled(8, config.clone(), 3);
        for n in 0..keys {
            cluster.submit((n % 3) as usize, key(n), put("steady"), TIMEOUT);
        }
        cluster.run(Duration::from_secs(1));
        register_sum(&mut cluster);
        let reader = (0..3).find(|&n| cluster.members[n].as_ref().unwrap().container.is_empty());
        let reader = reader.expect("one owns nothing");
        let owner = cluster.with(reader, |node, _| {
            let topology = node.topology(CacheConfig::new("iterated").id()).unwrap().clone();
            topology.read_owners().primary(consort_grid::Segment(0)).unwrap().clone()
        });
        let owner = (0..3).find(|&n| Some(address(n)) == owner).unwrap();
        let id = begin(&mut cluster, reader, summing(Guarantee::default()));
        let mut answers = 0;
        let (total, parts) = total(&mut cluster, reader, id, |cluster| {
            answers += 1;
            if is_lost && answers == 3 {
                cluster.crash(owner);
                cluster.deliver_views(false);
            }
        });
        assert_eq!(total, (keys, (0..keys).sum()), "lost: {is_lost}");
        assert_eq!(parts, 2);
    }
}

/// S004-18.
#[test]
fn s004_18_a_transform_filters_and_maps_where_the_entries_are() {
    let mut cluster = populated(5, 3, 200);
    let cache = cluster.cache();
    for n in 0..3 {
        cluster.with(n, |node, _| {
            let ending = |key: &[u8], _: &consort_grid::Entry, ending: &[u8]| {
                key.ends_with(ending).then(|| Bytes::from_static(b"!"))
            };
            node.register_transform(cache, "ends with", Arc::new(ending));
        });
    }
    let transform = consort_grid::Transform { name: "ends with".into(), arguments: Bytes::from_static(b"7") };
    let id = begin(&mut cluster, 0, Publication { transform: Some(transform), ..Publication::default() });
    let (found, count) = drain(&mut cluster, 0, id);
    assert_eq!((found.len(), count), (20, 20));
    assert!(found.keys().all(|key| key.ends_with(b"7")));
}

#[test]
fn an_unknown_transform_names_the_member() {
    let mut cluster = populated(6, 3, 20);
    let cache = cluster.cache();
    let transform = consort_grid::Transform { name: "nothing".into(), arguments: Bytes::new() };
    let id = begin(&mut cluster, 0, Publication { transform: Some(transform), ..Publication::default() });
    let error = cluster.with(0, |node, now| node.take(now, cache, id)).unwrap().unwrap_err();
    assert!(error.to_string().ends_with("has no transform nothing"), "{error}");
}

/// Takes items until none is there, and drops the requests of that time.
fn wait_in_vain(cluster: &mut Cluster, n: usize, id: IterationId) {
    let cache = cluster.cache();
    let lose = |node: &mut consort_grid::Node, now| {
        while !matches!(node.take(now, cache, id).expect("no failure"), Next::Nothing) {}
        while node.poll_frame().is_some() {}
    };
    cluster.with(n, lose).expect("alive");
}

#[test]
fn lost_batch_request_is_sent_again() {
    let mut cluster = populated(7, 3, 50);
    let id = begin(&mut cluster, 0, Publication { projection: Projection::Keys, ..Publication::default() });
    let before = cluster.members[0].as_ref().unwrap().woken;
    wait_in_vain(&mut cluster, 0, id);
    cluster.run(Duration::from_secs(3));
    assert_eq!(cluster.members[0].as_ref().unwrap().woken, before + 1);
    assert!(matches!(next(&mut cluster, 0, id), Next::Items(_)));
}

#[test]
fn iteration_fails_when_only_unreachable_owners_have_the_remaining_entries() {
    for seed in 0..20 {
        let mut cluster = populated(seed, 3, 300);
        let publication = Publication { batch: 12, ..Publication::default() };
        let id = begin(&mut cluster, 2, publication);
        assert!(matches!(next(&mut cluster, 2, id), Next::Items(_)), "its own");
        cluster.cut(vec![0, 0, 1]);
        let cache = cluster.cache();
        let failed = (0..10_000).find_map(|_| {
            cluster.run(Duration::from_millis(1));
            cluster.with(2, |node, now| node.take(now, cache, id)).unwrap().err()
        });
        let is_degraded = matches!(failed, Some(IterationError::Operation(OperationError::Degraded { .. })));
        assert!(is_degraded, "{failed:?}\n{}", cluster.state());
    }
}

#[test]
fn iteration_continues_with_reachable_owners_when_both_partitions_may_read() {
    for seed in 0..20 {
        let mut cluster = populated_as(3, PartitionHandling::AllowReads, seed, 4, 300);
        let publication = Publication { batch: 12, ..Publication::default() };
        let id = begin(&mut cluster, 0, publication);
        let Next::Items(items) = next(&mut cluster, 0, id) else { panic!("it owns most") };
        cluster.cut(vec![0, 0, 1, 1]);
        let (mut found, count) = drain(&mut cluster, 0, id);
        items.into_iter().for_each(|item| *found.entry(item.key).or_default() += 1);
        assert_eq!(count, 300);
        assert_eq!(found.len(), 300);
        assert!(found.values().all(|times| *times == 1));
    }
}

/// A member iterates over everything again and again while members join, leave and are partitioned. Returns how often
/// that was complete, and how often it failed because owners were unreachable.
fn walk_again_and_again(seed: u64) -> (usize, usize) {
    let keys = 200;
    let of = [PartitionHandling::DenyReadWrites, PartitionHandling::AllowReads][(seed % 2) as usize];
    let mut cluster = populated_as(2, of, seed, 3 + (seed % 3) as usize, keys);
    let mut faults = Faults::new(&cluster, 6, true);
    let (mut complete, mut ended) = (0, 0);
    let end = cluster.now + Duration::from_secs(6);
    let mut found = BTreeSet::new();
    let mut walk = None;
    loop {
        if cluster.now >= end {
            faults.end(&mut cluster);
            if walk.is_none() && cluster.is_settled() {
                return (complete, ended);
            }
            assert!(cluster.now < end + Duration::from_secs(60), "no end:\n{}", cluster.state());
        }
        faults.strike(&mut cluster);
        let (cache, alive) = (cluster.cache(), cluster.live_members());
        let (reader, id) = *walk.get_or_insert_with(|| {
            found.clear();
            let reader = alive[cluster.rng.below(alive.len() as u64) as usize];
            let batch = 1 + cluster.rng.below(60) as usize;
            let publication = Publication { batch, projection: Projection::Keys, ..Publication::default() };
            (reader, cluster.with(reader, |node, _| node.iterate(cache, publication)).and_then(Result::ok))
        });
        let Some(id) = id else {
            // The member has not opened the cache yet, or has left it.
            cluster.run(Duration::from_millis(5));
            walk = None;
            continue;
        };
        match cluster.with(reader, |node, now| node.take(now, cache, id)) {
            Some(Ok(Next::Items(items))) => {
                for item in items {
                    assert!(found.insert(item.key.to_vec()), "{:?} comes twice", item.key);
                }
                let pause = cluster.rng.duration(Duration::ZERO, Duration::from_millis(20));
                cluster.run(pause);
            }
            Some(Ok(Next::Nothing)) => cluster.run(Duration::from_millis(1)),
            Some(Ok(Next::End { .. })) => {
                assert_eq!(found.len() as u64, keys, "M{reader}\n{}", cluster.state());
                complete += 1;
                walk = None;
                cluster.run(Duration::from_millis(10));
            }
            Some(Err(IterationError::Operation(OperationError::Degraded { .. }))) => {
                ended += 1;
                walk = None;
                cluster.run(Duration::from_millis(50));
            }
            // The member has left or crashed.
            None | Some(Err(IterationError::Operation(OperationError::Closed))) => walk = None,
            Some(Err(error)) => panic!("{error}"),
        }
    }
}

#[test]
fn iterations_are_complete_or_report_unreachable_owners_in_every_partition() {
    let all = every_seed(60, |seed, _| walk_again_and_again(seed));
    let (complete, ended): (Vec<usize>, Vec<usize>) = all.into_iter().unzip();
    let (walks, complete, ended) =
        (complete.len(), complete.iter().sum::<usize>(), ended.iter().sum::<usize>());
    assert!(complete > walks && ended > 0 || walks < 60, "{complete} complete, {ended} ended");
}

#[test]
fn reader_of_a_closed_cache_gets_an_error() {
    let mut cluster = populated(8, 3, 50);
    let id = begin(&mut cluster, 0, Publication::default());
    cluster.leave(0);
    let before = loop {
        let member = cluster.members[0].as_ref().unwrap();
        if member.is_left {
            break member.woken;
        }
        wait_in_vain(&mut cluster, 0, id);
        assert!(cluster.step(cluster.now + Duration::from_secs(10)), "it leaves");
    };
    let cache = cluster.cache();
    assert!(cluster.with(0, |node, now| node.take(now, cache, id)).unwrap().is_err());
    assert_eq!(before, 1);
}

/// A partition may have no member with a capacity above zero.
#[test]
fn iteration_of_an_empty_cache_ends() {
    let config = CacheConfig {
        partitions: PartitionHandling::AllowReadWrites,
        mode: CacheMode::Distributed { owners: 1 },
        ..CacheConfig::new("walked")
    };
    let mut cluster = Cluster::settled(1, config.clone(), 2);
    let apart = cluster.start_as(config, CapacityFactor::ZERO);
    cluster.run(Duration::from_secs(2));
    cluster.cut(vec![0, 0, 1]);
    cluster.run(Duration::from_secs(2));
    let id = begin(&mut cluster, apart, Publication::default());
    assert_eq!(next(&mut cluster, apart, id), Next::End { count: 0 });
}
