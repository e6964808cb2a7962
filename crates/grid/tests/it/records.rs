//! Records of writes, which owners keep until the callers have said that they are finished.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use consort_grid::{
    Action, CacheConfig, Capacity, Change, Condition, Lifetime, Outcome, ReadFrom, Version, Write, Written,
};

use crate::clients::Clients;
use crate::cluster::Cluster;
use crate::persistence::{TIMEOUT, put};
use crate::seeds::every_seed;
use crate::swarm::check_history;

/// The primary knows that it is, and so has nothing to send when the caller has gone.
#[test]
fn what_a_caller_has_finished_is_forgotten_by_who_has_not_heard_it_when_the_caller_has_gone() {
    let mut cluster = Cluster::settled(1, CacheConfig::new("grid"), 2);
    let config = cluster.config.clone();
    let caller = cluster.start_as(config, Capacity::ZERO);
    cluster.run(Duration::from_secs(2));
    let key = Bytes::from_static(b"key");
    for action in [put(1), Action::Read(ReadFrom::Primary)] {
        let at = cluster.submit(caller, key.clone(), action, TIMEOUT);
        cluster.run(Duration::from_millis(100));
        assert!(matches!(cluster.history[at].result, Some(Ok(_))), "{:?}", cluster.history[at]);
    }
    let records = |cluster: &Cluster| {
        let cache = cluster.cache();
        cluster.members.iter().flatten().map(|member| member.node.load(cache).records).sum::<usize>()
    };
    assert_eq!(records(&cluster), 1, "of the owner that is not asked");
    cluster.crash(caller);
    cluster.announce(false);
    cluster.run(Duration::from_secs(4));
    assert!(cluster.is_settled(), "{}", cluster.state());
    assert_eq!(records(&cluster), 0);
}

/// No write has two versions, as far as those tell that followed it.
fn check_done_once(cluster: &Cluster) {
    let mut versions: BTreeMap<(&Bytes, &Bytes), Version> = BTreeMap::new();
    for done in &cluster.history {
        let Some(Ok(Outcome::Written(Written { is_done: true, version, previous, .. }))) = &done.result else {
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

/// What the primary sends to a member that joins is lost, one way, while another owner gives it the segment. When the primary
/// is lost, too, the new one has entries of writes that are sent again.
fn lose_backups(seed: u64, is_told: bool) {
    let config = CacheConfig { segments: 4, ..CacheConfig::new("grid") };
    let mut cluster = Cluster::settled(seed, config, 3);
    let mut clients = Clients::default();
    // The coordinator is heard.
    let lost = cluster.rng.between(1, 3) as usize;
    (0..3).filter(|member| *member != lost).for_each(|member| clients.add(member, 3));
    cluster.mute.insert((lost, 3));
    let joins_at = cluster.now + cluster.rng.duration(Duration::ZERO, Duration::from_millis(50));
    // Some segments are asked of the one who is not heard first, and of others when they have not come for two seconds.
    let crashes_at = joins_at + cluster.rng.duration(Duration::from_secs(2), Duration::from_secs(5));
    let end = crashes_at + Duration::from_secs(1);
    // Writes go on while there is still more to come.
    let (chunk_bytes, delay_max) = (cluster.rng.between(1, 100) as u32, cluster.rng.between(1, 10));
    cluster.delay_max = Duration::from_millis(delay_max);
    cluster.members.iter_mut().flatten().for_each(|member| member.node.set_chunk_bytes(chunk_bytes));
    let (mut joins, mut crashes) = (true, true);
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
        if crashes && cluster.now >= crashes_at {
            crashes = false;
            cluster.crash(lost);
            cluster.announce(false);
        }
    }
    cluster.run(Duration::from_secs(15));
    if is_told {
        println!("{}", cluster.story.join("\n"));
    }
    assert!(cluster.is_settled(), "{}", cluster.state());
    check_history(&cluster);
    check_done_once(&cluster);
    cluster.check_agreement();
}

#[test]
fn who_pulls_a_segment_carries_out_nothing_again_of_what_it_was_sent_no_backup() {
    every_seed(60, lose_backups);
}
