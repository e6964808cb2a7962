//! Caches whose owners are not balanced for a while, as an operator may request.

use std::time::Duration;

use bytes::Bytes;
use consort_grid::{CacheConfig, CacheMode, Outcome};

use crate::clients::{Clients, TIMEOUT};
use crate::cluster::{Cluster, address, number};
use crate::listening::put;
use crate::seeds::every_seed;
use crate::swarm::{check_history, work};

fn config(owners: u16, segments: u16) -> CacheConfig {
    CacheConfig { segments, mode: CacheMode::Distributed { owners }, ..CacheConfig::new("kept") }
}

fn key(n: usize) -> Bytes {
    format!("k{n}").into()
}

/// Counts each member's segments, as the first member of the cache knows them.
fn owned(cluster: &Cluster) -> Vec<usize> {
    let of = |n: usize| cluster.members[n].as_ref()?.node.topology(cluster.cache());
    let topology = cluster.live_members().into_iter().find_map(of);
    let owners = topology.expect("a topology").read_owners();
    (0..cluster.members.len()).map(|n| owners.segments_of(&address(n)).count()).collect()
}

fn filled(owners: u16, members: usize) -> Cluster {
    let mut cluster = Cluster::settled(7, config(owners, 12), members);
    for n in 0..60 {
        cluster.submit(0, key(n), put("value", None), TIMEOUT);
    }
    cluster.run(Duration::from_secs(1));
    cluster
}

fn check_entries(cluster: &mut Cluster, reader: usize) {
    let reads: Vec<usize> = (0..60)
        .map(|n| {
            let read = consort_grid::Action::Read(consort_grid::ReadFrom::Primary);
            cluster.submit(reader, key(n), read, TIMEOUT)
        })
        .collect();
    cluster.run(Duration::from_secs(1));
    for at in reads {
        let result = &cluster.history[at].result;
        assert!(
            matches!(result, Some(Ok(Outcome::Read(Some(_))))),
            "{:?}: {result:?}",
            cluster.history[at].key
        );
    }
}

#[test]
fn joining_member_owns_nothing_until_rebalancing_is_enabled() {
    let mut cluster = filled(2, 2);
    cluster.set_rebalancing(false);
    let late = cluster.start();
    cluster.run(Duration::from_secs(3));
    assert!(cluster.has_owners(2), "{}", cluster.state());
    assert_eq!(owned(&cluster), [12, 12, 0]);
    // It serves the entries of the others.
    check_entries(&mut cluster, late);
    cluster.set_rebalancing(true);
    cluster.run(Duration::from_secs(3));
    assert_eq!(owned(&cluster), [8, 8, 8]);
    check_entries(&mut cluster, late);
    cluster.check_agreement();
}

#[test]
fn joining_member_gets_no_copy_of_a_replicated_cache_until_rebalancing_is_enabled() {
    let config = CacheConfig { segments: 12, mode: CacheMode::Replicated, ..CacheConfig::new("kept") };
    let mut cluster = Cluster::settled(7, config, 2);
    cluster.set_rebalancing(false);
    cluster.start();
    cluster.run(Duration::from_secs(3));
    assert_eq!(owned(&cluster), [12, 12, 0], "{}", cluster.state());
    cluster.set_rebalancing(true);
    cluster.run(Duration::from_secs(3));
    assert_eq!(owned(&cluster), [12, 12, 12]);
}

/// One copy of its entries would be lost with the only owner.
#[test]
fn new_cache_gets_all_owners_while_rebalancing_is_disabled() {
    let mut cluster = Cluster::new(7, config(2, 12));
    cluster.set_rebalancing(false);
    for _ in 0..3 {
        cluster.start();
        cluster.run(Duration::from_secs(1));
    }
    cluster.run(Duration::from_secs(2));
    assert!(cluster.has_owners(2), "{}", cluster.state());
    assert_eq!(owned(&cluster), [12, 12, 0], "it has its owners once the second member has joined");
}

#[test]
fn member_that_joins_an_invalidation_cache_owns_all_segments_in_any_case() {
    let config = CacheConfig { segments: 12, mode: CacheMode::Invalidation, ..CacheConfig::new("kept") };
    let mut cluster = Cluster::settled(7, config, 2);
    cluster.set_rebalancing(false);
    cluster.start();
    cluster.run(Duration::from_secs(3));
    assert_eq!(owned(&cluster), [12, 12, 12]);
}

#[test]
fn lost_copies_are_replaced_when_rebalancing_is_enabled() {
    let mut cluster = filled(2, 3);
    cluster.set_rebalancing(false);
    cluster.crash(2);
    cluster.deliver_views(false);
    cluster.run(Duration::from_secs(3));
    assert!(cluster.has_owners(1) && !cluster.has_owners(2), "{}", cluster.state());
    assert_eq!(owned(&cluster), [8, 8, 0]);
    check_entries(&mut cluster, 0);
    cluster.set_rebalancing(true);
    cluster.run(Duration::from_secs(3));
    assert_eq!(owned(&cluster), [12, 12, 0]);
    assert!(cluster.is_settled(), "{}", cluster.state());
    cluster.check_agreement();
}

#[test]
fn leaving_member_moves_only_segments_without_another_owner() {
    let mut cluster = filled(2, 3);
    cluster.set_rebalancing(false);
    cluster.leave(2);
    cluster.run(Duration::from_secs(3));
    assert!(cluster.members[2].as_ref().is_none_or(|one| one.is_left), "{}", cluster.state());
    assert_eq!(owned(&cluster), [8, 8, 0], "each segment has another owner");
    cluster.leave(1);
    cluster.run(Duration::from_secs(3));
    assert_eq!(owned(&cluster), [12, 0, 0], "the rest had none");
    check_entries(&mut cluster, 0);
}

#[test]
fn members_that_leave_together_hand_over_segments_that_only_they_own() {
    let mut cluster = filled(2, 3);
    cluster.set_rebalancing(false);
    cluster.leave(1);
    cluster.leave(2);
    cluster.run(Duration::from_secs(3));
    assert_eq!(owned(&cluster), [12, 0, 0], "{}", cluster.state());
    check_entries(&mut cluster, 0);
}

/// Documents say that rebalancing must not be disabled for a rolling restart.
#[test]
fn rolling_restart_without_rebalancing_leaves_all_entries_to_one_member() {
    let mut cluster = filled(2, 3);
    cluster.set_rebalancing(false);
    for left in 0..2 {
        cluster.leave(left);
        cluster.run(Duration::from_secs(3));
        cluster.start();
        cluster.run(Duration::from_secs(3));
    }
    assert!(!cluster.has_owners(2), "{}", cluster.state());
    assert_eq!(owned(&cluster), [0, 0, 12, 0, 0], "no other member has a copy");
    cluster.leave(2);
    cluster.run(Duration::from_secs(3));
    assert_eq!(owned(&cluster)[2], 0);
    check_entries(&mut cluster, 3);
}

/// The new coordinator has not been told again.
#[test]
fn rebalancing_stays_disabled_when_the_coordinator_changes() {
    let mut cluster = filled(2, 3);
    cluster.set_rebalancing(false);
    cluster.crash(0);
    cluster.deliver_views(false);
    cluster.run(Duration::from_secs(3));
    assert_eq!(owned(&cluster), [0, 8, 8]);
    let late = cluster.start();
    cluster.run(Duration::from_secs(3));
    assert_eq!(owned(&cluster), [0, 8, 8, 0]);
    check_entries(&mut cluster, late);
}

/// Members join, leave and crash while rebalancing is disabled now and then; acknowledged writes are read.
pub(crate) fn check(seed: u64, is_told: bool) {
    let mut cluster = Cluster::new(seed, config(1, 1));
    let (owners, segments) = (1 + cluster.rng.below(3) as u16, 1 + cluster.rng.below(16) as u16);
    cluster.config = config(owners, segments);
    let count = 2 + cluster.rng.below(3);
    let mut clients = Clients::start(&mut cluster, count, 2);
    let end = cluster.now + Duration::from_secs(4);
    work(&mut cluster, &mut clients, 12, end, change);
    cluster.set_rebalancing(true);
    cluster.run(Duration::from_secs(30));
    if is_told {
        println!("{}", cluster.story.join("\n"));
    }
    assert!(cluster.is_settled(), "no stable topology:\n{}", cluster.state());
    check_history(&cluster);
    cluster.check_agreement();
}

/// Whether more than half of the last stable topology's members stay without this one.
fn have_majority(cluster: &Cluster, without: usize) -> bool {
    let id = cluster.cache();
    let mut topologies = cluster.members.iter().flatten().filter_map(|member| member.node.topology(id));
    let Some(topology) = topologies.next() else { return true };
    let stays = |n: usize| n != without && cluster.members[n].as_ref().is_some_and(|one| !one.is_leaving);
    2 * topology.quorum.iter().filter(|member| stays(number(member))).count() > topology.quorum.len()
}

/// Returns the member that has joined, if one has.
fn change(cluster: &mut Cluster) -> Option<usize> {
    if !cluster.rng.chance(0.004) || !cluster.all_have_topology() {
        return None;
    }
    let alive = cluster.live_members();
    let one = alive[cluster.rng.below(alive.len() as u64) as usize];
    match cluster.rng.below(4) {
        0 if alive.len() < 6 => return Some(cluster.start()),
        // A member without segments leaves at once: together with a crash, that would be most votes.
        1 if cluster.staying_count() > 1 && cluster.has_owners(1) => cluster.leave(one),
        // Another owner has each of its entries, and most votes stay.
        2 if cluster.staying_count() > 2 && cluster.has_owners(2) && have_majority(cluster, one) => {
            cluster.crash(one);
            cluster.deliver_views(false);
        }
        _ => {
            let is_disabled = cluster.rebalancing.is_disabled;
            cluster.set_rebalancing(is_disabled);
        }
    }
    None
}

#[test]
fn acknowledged_writes_are_read_while_owners_are_not_balanced() {
    every_seed(40, check);
}
