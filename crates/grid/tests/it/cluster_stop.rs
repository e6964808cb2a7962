//! Orderly stops of whole clusters, after which the members return with their stores.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use consort_grid::{Action, Change, Condition, Lifetime, Limit, MemoryBound, WhenFull, Write};
use consort_store::Store;

use crate::cluster::Cluster;
use crate::persistence::{
    TIMEOUT, config, fill, filled, get, is_restored, key, memory_stores, put, result, start, start_all,
    stored, value,
};
use crate::seeds::every_seed;

fn set_stopping(cluster: &mut Cluster, is_stopping: bool) {
    for n in cluster.live_members() {
        cluster.with(n, |node, now| node.set_cluster_stopping(now, is_stopping));
    }
}

fn has_left(cluster: &Cluster, n: usize) -> bool {
    cluster.members[n].as_ref().is_none_or(|member| member.is_left)
}

fn end_all(cluster: &mut Cluster) {
    for n in cluster.live_members() {
        assert!(has_left(cluster, n), "M{n}: {}", cluster.state());
        cluster.crash(n);
    }
    cluster.deliver_views(false);
}

fn returns_with(cluster: &mut Cluster, stores: &[Arc<dyn Store>], keys: usize) {
    let back = start_all(cluster, stores);
    cluster.run(Duration::from_secs(5));
    assert!(cluster.is_settled(), "{}", cluster.state());
    for n in 0..keys {
        assert_eq!(get(cluster, back[n % back.len()], key(n)), Some(value(n)));
    }
    cluster.check_agreement();
}

#[test]
fn members_of_a_stopping_cluster_keep_their_entries_and_end_together() {
    let (mut cluster, stores) = filled(1, 100);
    let before: Vec<u64> = stores.iter().map(stored).collect();
    set_stopping(&mut cluster, true);
    cluster.leave(2);
    cluster.leave(0);
    cluster.run(Duration::from_secs(5));
    assert!(
        (0..3).all(|n| !has_left(&cluster, n)),
        "the last one serves until it leaves: {}",
        cluster.state()
    );
    assert!(result(&mut cluster, 1, key(7), put(7)).is_ok());
    cluster.leave(1);
    cluster.run(Duration::from_secs(1));
    end_all(&mut cluster);
    assert_eq!(stores.iter().map(stored).collect::<Vec<_>>(), before);
    returns_with(&mut cluster, &stores, 100);
}

#[test]
fn restart_waits_for_all_members_of_a_stopped_cluster() {
    let (mut cluster, stores) = filled(2, 30);
    set_stopping(&mut cluster, true);
    (0..3).for_each(|n| cluster.leave(n));
    cluster.run(Duration::from_secs(1));
    end_all(&mut cluster);
    let first = start_all(&mut cluster, &stores[1..]);
    cluster.run(Duration::from_secs(10));
    assert!(first.iter().all(|&n| !is_restored(&cluster, n)), "{}", cluster.state());
    start(&mut cluster, &stores[0], None, false);
    cluster.run(Duration::from_secs(5));
    for n in 0..30 {
        assert_eq!(get(&mut cluster, first[n % 2], key(n)), Some(value(n)));
    }
}

#[test]
fn stop_completes_without_a_member_that_is_lost_meanwhile() {
    // The first one is the coordinator.
    for lost in 0..3 {
        let (mut cluster, stores) = filled(3, 60);
        set_stopping(&mut cluster, true);
        let staying: Vec<usize> = (0..3).filter(|n| *n != lost).collect();
        cluster.leave(staying[0]);
        cluster.run(Duration::from_secs(1));
        cluster.crash(lost);
        cluster.deliver_views(false);
        cluster.leave(staying[1]);
        cluster.run(Duration::from_secs(5));
        end_all(&mut cluster);
        returns_with(&mut cluster, &stores, 60);
    }
}

#[test]
fn member_that_joins_a_stopping_cluster_owns_nothing_and_leaves_with_the_others() {
    let (mut cluster, stores) = filled(4, 60);
    set_stopping(&mut cluster, true);
    cluster.leave(0);
    let late = start(&mut cluster, &memory_stores(1)[0], None, false);
    cluster.run(Duration::from_secs(3));
    assert!(!cluster.has_owners(4), "{}", cluster.state());
    (1..3).for_each(|n| cluster.leave(n));
    cluster.run(Duration::from_secs(3));
    assert!(!has_left(&cluster, 0), "the late one has not left: {}", cluster.state());
    cluster.leave(late);
    cluster.run(Duration::from_secs(3));
    end_all(&mut cluster);
    returns_with(&mut cluster, &stores, 60);
}

#[test]
fn stop_that_is_withdrawn_moves_the_entries_of_members_that_leave() {
    let (mut cluster, stores) = filled(5, 60);
    set_stopping(&mut cluster, true);
    cluster.leave(2);
    cluster.run(Duration::from_secs(3));
    assert!(!has_left(&cluster, 2));
    set_stopping(&mut cluster, false);
    cluster.run(Duration::from_secs(3));
    assert!(has_left(&cluster, 2), "{}", cluster.state());
    assert_eq!(stored(&stores[2]), 0, "others have its entries");
    for n in 0..60 {
        assert_eq!(get(&mut cluster, n % 2, key(n)), Some(value(n)));
    }
}

#[test]
fn values_in_memory_only_are_stored_when_the_cluster_stops() {
    let few = Some(MemoryBound { limit: Limit::Entries(20), when_full: WhenFull::Remove });
    let mut cluster = Cluster::new(6, config());
    let stores = memory_stores(3);
    let open = |cluster: &mut Cluster| -> Vec<usize> {
        stores.iter().map(|store| start(cluster, store, few, true)).collect()
    };
    open(&mut cluster);
    cluster.run(Duration::from_secs(2));
    fill(&mut cluster, 3, 120);
    assert!(stores.iter().map(stored).sum::<u64>() < 240, "some values are in memory only");
    set_stopping(&mut cluster, true);
    (0..3).for_each(|n| cluster.leave(n));
    cluster.run(Duration::from_secs(2));
    end_all(&mut cluster);
    assert_eq!(stores.iter().map(stored).sum::<u64>(), 240);
    let back = open(&mut cluster);
    cluster.run(Duration::from_secs(5));
    for n in 0..120 {
        assert_eq!(get(&mut cluster, back[n % 3], key(n)), Some(value(n)));
    }
}

/// The values that a key may have after a restart: the last acknowledged one, or a later one.
#[derive(Default)]
struct Allowed {
    sure: Option<Bytes>,
    later: Vec<Option<Bytes>>,
}

fn write(value: Option<Bytes>) -> Action {
    let change = match value {
        Some(value) => Change::Put { value, lifetime: Lifetime::FOREVER },
        None => Change::Remove,
    };
    Action::Write(Write { condition: Condition::Always, change, wants_previous: false })
}

/// Stops a cluster under load three times. At random moments each member learns of the stop; later each leaves, or one of them
/// crashes. After each restart all acknowledged writes are read.
pub(crate) fn check(seed: u64, is_told: bool) {
    let mut cluster = Cluster::new(seed, config());
    let count = 2 + cluster.rng.below(3) as usize;
    let stores = memory_stores(count);
    let mut keys: BTreeMap<usize, Allowed> = BTreeMap::new();
    for life in 0..3 {
        let members = start_all(&mut cluster, &stores);
        cluster.run(Duration::from_secs(6));
        assert!(cluster.is_settled(), "life {life}: {}", cluster.state());
        for (number, allowed) in &mut keys {
            let found = get(&mut cluster, members[number % count], key(*number));
            let is_allowed = found == allowed.sure || allowed.later.contains(&found);
            assert!(is_allowed, "life {life}: {:?} is {found:?}, not {:?}", key(*number), allowed.sure);
            *allowed = Allowed { sure: found, later: Vec::new() };
        }
        let lost = members[cluster.rng.below(count as u64) as usize];
        let lost = (count > 2 && cluster.rng.chance(0.4)).then_some(lost);
        stop(&mut cluster, &members, lost, life, &mut keys);
        if is_told {
            println!("{}", cluster.story.join("\n"));
        }
        end_all(&mut cluster);
    }
}

fn stop(
    cluster: &mut Cluster,
    members: &[usize],
    lost: Option<usize>,
    life: usize,
    keys: &mut BTreeMap<usize, Allowed>,
) {
    let mut running: BTreeMap<usize, (usize, usize)> = BTreeMap::new();
    let mut at = BTreeMap::new();
    let moment = |cluster: &mut Cluster, least: u64| {
        cluster.now + cluster.rng.duration(Duration::from_millis(least), Duration::from_millis(least + 120))
    };
    for &n in members {
        // The servers agree on the stop before the first one leaves.
        at.insert((moment(cluster, 0), n), "stopping");
        at.insert((moment(cluster, 150), n), if lost == Some(n) { "crash" } else { "leave" });
    }
    let mut leaving = Vec::new();
    while let Some(((next, n), what)) = at.pop_first() {
        while cluster.now < next {
            for number in 0..24 {
                let member = members[cluster.rng.below(members.len() as u64) as usize];
                if running.contains_key(&number) || leaving.contains(&member) {
                    continue;
                }
                let value = (!cluster.rng.chance(0.2))
                    .then(|| Bytes::from(format!("{life}-{}-{number}", cluster.history.len())));
                let submitted = cluster.submit(member, key(number), write(value.clone()), TIMEOUT);
                let allowed = keys.entry(number).or_default();
                allowed.later.push(value);
                running.insert(number, (submitted, allowed.later.len() - 1));
            }
            let step = (cluster.now + Duration::from_millis(1)).min(next);
            while cluster.step(step) {}
            cluster.now = cluster.now.max(step);
            running.retain(|number, (submitted, nth)| {
                let Some(result) = &cluster.history[*submitted].result else { return true };
                if let (Ok(_), Some(allowed)) = (result, keys.get_mut(number)) {
                    allowed.sure = allowed.later[*nth].clone();
                    allowed.later.clear();
                }
                false
            });
        }
        let early =
            leaving.iter().find(|&&n| cluster.members[n].as_ref().is_some_and(|member| member.is_left));
        assert_eq!(early, None, "it has left before all have asked to: {}", cluster.state());
        match what {
            "stopping" => _ = cluster.with(n, |node, now| node.set_cluster_stopping(now, true)),
            "leave" => {
                leaving.push(n);
                cluster.leave(n);
            }
            _ => {
                leaving.push(n);
                cluster.crash(n);
                cluster.deliver_views(false);
            }
        }
    }
    cluster.run(Duration::from_secs(30));
    for (number, (submitted, nth)) in running {
        if let (Some(Ok(_)), Some(allowed)) = (&cluster.history[submitted].result, keys.get_mut(&number)) {
            allowed.sure = allowed.later[nth].clone();
            allowed.later.clear();
        }
    }
}

#[test]
fn acknowledged_writes_are_read_after_clusters_were_stopped_under_load() {
    every_seed(40, check);
}
