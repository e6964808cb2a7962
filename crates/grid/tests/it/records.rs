//! Records of writes, which owners keep until the callers report that they are finished.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use consort_grid::{
    Action, CacheConfig, CacheMode, CapacityFactor, Change, Condition, EventKind, Lifetime, ListenOptions,
    Outcome, ReadFrom, Version, Write, Written,
};
use consort_group::Time;

use crate::clients::Clients;
use crate::cluster::Cluster;
use crate::listeners::{key, kinds, listen, settled};
use crate::persistence::{TIMEOUT, put};
use crate::seeds::every_seed;
use crate::swarm::check_history;

/// The primary knows that the write is finished, and so sends nothing when the caller has gone.
#[test]
fn records_of_a_departed_caller_are_dropped_by_owners_that_missed_its_watermark() {
    let mut cluster = Cluster::settled(1, CacheConfig::new("grid"), 2);
    let config = cluster.config.clone();
    let caller = cluster.start_as(config, CapacityFactor::ZERO);
    cluster.run(Duration::from_secs(2));
    let key = Bytes::from_static(b"key");
    for action in [put(1), Action::Read(ReadFrom::Primary)] {
        let at = cluster.submit(caller, key.clone(), action, TIMEOUT);
        cluster.run(Duration::from_millis(100));
        assert!(matches!(cluster.history[at].result, Some(Ok(_))), "{:?}", cluster.history[at]);
    }
    let records = |cluster: &Cluster| {
        let cache = cluster.cache();
        cluster.members.iter().flatten().map(|member| member.node.stats().load(cache).records).sum::<usize>()
    };
    assert_eq!(records(&cluster), 1, "of the owner that is not asked");
    cluster.crash(caller);
    cluster.deliver_views(false);
    cluster.run(Duration::from_secs(4));
    assert!(cluster.is_settled(), "{}", cluster.state());
    assert_eq!(records(&cluster), 0);
}

/// A former primary that is no longer an owner has the only record of a write, and the next primary gets the record
/// late: the topology after that waits for it. Otherwise the primary of that topology would not learn of the write,
/// and would carry it out once more.
#[test]
fn write_ordered_two_primaries_ago_is_applied_once() {
    for seed in 0..20 {
        let mut cluster = settled(seed, 2, 2);
        let mut reader = listen(&mut cluster, 1, ListenOptions::default());
        cluster.slow.extend([((1, 2), Duration::from_millis(600)), ((1, 0), Duration::from_millis(100))]);
        cluster.start();
        cluster.run(Duration::from_millis(150));
        cluster.start();
        // While the first of them receives its segments, and until it has all of them.
        for n in 0..150 {
            cluster.submit(1, key(n), put(1), TIMEOUT);
            cluster.run(Duration::from_millis(5));
        }
        cluster.run(Duration::from_secs(8));
        assert!(cluster.is_settled(), "{}", cluster.state());
        cluster.check_agreement();
        reader.poll(&mut cluster);
        assert_eq!(kinds(&reader), vec![EventKind::Created; 150], "seed {seed}");
    }
}

/// Crashes a member, once, at that time.
fn crash_at(cluster: &mut Cluster, at: &mut Option<Time>, lost: usize) {
    if at.take_if(|at| cluster.now >= *at).is_some() {
        cluster.crash(lost);
        cluster.deliver_views(false);
    }
}

/// Lets all pending operations end; prints the story in a run of one seed.
fn settle(cluster: &mut Cluster, is_told: bool) {
    cluster.run(Duration::from_secs(15));
    if is_told {
        println!("{}", cluster.story.join("\n"));
    }
}

/// Checks that no write has two versions, as far as the writes after it show.
fn check_done_once(cluster: &Cluster) {
    let mut versions: BTreeMap<(&Bytes, &Bytes), Version> = BTreeMap::new();
    for done in &cluster.history {
        let Some(Ok(Outcome::Written(Written { is_done: true, version, previous, .. }))) = &done.result
        else {
            continue;
        };
        let put = match &done.action {
            Action::Write(Write { change: Change::Put { value, .. }, .. }) => Some((value, *version)),
            _ => None,
        };
        let before = previous.as_ref().map(|stored| (&stored.value, stored.version));
        for (value, version) in put.into_iter().chain(before) {
            let known = *versions.entry((&done.key, value)).or_insert(version);
            assert_eq!(known, version, "{value:?} of {:?} was put twice: {done:?}", done.key);
        }
    }
}

/// The primary's frames to a joining member are lost, in one direction, while another owner sends it the segment.
/// When the primary is lost, too, the new one has the entries of writes that are repeated.
pub(crate) fn lose_backups(seed: u64, is_told: bool) {
    // With few segments the joining member may be the primary of none, and then it waits for no records.
    let config = CacheConfig { segments: 1 + (seed % 4) as u16, ..CacheConfig::new("grid") };
    let mut cluster = Cluster::settled(seed, config, 3);
    let mut clients = Clients::default();
    // The coordinator's frames arrive.
    let lost = cluster.rng.between(1, 2) as usize;
    (0..3).filter(|member| *member != lost).for_each(|member| clients.add(member, 3));
    cluster.mute.insert((lost, 3));
    let joins_at = cluster.now + cluster.rng.duration(Duration::ZERO, Duration::from_millis(50));
    // Some segments are requested first from the muted member, and from others after 2 s without a response.
    let crash = joins_at + cluster.rng.duration(Duration::from_secs(2), Duration::from_secs(5));
    let (mut crashes_at, end) = (Some(crash), crash + Duration::from_secs(1));
    // Writes go on while the transfer is in progress.
    let (chunk_bytes, delay_max) = (cluster.rng.between(1, 100) as u32, cluster.rng.between(1, 10));
    cluster.delay_max = Duration::from_millis(delay_max);
    cluster.members.iter_mut().flatten().for_each(|member| member.node.set_chunk_bytes(chunk_bytes));
    let mut joins = true;
    while cluster.now < end {
        clients.begin(&mut cluster, |cluster| {
            let key = Bytes::from(format!("k{}", cluster.rng.below(40)));
            let value = Bytes::from(format!("v{}", cluster.history.len()));
            let change = Change::Put { value, lifetime: Lifetime::FOREVER };
            let write = Write { condition: Condition::Always, change, wants_previous: true };
            cluster.rng.chance(0.05).then_some((key, Action::Write(write)))
        });
        clients.pass(&mut cluster);
        if joins && cluster.now >= joins_at {
            joins = false;
            let joiner = cluster.start();
            cluster.with(joiner, |node, _| node.set_chunk_bytes(chunk_bytes));
        }
        crash_at(&mut cluster, &mut crashes_at, lost);
    }
    settle(&mut cluster, is_told);
    assert!(cluster.is_settled(), "{}", cluster.state());
    check_history(&cluster);
    check_done_once(&cluster);
    cluster.check_agreement();
}

#[test]
fn new_owner_does_not_repeat_writes_it_got_no_backup_of() {
    every_seed(60, lose_backups);
}

/// A caller leaves the cache while it writes, and goes on with another cache, so that owners learn that all its
/// operations are finished. A primary whose frames to some owners are late is lost.
pub(crate) fn lose_the_primary_of_a_leaver(seed: u64, is_told: bool) {
    let mut config = CacheConfig { segments: 2, ..CacheConfig::new("grid") };
    config.mode = CacheMode::Distributed { owners: 3 };
    let mut cluster = Cluster::new(seed, config.clone());
    cluster.aside = Some(CacheConfig { segments: 16, ..CacheConfig::new("aside") });
    // The coordinator owns nothing.
    for capacity in [
        CapacityFactor::ZERO,
        CapacityFactor::default(),
        CapacityFactor::default(),
        CapacityFactor::default(),
    ] {
        cluster.start_as(config.clone(), capacity);
        cluster.run(Duration::from_millis(50));
    }
    let caller = cluster.start_as(config, CapacityFactor::ZERO);
    cluster.run(Duration::from_secs(2));
    let lost = cluster.rng.between(1, 3) as usize;
    // Its frames to other owners are late and end in the midst of its commands about the leaver; those to the
    // coordinator arrive.
    let (aside, leaves_at) = (cluster.aside.as_ref().map(CacheConfig::id), cluster.now);
    let mut mutes = Vec::new();
    for to in (1..4).filter(|to| *to != lost) {
        let by = cluster.rng.duration(Duration::ZERO, Duration::from_millis(20));
        cluster.slow.insert((lost, to), by);
        mutes.push((leaves_at + by + cluster.rng.duration(Duration::ZERO, Duration::from_millis(12)), to));
    }
    let crash = leaves_at + cluster.rng.duration(Duration::from_millis(20), Duration::from_millis(200));
    let (mut crashes_at, end) = (Some(crash), crash + Duration::from_millis(500));
    for n in 0..20 {
        cluster.submit(caller, Bytes::from(format!("k{}", n % 10)), put(n), TIMEOUT);
    }
    cluster.leave(caller);
    while cluster.now < end {
        for key in (0..8).map(|n| Bytes::from(format!("a{n}"))) {
            let action = Action::Read(ReadFrom::Primary);
            cluster
                .with(caller, |node, now| node.submit(now, aside.unwrap(), key, action, TIMEOUT))
                .unwrap()
                .unwrap();
        }
        cluster.run(Duration::from_millis(1));
        let now = cluster.now;
        cluster.mute.extend(mutes.iter().filter(|(at, _)| *at <= now).map(|(_, to)| (lost, *to)));
        crash_at(&mut cluster, &mut crashes_at, lost);
    }
    settle(&mut cluster, is_told);
    cluster.check_agreement();
    let cache = cluster.cache();
    let orphans =
        cluster.members.iter().flatten().map(|member| member.node.stats().load(cache).orphans).sum::<usize>();
    assert_eq!(orphans, 0, "{}", cluster.state());
}

#[test]
fn write_abandoned_by_a_leaving_caller_reaches_all_owners_or_none() {
    every_seed(100, lose_the_primary_of_a_leaver);
}
