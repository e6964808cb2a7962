//! Votes for coordinators: members are partitioned again and again within moments, in every phase of a rebalance,
//! with views that overlap and reach some members late. No two partitions that do not know of each other acknowledge
//! writes of one key.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use consort_grid::{
    Action, CacheConfig, CacheMode, Change, Condition, Lifetime, Outcome, PartitionHandling, ReadFrom,
    Version, Write, Written,
};

use crate::clients::Clients;
use crate::cluster::{Cluster, Done};
use crate::seeds::every_seed;

const KEYS: u64 = 4;

fn key(n: u64) -> Bytes {
    Bytes::from(format!("k{n}"))
}

fn next_write(cluster: &mut Cluster) -> Option<(Bytes, Action)> {
    let value = Bytes::from(format!("v{}", cluster.history.len()));
    let change = Change::Put { value, lifetime: Lifetime::FOREVER };
    let write = Write { condition: Condition::Always, change, wants_previous: true };
    Some((key(cluster.rng.below(KEYS)), Action::Write(write)))
}

fn newest(cluster: &Cluster) -> u32 {
    let topologies = cluster.members.iter().flatten().filter_map(|one| one.node.topology(cluster.cache()));
    topologies.map(|topology| topology.id).max().unwrap_or(0)
}

/// Lets this much time pass, step by step, until `is_reached`; clients write all the while.
fn pass(
    cluster: &mut Cluster,
    clients: &mut Clients,
    time: Duration,
    is_reached: impl Fn(&Cluster) -> bool,
) -> bool {
    let until = cluster.now + time;
    while cluster.now < until {
        if is_reached(cluster) {
            return true;
        }
        clients.begin(cluster, next_write);
        let step = (cluster.now + Duration::from_millis(1)).min(until);
        while cluster.step(step) {
            if is_reached(cluster) {
                clients.note_ended(cluster);
                return true;
            }
        }
        clients.note_ended(cluster);
    }
    is_reached(cluster)
}

/// Puts members into random partitions, of which at least two have members.
fn draw_sides(cluster: &mut Cluster) -> Vec<u8> {
    let mut sides = cluster.sides.clone();
    let alive = cluster.live_members();
    let count = if alive.len() > 3 { 2 + cluster.rng.below(2) } else { 2 };
    loop {
        for &n in &alive {
            sides[n] = cluster.rng.below(count) as u8;
        }
        if alive.iter().any(|&n| sides[n] != sides[alive[0]]) {
            return sides;
        }
    }
}

fn run(seed: u64, is_told: bool, mut cluster: Cluster) -> Cluster {
    let mut config = CacheConfig::new("votes");
    config.segments = 1 + cluster.rng.below(6) as u16;
    config.mode = match cluster.rng.below(4) {
        owners @ 2.. => CacheMode::Distributed { owners: owners as u16 },
        _ => CacheMode::Replicated,
    };
    if cluster.rng.chance(0.5) {
        config.partitions = PartitionHandling::DenyReadWrites;
    }
    cluster.config = config;
    cluster.view_delay_max = Duration::from_millis(1 + cluster.rng.below(60));
    // Frames are late and members miss views; or both arrive at once.
    let is_late = cluster.rng.chance(0.5);
    if is_late {
        cluster.delay_max = Duration::from_millis(2 + cluster.rng.below(40));
    }
    let members = 3 + cluster.rng.below(3);
    let mut clients = Clients::start(&mut cluster, members, 2);
    assert!(
        pass(&mut cluster, &mut clients, Duration::from_secs(10), Cluster::is_settled),
        "seed {seed} begins: {}",
        cluster.state()
    );
    for _ in 0..1 + cluster.rng.below(3) {
        // Any two majorities that differ by one member have a member in common: a violation takes a difference of
        // two.
        let count = 1 + cluster.rng.below(2);
        match cluster.rng.below(4) {
            0 | 1 => {
                for _ in 0..count {
                    let member = cluster.start();
                    clients.add(member, 1);
                }
            }
            2 if cluster.staying_count() > 3 => {
                let staying = |n: &usize| cluster.members[*n].as_ref().is_some_and(|one| !one.is_leaving);
                let mut staying: Vec<usize> = cluster.live_members().into_iter().filter(staying).collect();
                for _ in 0..count {
                    let at = cluster.rng.below(staying.len() as u64) as usize;
                    cluster.leave(staying.swap_remove(at));
                }
            }
            _ => {}
        }
        // First until every member has a topology, because a member without one would begin a cache of its own. Then
        // until a member has the n-th of the topologies that follow.
        pass(&mut cluster, &mut clients, Duration::from_secs(1), Cluster::all_have_topology);
        let wanted = newest(&cluster) + cluster.rng.below(5) as u32;
        pass(&mut cluster, &mut clients, Duration::from_millis(300), |cluster| newest(cluster) >= wanted);
        if !cluster.all_have_topology() {
            continue;
        }
        for _ in 0..1 + cluster.rng.below(4) {
            cluster.missed = if is_late { 0.2 } else { 0.0 };
            let sides = draw_sides(&mut cluster);
            cluster.cut(sides);
            let pause_max = if is_late && cluster.rng.chance(0.3) { 1_500 } else { 80 };
            let pause = cluster.rng.duration(Duration::ZERO, Duration::from_millis(pause_max));
            let wanted = newest(&cluster) + 1 + cluster.rng.below(3) as u32;
            pass(&mut cluster, &mut clients, pause, |cluster| newest(cluster) >= wanted);
        }
        let span = cluster.rng.duration(Duration::ZERO, Duration::from_millis(500));
        pass(&mut cluster, &mut clients, span, |_| false);
        cluster.missed = 0.0;
        cluster.heal();
        let is_settled = pass(&mut cluster, &mut clients, Duration::from_secs(10), Cluster::is_settled);
        if is_told && !is_settled {
            println!("{}", cluster.story.join("\n"));
        }
        assert!(is_settled, "seed {seed} after a cut: {}", cluster.state());
    }
    cluster.run(Duration::from_secs(20));
    for n in 0..KEYS {
        let is_there = |n: &usize| cluster.members[*n].as_ref().is_some_and(|member| !member.is_left);
        let member = cluster.live_members().into_iter().find(is_there).expect("not all have left");
        cluster.submit(member, key(n), Action::Read(ReadFrom::Primary), Duration::from_secs(5));
        cluster.run(Duration::from_secs(1));
    }
    if is_told {
        println!("{}", cluster.story.join("\n"));
    }
    cluster
}

fn written(done: &Done) -> Option<&Written> {
    match &done.result {
        Some(Ok(Outcome::Written(written))) => Some(written),
        _ => None,
    }
}

/// Checks that every acknowledged write has a version of its own, newer than those acknowledged before it began, and
/// has seen the one before it. The final entry must be no older than any of them.
fn judge(cluster: &Cluster) {
    for n in 0..KEYS {
        let of_key = || cluster.history.iter().filter(|done| done.key == key(n));
        let mut acknowledged: BTreeMap<Version, (&Done, &Written)> = BTreeMap::new();
        for done in of_key() {
            let Some(written) = written(done) else { continue };
            let other = acknowledged.insert(written.version, (done, written));
            assert!(other.is_none(), "two writes have one version: {other:?} and {done:?}");
        }
        let all: Vec<_> = acknowledged.into_iter().collect();
        for pair in all.windows(2) {
            let [(version, (before, _)), (_, (after, written))] = pair else { continue };
            let seen = written.previous.as_ref().map(|stored| stored.version);
            assert!(seen >= Some(*version), "{after:?} has not seen {before:?}");
            assert!(after.ended >= Some(before.began), "{after:?} is newer than {before:?} and ended before");
        }
        let last = of_key().next_back();
        let Some((Outcome::Read(found), (version, (done, _)))) =
            last.and_then(|last| last.result.as_ref()?.as_ref().ok()).zip(all.last())
        else {
            assert!(all.is_empty(), "no answer in the end: {last:?}");
            continue;
        };
        let found = found.as_ref().map(|stored| stored.version);
        assert!(found >= Some(*version), "{done:?} is lost: in the end there is {found:?}");
    }
    cluster.check_agreement();
}

fn check(seed: u64, is_told: bool) {
    judge(&run(seed, is_told, Cluster::new(seed, CacheConfig::new("votes"))));
}

#[test]
fn no_two_sides_go_on_however_members_are_parted_at_any_phase() {
    every_seed(60, check);
}

#[cfg(feature = "injected-bugs")]
mod injected_bugs {
    use std::panic::catch_unwind;

    use consort_grid::InjectedBug;

    use super::*;

    /// Seeds after which a bug counts as not found.
    const SEEDS_MAX: u64 = 4_000;

    /// Returns a seed before which no seed found the bug in the last run of all seeds.
    fn first(bug: InjectedBug) -> u64 {
        match bug {
            InjectedBug::PromiseForgotten => 2_810,
            InjectedBug::QuorumAtOnce => 4_345,
            _ => 0,
        }
    }

    fn find(bug: InjectedBug) -> Option<u64> {
        let with_bug = |seed| {
            let mut cluster = Cluster::new(seed, CacheConfig::new("votes"));
            cluster.injected_bug = Some(bug);
            judge(&run(seed, false, cluster));
        };
        let first = first(bug);
        (first..first + SEEDS_MAX).find(|&seed| {
            catch_unwind(|| with_bug(seed)).is_err() && catch_unwind(|| check(seed, false)).is_ok()
        })
    }

    #[test]
    fn bugs_of_votes_are_found() {
        println!("| bug | seeds |\n|---|---:|");
        for bug in InjectedBug::VOTES {
            let found = find(bug).unwrap_or_else(|| panic!("{bug:?} is not found with {SEEDS_MAX} seeds"));
            println!("| {bug:?} | {} |", found + 1);
        }
    }
}
