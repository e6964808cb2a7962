//! The present entries for a new listener, and iterations over the primaries' entries.

use std::time::Duration;

use consort_grid::{
    CacheConfig, CacheMode, EventKind, ListenOptions, Next, PartitionHandling, Publication, ReadFrom, Scope,
};

use crate::clients::TIMEOUT;
use crate::cluster::Cluster;
use crate::iteration::{asked, begin, drain, next, populated, populated_as};
use crate::listeners::{key, listen};
use crate::listening::put;

#[test]
fn iteration_of_primary_entries_reads_from_the_primaries() {
    let mut cluster = populated_as(3, PartitionHandling::default(), 4, 3, 100);
    for (from, others) in [(ReadFrom::Nearest, 0), (ReadFrom::Primary, 2)] {
        let id = begin(&mut cluster, 0, Publication { from, ..Publication::default() });
        let Next::Items(own) = next(&mut cluster, 0, id) else { panic!("it has some") };
        assert_eq!(asked(&mut cluster, 0, id), others, "{from:?}");
        let (mut found, count) = drain(&mut cluster, 0, id);
        found.extend(own.into_iter().map(|item| (item.key, 1)));
        assert_eq!((found.len(), count), (100, 100));
    }
}

/// The reader repeats its request meanwhile, and still accepts the response to the first one.
#[test]
fn a_walk_gets_on_where_answers_take_long() {
    let mut cluster = populated(6, 3, 100);
    for other in [1, 2] {
        cluster.slow.insert((other, 0), Duration::from_secs(2));
    }
    let id = begin(&mut cluster, 0, Publication { batch: 30, ..Publication::default() });
    assert_eq!(drain(&mut cluster, 0, id).1, 100);
}

/// The transfer of the copies took long, so they expire later. The primary's have expired without an event, because
/// there was no listener.
#[test]
fn entry_expired_at_its_primary_is_not_in_a_listeners_state() {
    let mode = CacheMode::Distributed { owners: 2 };
    let config = CacheConfig { segments: 8, mode, ..CacheConfig::new("heard") };
    let mut cluster = Cluster::settled(5, config, 1);
    for n in 0..40 {
        cluster.submit(0, key(n), put("mortal", Some(Duration::from_secs(12))), TIMEOUT);
    }
    cluster.slow.insert((0, 1), Duration::from_secs(3));
    let late = cluster.start();
    let count =
        |cluster: &Cluster, n: usize| cluster.members[n].as_ref().map_or(0, |one| one.container.len());
    cluster.run(Duration::from_secs(7));
    assert_eq!(count(&cluster, late), 40);
    cluster.slow.clear();
    cluster.run(Duration::from_millis(5_500));
    assert_eq!((count(&cluster, 0), count(&cluster, late)), (0, 40));
    let mut reader = listen(
        &mut cluster,
        late,
        ListenOptions { with_state: true, scope: Scope::Cluster, ..ListenOptions::default() },
    );
    cluster.run(Duration::from_secs(70));
    reader.poll(&mut cluster);
    reader.check_replica(&cluster);
    assert_eq!(count(&cluster, late), 0);
    // It has delivered the expiry of the entries whose primary it is now.
    assert!(reader.entries().any(|event| event.kind == EventKind::Expired));
}
